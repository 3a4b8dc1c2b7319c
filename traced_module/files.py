"""Our own format of op-level graphs, float or integer: a zip of graph.json and weights.safetensors, no code in it.

graph.json is versioned, in a stable order, one expression a line, so that two files can be compared as text.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.dtype import DType, QuantizedDType, as_dtype, bfloat16, quantized, storage_of
from megengine.core.errors import FileFormatError, MegEngineError
from megengine.core.spec import TensorSpec
from megengine.tensor import Tensor
from megengine.traced_module.expr import Apply, Constant, Expr, Input
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.node import TensorNode
from megengine.traced_module.traced import TracedModule, lower

FORMAT, VERSION = "megengine-graph", 1
GRAPH, WEIGHTS = "graph.json", "weights.safetensors"
MAX_GRAPH = 256 << 20  # bytes of graph.json after unpacking; weights are stored unpacked, so the file bounds them


def save(model: TracedModule | InternalGraph, path: str | Path) -> None:
    """Write a graph; an old file is replaced only when the new one is complete.

    Args:
        model: a graph of ops, float or integer.
        path: file to write, by custom `.mgt`.

    Raises:
        FileFormatError: the path cannot be written, or the graph holds a value that has no place in the format.

    Example:
        >>> save(traced, "net.mgt")  # doctest: +SKIP
    """
    from safetensors.numpy import save as pack

    graph = lower(model).graph
    weights = {e.name: _plain_storage(e) for e in graph.exprs() if isinstance(e, Constant)}
    text = _graph_text(graph)
    path = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
                archive.writestr(_entry(GRAPH, zipfile.ZIP_DEFLATED), text)
                archive.writestr(_entry(WEIGHTS, zipfile.ZIP_STORED), pack(weights))
            os.chmod(name, 0o644)
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written ({error.strerror})") from error


def load(path: str | Path) -> TracedModule:
    """Read a graph that `save` wrote. Every op is inferred again, so a file cannot hold an impossible graph.

    Raises:
        FileFormatError: no such file, truncated, not of this format, or inconsistent; the message says which.
    """
    from safetensors.numpy import load as unpack

    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            _check_entries(path, archive)
            described = json.loads(archive.read(GRAPH))
            weights = unpack(archive.read(WEIGHTS))
    except FileFormatError:
        raise
    except FileNotFoundError:
        raise FileFormatError(f"{path}: no such file") from None
    except Exception as error:  # zip, JSON and safetensors each have their own types
        raise FileFormatError(f"{path}: damaged or not a graph file ({error})") from error
    try:
        return TracedModule.from_graph(_Reader(described, weights).graph())
    except (MegEngineError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise FileFormatError(f"{path}: its graph is not consistent ({error})") from error


def _entry(name: str, compression: int) -> zipfile.ZipInfo:
    """An entry without a date: the same graph gives the same bytes."""
    info = zipfile.ZipInfo(name)
    info.compress_type = compression
    return info


def _check_entries(path: Path, archive: zipfile.ZipFile) -> None:
    entries = {info.filename: info for info in archive.infolist()}
    if set(entries) != {GRAPH, WEIGHTS}:
        raise FileFormatError(f"{path}: holds {sorted(entries)[:5]}; expected {GRAPH} and {WEIGHTS}")
    if entries[GRAPH].file_size > MAX_GRAPH:
        raise FileFormatError(f"{path}: {GRAPH} unpacks to {entries[GRAPH].file_size} bytes; refused")
    weights = entries[WEIGHTS]
    if weights.compress_type != zipfile.ZIP_STORED or weights.file_size > path.stat().st_size:
        raise FileFormatError(f"{path}: {WEIGHTS} is packed; expected it stored, so that its size is known")


# ---------------------------------------------------------------- writing


def _graph_text(graph: InternalGraph) -> str:
    head = {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "inputs": [n.name for n in graph.inputs],
        "outputs": [n.name for n in graph.outputs],
    }
    lines = [json.dumps(_describe(e), allow_nan=False) for e in graph.exprs()]
    return json.dumps(head, allow_nan=False)[:-1] + ',\n"exprs": [\n' + ",\n".join(lines) + "\n]}\n"


def _describe(expr: Expr) -> dict[str, Any]:
    made = [{"name": n.name, "shape": list(n.shape), "dtype": _dtype_out(n.spec.dtype)} for n in expr.outputs]
    found: dict[str, Any] = {"kind": expr.kind, "outputs": made}
    if isinstance(expr, Apply):
        found["op"] = expr.op
        found["inputs"] = [n.name for n in expr.inputs]
        found["attrs"] = {key: _value_out(expr, key, value) for key, value in expr.attrs.items()}
    if meta := {key: value for key, value in expr.meta.items() if _is_text(value)}:
        found["meta"] = meta
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _plain_storage(expr: Constant) -> np.ndarray:
    array = np.ascontiguousarray(expr.value._storage())
    return array.view(np.uint16) if array.dtype == bfloat16 else array


def _dtype_out(dtype: DType) -> Any:
    if isinstance(dtype, QuantizedDType):
        scale = list(dtype.scale) if isinstance(dtype.scale, tuple) else dtype.scale
        return {"name": dtype.name, "scale": scale, "zero_point": dtype.zero_point, "axis": dtype.axis}
    return dtype.name


def _value_out(expr: Apply, key: str, value: Any) -> Any:
    """JSON for an attribute; tuples are lists, and what JSON lacks is an object with one tag."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, (tuple, list)):
        return [_value_out(expr, key, item) for item in value]
    if isinstance(value, (np.dtype, QuantizedDType)):
        return {"dtype": _dtype_out(value)}
    raise FileFormatError(f"{expr!r}: attribute {key!r} is {type(value).__name__}, which the file format does not hold")


# ---------------------------------------------------------------- reading


class _Reader:
    """Rebuilds the graph through its own checks."""

    def __init__(self, described: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
        if described.get("format") != FORMAT:
            raise FileFormatError(f"format is {described.get('format')!r}; expected {FORMAT!r}")
        if described.get("version") != VERSION:
            raise FileFormatError(f"version is {described.get('version')!r}; this program reads version {VERSION}")
        self.described, self.weights = described, weights
        self.made = InternalGraph(str(described["name"]))
        self.nodes: dict[str, TensorNode] = {}

    def graph(self) -> InternalGraph:
        """The graph, with names and shapes compared with what the file states."""
        for item in self.described["exprs"]:
            self._expr(item)
        if [n.name for n in self.made.inputs] != self.described["inputs"]:
            raise FileFormatError("its list of inputs does not agree with its expressions")
        self.made.set_outputs([self.nodes[name] for name in self.described["outputs"]])
        return self.made

    def _expr(self, item: dict[str, Any]) -> None:
        stated = item["outputs"]
        nodes = self._nodes(item, stated[0])
        if len(nodes) != len(stated):
            raise FileFormatError(f"{stated[0]['name']!r} makes {len(nodes)} values; {len(stated)} are stated")
        for node, wanted in zip(nodes, stated, strict=True):
            if node.name != wanted["name"]:
                self.made.rename(node, wanted["name"])
            spec = TensorSpec(tuple(wanted["shape"]), _dtype_in(wanted["dtype"]))
            if node.spec != spec:
                raise FileFormatError(f"{node.name!r} is {node.spec}; the file states {spec}")
            self.nodes[node.name] = node

    def _nodes(self, item: dict[str, Any], first: dict[str, Any]) -> tuple[TensorNode, ...]:
        name, meta = first["name"], {key: value for key, value in item.get("meta", {}).items() if _is_text(value)}
        if item["kind"] == Input.kind:
            spec = TensorSpec(tuple(first["shape"]), _dtype_in(first["dtype"]))
            return (self.made.add_input(name, spec),)
        if item["kind"] == Constant.kind:
            return (self.made.constant(self._weight(first), name, meta=meta),)
        if item["kind"] != Apply.kind:
            raise FileFormatError(f"{name!r} is of the unknown kind {item['kind']!r}")
        inputs = [self.nodes[one] for one in item["inputs"]]
        attrs = {key: _value_in(value) for key, value in item["attrs"].items()}
        out = self.made.apply(item["op"], *inputs, attrs=attrs, name=name, meta=meta)
        return out if isinstance(out, tuple) else (out,)

    def _weight(self, stated: dict[str, Any]) -> Tensor:
        array, dtype = self.weights[stated["name"]], _dtype_in(stated["dtype"])
        array = array.view(bfloat16) if dtype == bfloat16 else array
        if array.dtype != storage_of(dtype):
            raise FileFormatError(f"{stated['name']!r} is stored as {array.dtype}; expected {storage_of(dtype)}")
        return Tensor._wrap(array, dtype)


def _dtype_in(value: Any) -> DType:
    if isinstance(value, dict):
        return quantized(value["name"], value["scale"], value["zero_point"], value["axis"])
    return as_dtype(value)


def _value_in(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value_in(item) for item in value)
    if isinstance(value, dict):
        return float(value["float"]) if "float" in value else _dtype_in(value["dtype"])
    return value
