"""One HTML page of a model to look around in: submodules open in place, search, costs and provenance at the side.

The page loads nothing and needs no network. Names may come from files: they travel as JSON in which no markup can
stand, the script writes them as text only, and the page's policy runs no script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import GraphError
from megengine.traced_module.drawing import called_name, kind_of, layout, printable
from megengine.traced_module.expr import Constant, Expr, GetAttr, is_call_module
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.node import TensorNode
from megengine.traced_module.queries import child_graph
from megengine.traced_module.summary import Costs, module_path
from megengine.traced_module.traced import TracedModule

LONGEST_TEXT, MOST_SCALES = 1000, 8
Details = list[tuple[str, str]]


def to_html(model: TracedModule | InternalGraph) -> str:
    """A self-contained page of all graphs of a model, at either level.

    Raises:
        GraphError: the model has no graph.

    Example:
        >>> Path("net.html").write_text(to_html(traced), encoding="utf-8")  # doctest: +SKIP
    """
    roots = model.graphs if isinstance(model, TracedModule) else (model,)
    if not roots:
        raise GraphError("to_html: the module has no graph; expected one that trace_module, lower or a file gave")
    folder = Path(__file__).parent
    script = (folder / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = (folder / "page.html").read_text(encoding="utf-8")
    filled = {"@SCRIPT_HASH@": f"sha256-{digest}", "@SCRIPT@": script, "@DATA@": embedded(page_data(roots))}
    for place, text in filled.items():  # the data last: what stands in it is not looked at again
        page = page.replace(place, text, 1)
    return page


def embedded(value: Any) -> str:
    """JSON that can stand in a script element: ASCII, without any character that HTML gives a meaning."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page_data(roots: Sequence[InternalGraph]) -> dict[str, Any]:
    """What the page shows: graphs, each once, with nodes in rows and columns, and edges between their indices."""
    costs = [Costs(graph) for graph in roots]
    index: dict[int, int] = {}
    graphs: list[dict[str, Any]] = []
    todo = list(zip(roots, costs, strict=True))
    for graph, _ in todo:
        index[id(graph)] = len(index)
    for graph, cost in todo:  # grows while it is walked
        for child in graph.child_graphs():
            if id(child) not in index:
                index[id(child)] = len(index)
                todo.append((child, cost))
        graphs.append(_graph(graph, cost, index))
    macs, weights = costs[0].total()
    counted, stored = (sum(w[i] for w in weights.values()) for i in (0, 1))
    totals = f"{counted:,} parameters ({stored / 1e6:.2f} MB), {macs:,} MACs"
    details = [("inputs", _interface(roots[0].inputs)), ("outputs", _interface(roots[0].outputs))]
    details += [("parameters", f"{counted:,} ({stored / 1e6:.2f} MB)"), ("MACs", f"{macs:,}")]
    details += [("FLOPs", f"{2 * macs:,}"), ("graphs", str(len(graphs)))]
    name = _text(roots[0].name)
    return {"name": name, "totals": totals, "details": details, "roots": list(range(len(roots))), "graphs": graphs}


def _interface(nodes: Sequence[Any]) -> str:
    return _text("\n".join(f"{n.name}: {_spec(n)}" for n in nodes if isinstance(n, TensorNode)))


def _graph(graph: InternalGraph, costs: Costs, index: dict[int, int]) -> dict[str, Any]:
    boxes = layout(graph)
    numbers = {key: i for i, key in enumerate(boxes)}
    nodes = [_node(box.expr, box.row, box.column, costs, index) for box in boxes.values()]
    edges = [
        (numbers[id(n.expr)], i) for i, box in enumerate(boxes.values()) for n in box.expr.inputs if id(n.expr) in boxes
    ]
    return {"name": _text(graph.qualname), "nodes": nodes, "edges": list(dict.fromkeys(edges))}


def _node(expr: Expr, row: int, column: int, costs: Costs, index: dict[int, int]) -> dict[str, Any]:
    child = child_graph(expr)
    return {
        "title": _text(called_name(expr)),
        "name": _text(expr.name),
        "qualname": _text(expr.outputs[0].qualname if expr.outputs else ""),
        "path": _text(module_path(expr)),
        "kind": kind_of(expr),
        "spec": _text(", ".join(map(_spec, expr.outputs))),
        "row": row,
        "column": column,
        "graph": None if child is None else index[id(child)],
        "output": any(n is o for n in expr.outputs for o in expr.graph.outputs),
        "details": [(label, _text(value)) for label, value in _details(expr, costs) if value],
    }


def _details(expr: Expr, costs: Costs) -> Details:
    tensors = [n for n in expr.inputs if isinstance(n, TensorNode)]
    weights, macs = costs.weights(expr), costs.macs(expr)
    count, stored = (sum(w[i] for w in weights.values()) for i in (0, 1))
    passes = expr.meta.get("passes") or ()
    found: Details = [
        ("results", "\n".join(f"{n.name}: {_spec(n)}" for n in expr.outputs)),
        ("inputs", "\n".join(f"{n.name}: {_spec(n)}" for n in tensors if not isinstance(n.expr, (Constant, GetAttr)))),
        ("weights", _weights(expr, tensors)),
        ("parameters", f"{count:,} ({stored / 1e3:,.1f} kB)" if count else ""),
        ("MACs", "not known without real values" if macs is None else f"{macs:,}" if macs else ""),
        ("FLOPs", f"{2 * macs:,}" if macs else ""),
        ("module", module_path(expr)),
        ("path of the value", expr.outputs[0].qualname if expr.outputs else ""),
        ("source", str(expr.meta.get("source") or "")),
        ("passes", passes if isinstance(passes, str) else ", ".join(map(str, passes))),
        ("expression", repr(expr).replace("\t", " ")),
    ]
    quantized = [(n.name, n.spec.dtype) for n in (*tensors, *expr.outputs)]
    found[6:6] = [(f"quantized {name}", _quantization(d)) for name, d in quantized if isinstance(d, QuantizedDType)]
    return found


def _weights(expr: Expr, tensors: Sequence[TensorNode]) -> str:
    lines = [f"{n.name}: {_spec(n)}" for n in tensors if isinstance(n.expr, (Constant, GetAttr))]
    if is_call_module(expr) and child_graph(expr) is None:
        values = expr.inputs[0].owner.named_tensors()
        lines += [f"{name}: {_shape(value.spec.shape)} {value.spec.dtype}" for name, value in values]
    return "\n".join(lines)


def _quantization(dtype: QuantizedDType) -> str:
    lines = [f"{dtype.name}, stored as {dtype.storage} in [{dtype.qmin}, {dtype.qmax}]"]
    if isinstance(dtype.scale, tuple):
        some = ", ".join(f"{s:.6g}" for s in dtype.scale[:MOST_SCALES])
        more = ", …" if len(dtype.scale) > MOST_SCALES else ""
        low, high = min(dtype.scale, default=math.nan), max(dtype.scale, default=math.nan)
        lines.append(f"{len(dtype.scale)} scales along axis {dtype.axis}: {low:.6g} to {high:.6g}\n{some}{more}")
    else:
        lines.append(f"scale {dtype.scale:.9g}")
    return "\n".join([*lines, f"zero point {dtype.zero_point}"])


def _spec(node: TensorNode) -> str:
    return f"{_shape(node.spec.shape)} {node.spec.dtype}"


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _text(text: str) -> str:
    text = printable(text)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
