"""The native format of traced modules and of graphs of ops, float or integer. It holds no code.

A zip of graph.json and weights.safetensors. graph.json is versioned, in a stable order, one expression a line, so that
two files can be compared as text. Version 1 holds a graph of ops, version 2 a traced module with all its submodules.
"""

from __future__ import annotations

import itertools
import json
import math
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from megengine.core.collecting import collect_recent, collection_paused
from megengine.core.dtype import QuantizedDType, bfloat16
from megengine.core.errors import FileFormatError, MegEngineError, brief, nearest_file
from megengine.core.pytree import unflatten
from megengine.core.sizes import OpenSize
from megengine.dispatch.refusal import kinds_named
from megengine.kernels.cuda.placing import host
from megengine.serialization.arrays import packed
from megengine.serialization.files import ARCHIVES, SUFFIXES
from megengine.traced_module.bodies import DEEPEST, Body, bodies_of
from megengine.traced_module.editing.computed import digest_of
from megengine.traced_module.formats import module_reading, module_writing
from megengine.traced_module.formats.archives import read_archive, write_archive
from megengine.traced_module.formats.values import (
    ValueReader,
    ValueWriter,
    dtype_in,
    dtype_out,
    lengths_out,
    size_in,
    size_out,
)
from megengine.traced_module.ir.expr import Apply, Constant, Expr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.tracing.entry import lower

FORMAT = "megengine-graph"
OPS_VERSION, MODULE_VERSION = 1, 2
GRAPH = "graph.json"


@collection_paused()
@kinds_named
def save(model: TracedModule | InternalGraph, path: str | Path) -> None:
    """Write a traced module or a graph; an old file is replaced only when the new one is complete.

    A traced module is kept whole: submodules and their graphs, names, ids and provenance, layers with their state
    (those of quantization too), and which layers and tensors are shared. A graph of calls alone is lowered.

    Args:
        model: a traced module, or a graph of ops, float or integer.
        path: file to write, usually `.mgt`.

    Raises:
        WriteError: the path cannot be written.
        FileFormatError: the model holds a value that the format cannot hold.

    Example:
        >>> save(traced, "net.mgt")  # doctest: +SKIP
    """
    graphs = model.graphs if isinstance(model, TracedModule) else (model,)
    of_ops = len(graphs) == 1 and graphs[0].arguments is None and not graphs[0].of_calls
    if isinstance(model, TracedModule) and not of_ops:
        text, arrays = module_writing.describe(model, {"format": FORMAT, "version": MODULE_VERSION})
        packing = zipfile.ZIP_STORED  # a small file must not unpack to a large one
    else:
        graph = lower(model).graph
        arrays = dict(_arrays(graph, ""))
        text, packing = _graph_text(graph), zipfile.ZIP_DEFLATED
    write_archive(Path(path), GRAPH, text, arrays, packing)


@kinds_named
def load(path: str | Path, *, allow: Sequence[type] = ()) -> TracedModule:
    """Read a file of `save`; nothing in the file is run.

    Every op is inferred again, and an impossible one is refused. Shapes of calls are taken from the file
    (`graph.lint()` compares them).

    Args:
        path: the file.
        allow: classes of layers and named tuples of yours that the file may hold.

    Raises:
        FileFormatError: no such file, truncated, not of this format, of a newer version, or inconsistent; or it names
            a class, function or op that is unknown. The message says which.
    """
    path = Path(path)
    collect_recent()
    try:
        with path.open("rb") as file:
            return read(file, str(path), allow=allow)
    except OSError as error:
        absent = isinstance(error, FileNotFoundError)
        reason = f"no such file{nearest_file(path)}" if absent else f"cannot be read ({error.strerror})"
        raise FileFormatError(f"{path}: {reason}") from None


@collection_paused()
def read(file: IO[bytes], path: str, *, allow: Sequence[type] = ()) -> TracedModule:
    """Read an open, seekable file; `path` is its name in messages. Raises as `load`."""
    described, arrays = read_archive(file, path, GRAPH)
    try:
        version = _version(described)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from None
    try:
        if version == MODULE_VERSION:
            return module_reading.rebuild(described, arrays, allow)
        return TracedModule.from_graph(_ops_graph(described, arrays))
    except (
        *(MegEngineError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError),
        *(RecursionError, MemoryError),
    ) as error:
        raise FileFormatError(f"{path}: its graph is not consistent ({str(error)[:500]})") from error


def _version(described: Any) -> int:
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        stated = described.get("format") if isinstance(described, dict) else described
        raise FileFormatError(f"format is {brief(stated)}; expected {FORMAT!r}")
    version = described.get("version")
    if version not in (OPS_VERSION, MODULE_VERSION):
        known = f"this program reads versions {OPS_VERSION} and {MODULE_VERSION}"
        newer = type(version) is int and version > MODULE_VERSION
        remedy = "; the file was written by a newer megengine: upgrade, or save it there in an older format"
        raise FileFormatError(f"version is {brief(version)}; {known}{remedy if newer else ''}")
    return version


# ---------------------------------------------------------------- writing


def _arrays(graph: InternalGraph, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    """Constants of a graph and of those that its ops run, by the names under which they are stored."""
    for expr in graph.exprs():
        if isinstance(expr, Constant):
            yield f"{prefix}{expr.name}", _plain_storage(expr)
        for name, body in bodies_of(expr):
            yield from _arrays(body.graph, f"{prefix}{expr.name}.{name}.")


def _ends(graph: InternalGraph) -> dict[str, Any]:
    return {"name": graph.name, "inputs": [n.name for n in graph.inputs], "outputs": [n.name for n in graph.outputs]}


def _result(graph: InternalGraph) -> dict[str, Any]:
    """How the outputs nest in what a call returns; nothing for one value, a tuple of them, and objects of a class."""
    if graph.out_def is None or graph.out_def.num_leaves != len(graph.outputs):
        return {}
    made = unflatten(graph.out_def, graph.outputs)
    if made is graph.outputs[0] or (len(graph.outputs) > 1 and made == tuple(graph.outputs)):
        return {}
    try:
        return {"result": ValueWriter().value(_plain(made), graph.name)}
    except FileFormatError:
        return {}


def _plain(value: Any) -> Any:
    """A nested result with named tuples as tuples: reading it needs no class of the user's."""
    if isinstance(value, dict):  # an OrderedDict keeps the order of its leaves, which those of a dict do not
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind((key, _plain(item)) for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return (list if isinstance(value, list) else tuple)(map(_plain, value))
    if value is None or isinstance(value, (TensorNode, bool, int, float, str)):
        return value
    raise FileFormatError(f"a result holds a {type(value).__name__}")


def digest(graph: InternalGraph) -> str:
    """Equal for op-level graphs with the same ops, names and constants, whatever their name and metadata."""
    ends = {name: names for name, names in _ends(graph).items() if name != "name"}
    text = json.dumps([ends, *(_describe(e) for e in graph.exprs())], allow_nan=False)
    return digest_of([(text, np.zeros(0, np.uint8)), *_arrays(graph, "")])


def _graph_text(graph: InternalGraph) -> str:
    head = {
        "format": FORMAT,
        "version": OPS_VERSION,
        **_ends(graph),
        **_result(graph),
        **({"metadata": module_writing.texts(graph.metadata)} if graph.metadata else {}),
    }
    lines = [json.dumps(_describe(e), allow_nan=False) for e in graph.exprs()]
    return json.dumps(head, allow_nan=False)[:-1] + ',\n"exprs": [\n' + ",\n".join(lines) + "\n]}\n"


def _describe(expr: Expr) -> dict[str, Any]:
    outputs = [
        {"name": n.name, "shape": lengths_out(n.spec.shape), "dtype": dtype_out(n.spec.dtype)} for n in expr.outputs
    ]
    described: dict[str, Any] = {"kind": expr.kind, "outputs": outputs}
    if isinstance(expr, Apply):
        described["op"] = expr.op
        described["inputs"] = [n.name for n in expr.inputs]
        described["attrs"] = {key: _value_out(expr, key, value) for key, value in expr.attrs.items()}
    if meta := {key: value for key, value in expr.meta.items() if _is_text(value)}:
        described["meta"] = meta
    return described


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _plain_storage(expr: Constant) -> np.ndarray:
    value = host(expr.value._storage())
    array = np.ascontiguousarray(value).reshape(value.shape)  # ascontiguousarray gives a scalar an axis
    dtype = expr.value.dtype
    if isinstance(dtype, QuantizedDType) and dtype.bits == 4:
        return packed(array)
    return array.view(np.uint16) if array.dtype == bfloat16 else array


def _value_out(expr: Apply, key: str, value: Any) -> Any:
    """JSON for an attribute: tuples are lists, and values that JSON lacks are objects with one tag."""
    if isinstance(value, OpenSize):
        return size_out(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, (tuple, list)):
        return [_value_out(expr, key, item) for item in value]
    if isinstance(value, (np.dtype, QuantizedDType)):
        return {"dtype": dtype_out(value)}
    if isinstance(value, Body):
        return {"graph": {**_ends(value.graph), "exprs": list(map(_describe, value.graph.exprs()))}}
    raise FileFormatError(f"{expr!r}: attribute {key!r} is {type(value).__name__}, which the file format does not hold")


# ---------------------------------------------------------------- reading


def _ops_graph(
    described: dict[str, Any], arrays: dict[str, np.ndarray], prefix: str = "", depth: int = 0
) -> InternalGraph:
    """The graph of a file of version 1: its expressions have no ids, its nodes neither ids nor qualnames.

    Graphs that ops run are in their attributes, with arrays of names that begin with `prefix`.
    """
    if depth > DEEPEST:
        raise FileFormatError(f"graphs are nested deeper than {DEEPEST}")
    reader = module_reading.ModuleReader(ValueReader(arrays), [])
    ids, exprs = itertools.count(), []
    for ident, item in enumerate(described["exprs"]):
        outputs = [{**o, "id": next(ids), "qualname": f"{described['name']}.[{o['name']}]"} for o in item["outputs"]]
        meta = {key: value for key, value in item.get("meta", {}).items() if _is_text(value)}
        expr = {**item, "id": ident, "outputs": outputs, "meta": meta}
        if item["kind"] == Constant.kind:
            expr["value"] = len(reader.values.tensors)
            shape, dtype = outputs[0]["shape"], outputs[0]["dtype"]
            reader.values.add_tensor({"array": f"{prefix}{outputs[0]['name']}", "dtype": dtype, "shape": shape})
        elif item["kind"] == Apply.kind:
            below = f"{prefix}{outputs[0]['name']}."
            expr["attrs"] = {
                key: Body(_ops_graph(value["graph"], arrays, f"{below}{key}.", depth + 1))
                if isinstance(value, dict) and "graph" in value
                else _value_in(value)
                for key, value in item["attrs"].items()
            }
        elif item["kind"] != Input.kind:
            raise FileFormatError(f"{outputs[0]['name']!r} is of the unknown kind {item['kind']!r}")
        exprs.append(expr)
    graph = reader.graph({**described, "qualname": described["name"], "exprs": exprs}, None)
    graph.journal.next_node, graph.journal.next_expr = next(ids), len(exprs)
    return graph


def _value_in(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value_in(item) for item in value)
    if isinstance(value, dict) and "open" in value:
        return size_in(value["open"])
    if isinstance(value, dict):
        return float(value["float"]) if "float" in value else dtype_in(value["dtype"])
    return value


SUFFIXES[".mgt"] = save
ARCHIVES[GRAPH] = read
