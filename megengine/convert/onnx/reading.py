"""Reading .onnx files that may be damaged or hostile: sizes and paths are checked before memory is taken."""

import heapq
import itertools
import math
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from megengine.core.dtype import as_dtype, storage_of
from megengine.core.errors import DTypeError, FileFormatError, OptionError, brief, nearest_file
from megengine.core.text import counted

if TYPE_CHECKING:
    import onnx

MAX_FILE = 2 << 30  # the limit of the container format itself
MAX_DENSE = 1 << 30  # bytes of the sparse tensors of a graph, with their zeros
MAX_INLINED = 1_000_000  # nodes when the calls of local functions are replaced by what they do
MAX_NAMES = 10_000  # that are looked at beside a file with hard links
MOST_NESTED = 101  # functions, one inside the other: as many as the inliner takes, and one
MIN_OPSET = 1
FEW_BITS = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}  # of data types whose values share bytes


def read_model(source: "str | Path | bytes | onnx.ModelProto") -> tuple["onnx.ModelProto", Path | None]:
    """A parsed model, its local functions inlined, and the folder that external data must lie in.

    Raises:
        FileFormatError: no such file, not a complete ONNX model, or an opset that is not supported.
    """
    import onnx

    if isinstance(source, onnx.ModelProto):
        source = source.SerializeToString()
    if not isinstance(source, (str, Path, bytes)):
        raise OptionError(
            f"ONNX: the model is of type {type(source).__name__}; expected a path, the file's bytes or a ModelProto"
        )
    path = None if isinstance(source, bytes) else Path(source)
    name = "<bytes>" if path is None else str(path)
    content = source if isinstance(source, bytes) else _content(Path(source))
    if not content:
        raise FileFormatError(f"{name}: the file is empty; write or copy it again")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception:  # protobuf implementations raise different types
        raise FileFormatError(f"{name}: not a complete ONNX model; the file is truncated or no .onnx") from None
    if not model.graph.output:
        raise FileFormatError(f"{name}: not an ONNX model; expected a graph with at least one output")
    if not all(isinstance(text, str) for text in _texts(model)):  # the parser gives damaged text as bytes
        raise FileFormatError(f"{name}: a name in it is not valid text; the file is damaged")
    _check_opset(model, name)
    if model.functions:
        model = _inlined(model, name)
    _put_in_order(model.graph)
    _leave_out_unread(model.graph)
    for item in model.graph.output:
        if (kind := data_type_name(item.type.tensor_type.elem_type)) in FEW_BITS:
            raise FileFormatError(f"{name}: result {item.name!r} is of {kind}, which tensors do not hold; {DATA_TYPES}")
    return model, None if path is None else path.resolve().parent


def _texts(model: "onnx.ModelProto") -> Iterator[Any]:
    """Names, keys and values that are text, wherever they stand in a model."""
    yield from _noted_texts(model.metadata_props)
    yield from (item.domain for item in model.opset_import)
    yield from _texts_of_graph(model.graph)
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
        yield from _texts_of_nodes(function.node)


def _texts_of_graph(graph: "onnx.GraphProto") -> Iterator[Any]:
    yield from (graph.name, *stored_names(graph))
    for item in (*graph.input, *graph.output):
        yield item.name
        yield from (dim.dim_param for dim in item.type.tensor_type.shape.dim)
    for tensor in graph.initializer:
        yield from _noted_texts(tensor.external_data)
    yield from _texts_of_nodes(graph.node)


def _texts_of_nodes(nodes: "Iterable[onnx.NodeProto]") -> Iterator[Any]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
        yield from _noted_texts(node.metadata_props)
        for inner in _graphs_of(node):
            yield from _texts_of_graph(inner)


def _noted_texts(entries: "Iterable[onnx.StringStringEntryProto]") -> Iterator[Any]:
    for entry in entries:
        yield from (entry.key, entry.value)


def names_read(nodes: "Iterable[onnx.NodeProto]") -> Iterator[str]:
    """Names of values that nodes read, and the graphs that they run, with the outputs of these."""
    for node in nodes:
        yield from node.input
        for inner in _graphs_of(node):
            yield from names_read(inner.node)
            yield from (item.name for item in inner.output)


def _graphs_of(node: "onnx.NodeProto") -> "Iterator[onnx.GraphProto]":
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _put_in_order(graph: "onnx.GraphProto") -> None:
    """Move nodes behind those that they read, in this graph and those that it runs: converters append casts at the end.

    A graph without such an order stays as it is.
    """
    for node in graph.node:
        for inner in _graphs_of(node):
            _put_in_order(inner)
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    before = [{makers[name] for name in names_read([node]) if name in makers} for node in graph.node]
    if all(max(places, default=-1) < place for place, places in enumerate(before)):
        return
    readers: dict[int, list[int]] = {}
    for place, places in enumerate(before):
        for earlier in places:
            readers.setdefault(earlier, []).append(place)
    waiting = [len(places) for places in before]
    ready, order = [place for place, count in enumerate(waiting) if not count], []
    while ready:
        order.append(heapq.heappop(ready))  # as near to the order of the file as can be
        for place in readers.get(order[-1], ()):
            waiting[place] -= 1
            if not waiting[place]:
                heapq.heappush(ready, place)
    if len(order) == len(graph.node):
        nodes = [graph.node[place] for place in order]
        copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _leave_out_unread(graph: "onnx.GraphProto") -> None:
    """Take the nodes away that no result follows from, in this graph and those that it runs: they may be anything."""
    needed = {item.name for item in graph.output}
    for place in reversed(range(len(graph.node))):
        node = graph.node[place]
        if needed.isdisjoint(filter(None, node.output)):
            del graph.node[place]
            continue
        for inner in _graphs_of(node):
            _leave_out_unread(inner)
        needed.update(names_read([node]))


class OpenShapeError(FileFormatError):
    """A model leaves a shape open that was not given."""

    def __init__(self, name: str, shape: str) -> None:
        super().__init__(
            f"the input {name!r} has the open shape ({shape}); give it with input_shapes={{{name!r}: (...)}}"
        )
        self.name, self.shape = name, shape


def external_files(path: Path) -> set[str]:
    """Names of the files beside a model that hold its weights; none for what is no model."""
    import onnx

    model = onnx.ModelProto()
    try:
        model.ParseFromString(_content(path))
    except Exception:  # what is wrong is said when the model is read
        return set()
    sparse = [tensor for one in model.graph.sparse_initializer for tensor in (one.values, one.indices)]
    stored = (*model.graph.initializer, *sparse)
    return {item.value for t in stored for item in t.external_data if item.key == "location"}


def _content(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_FILE:
            raise FileFormatError(
                f"{path}: {counted(size, 'byte')}; an ONNX model has at most 2 GiB (weights may lie beside it)"
            )
        return path.read_bytes()
    except FileNotFoundError:
        raise FileFormatError(f"{path}: no such file{nearest_file(path)}") from None
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error.strerror})") from error


def _check_opset(model: "onnx.ModelProto", name: str) -> None:
    import onnx

    version = opset_of(model)
    newest = onnx.defs.onnx_opset_version()
    if not version:
        others = ", ".join(f"{item.domain!r} {item.version}" for item in model.opset_import) or "none at all"
        raise FileFormatError(
            f"{name}: uses no operators of ONNX itself (its operator sets: {others}); expected a neural network. "
            "Trees, scalers and other models of ai.onnx.ml are not supported"
        )
    if not MIN_OPSET <= version <= newest:
        raise FileFormatError(
            f"{name}: opset {version}; expected {MIN_OPSET} to {newest} (convert with onnx.version_converter)"
        )


def opset_of(model: "onnx.ModelProto") -> int:
    """Version of the default operator set, 0 when the model names none."""
    return max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0)


def operator_name(node: "onnx.NodeProto") -> str:
    """The name of an operator, with its domain where that is not the standard's."""
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _inlined(model: "onnx.ModelProto", name: str) -> "onnx.ModelProto":
    """The model with the nodes of its functions in the places of their calls.

    As in ONNX Runtime a name of the standard is the standard's operator, whatever function of that name is there.
    """
    from onnx import defs, inliner

    opset = opset_of(model)
    for place, function in reversed(list(enumerate(model.functions))):
        if function.domain in ("", "ai.onnx") and defs.has(function.name, max_inclusive_version=opset):
            del model.functions[place]
    _state_defaults(model)
    _check_growth(model, name)
    try:
        return inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:
        raise FileFormatError(f"{name}: its local functions cannot be inlined ({error})") from None


def _check_growth(model: "onnx.ModelProto", name: str) -> None:
    """Refuse functions that call each other so often that the nodes of all calls do not fit in memory."""
    bodies: dict[tuple[str, ...], Any] = {(f.domain, f.name, f.overload): f.node for f in model.functions}
    bodies[()] = model.graph.node
    own, calls = {}, {}
    for key, nodes in bodies.items():
        found = [(node.domain, node.op_type, node.overload) for node in _all_nodes(nodes)]
        own[key] = len(found), sum(node.ByteSize() for node in nodes)
        calls[key] = Counter(one for one in found if one in bodies)
    whole = own
    for _ in range(MOST_NESTED):
        before = whole
        whole = {
            key: (
                count + sum(n * before[one][0] for one, n in calls[key].items()),
                size + sum(n * before[one][1] for one, n in calls[key].items()),
            )
            for key, (count, size) in own.items()
        }
        if whole[()][0] > MAX_INLINED or whole[()][1] > MAX_FILE:
            raise FileFormatError(
                f"{name}: the calls of its local functions stand for more than {MAX_INLINED:,} nodes or "
                f"{MAX_FILE >> 30} GiB; the file is damaged"
            )
        if whole == before:
            return


def _state_defaults(model: "onnx.ModelProto") -> None:
    """Write attributes that calls of functions leave out, which the inliner takes for absent, with their defaults."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    for node in _all_nodes((*model.graph.node, *(node for f in model.functions for node in f.node))):
        if (called := functions.get((node.domain, node.op_type, node.overload))) is not None:
            stated = {attribute.name for attribute in node.attribute}
            node.attribute.extend(one for one in called.attribute_proto if one.name not in stated)


def _all_nodes(nodes: "Iterable[onnx.NodeProto]") -> "Iterator[onnx.NodeProto]":
    """Nodes, and those of the graphs that they run."""
    for node in nodes:
        yield node
        for inner in _graphs_of(node):
            yield from _all_nodes(inner.node)


def label(node: "onnx.NodeProto") -> str:
    """A node in messages: its operator and its name, or that of its first result."""
    return f"{node.op_type} node {node.name or next(filter(None, node.output), '')!r}"


def stored_names(graph: "onnx.GraphProto") -> Iterator[str]:
    """Names of the tensors that a graph stores; a sparse one has that of its values."""
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)


def initializers(graph: "onnx.GraphProto", folder: Path | None) -> Iterator[tuple[str, np.ndarray]]:
    """Name and read-only value of every stored tensor. Raises FileFormatError for damaged or foreign data.

    Of tensors of one name the last one counts, as in ONNX Runtime. Text that nothing reads is left out.
    """
    import onnx

    last = {tensor.name: tensor for tensor in graph.initializer}
    sparse_last = {sparse.values.name: sparse for sparse in graph.sparse_initializer}
    read = {*names_read(graph.node), *(item.name for item in graph.output)}
    for name, tensor in last.items():
        is_text = tensor.data_type == onnx.TensorProto.STRING
        if name not in sparse_last and (name in read or not is_text):
            yield name, array_of(tensor, folder)
    left = MAX_DENSE
    for name, sparse in sparse_last.items():
        made = dense(sparse, folder, most=left)
        left -= made.nbytes
        yield name, made


def dense(sparse: "onnx.SparseTensorProto", folder: Path | None = None, *, most: int = MAX_DENSE) -> np.ndarray:
    """The value of a sparse tensor: zeros, but for the values [count] at their indices [count] or [count, axes].

    Raises FileFormatError for damaged data, and for a value of more than `most` bytes.
    """
    values, indices = array_of(sparse.values, folder), array_of(sparse.indices, folder)
    where, shape = f"sparse tensor {sparse.values.name!r}", tuple(sparse.dims)
    if any(size < 0 for size in shape):
        raise FileFormatError(f"{where}: shape {shape} has a negative size")
    if (size := math.prod(shape) * values.itemsize) > most:
        raise FileFormatError(
            f"{where}: shape {shape} needs {counted(size, 'byte')}; "
            f"the sparse tensors of a graph may have {MAX_DENSE} together"
        )
    fits = indices.dtype == np.int64 and values.ndim == 1 and indices.shape[:1] == values.shape
    if not fits or (indices.ndim != 1 and (not shape or indices.shape[1:] != (len(shape),))):
        raise FileFormatError(
            f"{where}: values of shape {values.shape}, indices of {indices.dtype} and shape {indices.shape}; expected "
            f"[count], and int64 and [count] or [count, {len(shape)}]"
        )
    limits = math.prod(shape) if indices.ndim == 1 else shape
    if ((indices < 0) | (indices >= limits)).any():
        raise FileFormatError(f"{where}: an index lies outside shape {shape}")
    made = np.zeros(shape, values.dtype)
    made.reshape(-1)[indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)] = values
    return made


def array_of(tensor: "onnx.TensorProto", folder: Path | None = None) -> np.ndarray:
    """The value of a stored tensor. Raises FileFormatError as `initializers` does, and for strings."""
    import onnx

    where = f"tensor {tensor.name!r}"
    if tensor.data_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        raise FileFormatError(f"{where}: data type {tensor.data_type} is not a number type")
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        raise FileFormatError(f"{where}: unknown data type {tensor.data_type}") from None
    shape = tuple(tensor.dims)
    if any(size < 0 for size in shape):
        raise FileFormatError(f"{where}: shape {shape} has a negative size")
    count = math.prod(shape)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external(tensor, dtype, shape, folder)
    needed = _stored_bytes(tensor.data_type, dtype, count)
    if tensor.HasField("raw_data") and len(tensor.raw_data) != needed:
        raise FileFormatError(
            f"{where}: {counted(len(tensor.raw_data), 'byte')} of data; shape {shape} and {dtype} need {needed}"
        )
    if not tensor.HasField("raw_data") and count > 16 * max(1, tensor.ByteSize()):
        raise FileFormatError(f"{where}: shape {shape} needs {counted(count, 'value')} and the file holds fewer")
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception as error:
        raise FileFormatError(f"{where}: its data does not fit shape {shape} ({error})") from None


DATA_TYPES = (
    "expected booleans, integers of 8 bits or more, or floats of 16 bits or more; "
    "onnx.utils.extract_model keeps the part of a model without it"
)


def is_held(dtype: np.dtype) -> bool:
    """Whether tensors hold values of a NumPy dtype."""
    try:
        return storage_of(as_dtype(dtype.name)) == dtype
    except DTypeError:
        return False


def dtype_of(data_type: Any) -> np.dtype | None:
    """The dtype of one of ONNX's data types, None for a type that tensors do not hold."""
    import onnx

    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(data_type))
    except (KeyError, TypeError, ValueError):
        return None
    return dtype if is_held(dtype) else None


def data_type_name(data_type: Any) -> str:
    """The standard's name of a data type, or its number."""
    import onnx

    names = {number: name for name, number in onnx.TensorProto.DataType.items()}
    return names.get(data_type, repr(data_type))


def _stored_bytes(data_type: int, dtype: np.dtype, count: int) -> int:
    """How many bytes hold values of one of ONNX's data types; those of few bits share bytes."""
    import onnx

    bits = FEW_BITS.get(onnx.TensorProto.DataType.Name(data_type))
    return count * dtype.itemsize if bits is None else -(-count * bits // 8)


def _external(tensor: "onnx.TensorProto", dtype: np.dtype, shape: tuple[int, ...], folder: Path | None) -> np.ndarray:
    import onnx

    entries = {item.key: item.value for item in tensor.external_data}
    where, location = f"tensor {tensor.name!r}", entries.get("location", "")
    if folder is None:
        raise FileFormatError(
            f"{where}: its data lies in the file {brief(location)}; load the model from a path, not from bytes"
        )
    try:
        needed = _stored_bytes(tensor.data_type, dtype, math.prod(shape))
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", needed))
    except ValueError:
        raise FileFormatError(f"{where}: offset and length of its external data are not numbers") from None
    try:
        with _opened(where, location, folder) as file:
            size = os.fstat(file.fileno()).st_size
            if length != needed or offset < 0 or offset + needed > size:
                raise FileFormatError(
                    f"{where}: needs {counted(needed, 'byte')} at offset "
                    f"{offset} of {brief(location)} ({length} declared), "
                    f"the file has {size}"
                )
            file.seek(offset)
            content = file.read(needed)
    except OSError as error:
        raise FileFormatError(f"{where}: its data file {brief(location)} cannot be read ({error.strerror})") from None
    if needed != math.prod(shape) * dtype.itemsize:
        stored = onnx.TensorProto(data_type=tensor.data_type, dims=shape, raw_data=content)
        return onnx.numpy_helper.to_array(stored)
    return np.frombuffer(content, dtype).reshape(shape)


def _opened(where: str, location: str, folder: Path) -> IO[bytes]:
    """A file of external data: a plain one, in the model's folder by its path, its links and its other names."""
    what = f"{where}: its data file {brief(location)}"
    if "\0" in location:
        raise FileFormatError(f"{what} is no path; the file is damaged")
    path = (folder / location).resolve()
    if not location or Path(location).is_absolute() or not path.is_relative_to(folder):
        raise FileFormatError(f"{what} lies outside the model's folder; refused")
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise FileFormatError(f"{what} is no plain file; refused")
    if found.st_nlink > 1 and _names_below(folder, found) < found.st_nlink:
        raise FileFormatError(
            f"{what} has other names (hard links) outside the model's folder, so it may be any file of this machine; "
            "refused. If you trust it, put a copy in its place"
        )
    return path.open("rb")


def _names_below(folder: Path, wanted: os.stat_result) -> int:
    """How many names in a folder and its subfolders (the first thousands) stand for a file."""
    entries = (Path(base, name) for base, _, names in os.walk(folder) for name in names)
    return sum(os.path.samestat(path.lstat(), wanted) for path in itertools.islice(entries, MAX_NAMES))
