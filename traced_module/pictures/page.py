"""One HTML page of a model to look around in: submodules open in place, search, costs and provenance at the side.

The page loads nothing and needs no network. Names may come from files: they travel as JSON in which no markup can
stand, the script writes them as text only, and the page's policy runs no script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import GraphError
from megengine.core.text import counted
from megengine.traced_module.ir.expr import Constant, Expr, GetAttr, is_call_module
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.provenance import module_path, provenance
from megengine.traced_module.ir.queries import child_graph
from megengine.traced_module.nesting import nests
from megengine.traced_module.pictures.boxes import called_name, kind_of
from megengine.traced_module.pictures.hierarchy import Item, Sheet, results, sheet_of
from megengine.traced_module.pictures.summary import Costs, Weights
from megengine.traced_module.pictures.texts import printable
from megengine.traced_module.traced import TracedModule

LONGEST_TEXT, MOST_SCALES = 1000, 8
PARTS, DATA = ("page.html", "overview.js", "page.js"), "@DATA@"
Details = list[tuple[str, str]]


@nests()
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
    return viewer()[0].replace(DATA, embedded(page_data(roots)), 1)


def viewer() -> tuple[str, str]:
    """The page with `DATA` where its data go, and the hash of its script as a policy names it."""
    page, *scripts = ((Path(__file__).parent / name).read_text(encoding="utf-8") for name in PARTS)
    script = "".join(scripts)
    allowed = hash_of(script)
    return page.replace("@SCRIPT_HASH@", allowed, 1).replace("@SCRIPT@", script, 1), allowed


def hash_of(script: str) -> str:
    """What allows an inline script in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def embedded(value: Any) -> str:
    """JSON that can stand in a script element: ASCII, without any character that HTML gives a meaning."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page_data(roots: Sequence[InternalGraph]) -> dict[str, Any]:
    """What the page shows: sheets, each once, with boxes in rows and columns, and edges between their indices."""
    todo = [(sheet_of(graph), Costs(graph)) for graph in roots]
    macs, weights = todo[0][1].total()
    index = {id(sheet): number for number, (sheet, _) in enumerate(todo)}
    graphs: list[dict[str, Any]] = []
    for sheet, costs in todo:  # grows while it is walked
        for item in sheet.items:
            if item.inside is not None and id(item.inside) not in index:
                index[id(item.inside)] = len(index)
                todo.append((item.inside, costs))
        graphs.append(_sheet(sheet, costs, index))
    elements, stored = _sizes(weights)
    totals = f"{counted(elements, 'parameter', spec=',')} ({stored / 1e6:.2f} MB), {macs:,} MACs"
    details = [("inputs", _interface(roots[0].inputs)), ("outputs", _interface(roots[0].outputs))]
    details += [("parameters", f"{elements:,} ({stored / 1e6:.2f} MB)"), ("MACs", f"{macs:,}")]
    details += [("FLOPs", f"{2 * macs:,}"), ("boxes", f"{sum(len(g['nodes']) for g in graphs):,}")]
    name = _text(roots[0].name)
    return {"name": name, "totals": totals, "details": details, "roots": list(range(len(roots))), "graphs": graphs}


def _interface(nodes: Sequence[Any]) -> str:
    return _text("\n".join(f"{n.name}: {_spec(n)}" for n in nodes if isinstance(n, TensorNode)))


def _sizes(weights: Weights) -> tuple[int, int]:
    """Elements and bytes."""
    return sum(w[0] for w in weights.values()), sum(w[1] for w in weights.values())


def _sheet(sheet: Sheet, costs: Costs, index: dict[int, int]) -> dict[str, Any]:
    returned = sheet.returned()
    nodes = []
    for number, item in enumerate(sheet.items):
        node = _expression(item, costs) if item.shown is not None else _fold(item, costs)
        place = {"row": item.row, "column": item.column, "output": number in returned}
        nodes.append({**node, **place, "graph": None if item.inside is None else index[id(item.inside)]})
    return {"name": _text(sheet.name), "nodes": nodes, "edges": sheet.edges}


def _expression(item: Item, costs: Costs) -> dict[str, Any]:
    """The box of an expression, or of a value that comes from outside of the sheet."""
    expr, outside = item.shown, item.source is not None
    assert expr is not None
    macs, weights = (0, {}) if outside else (costs.macs(expr), costs.weights(expr))
    details = [("made by", repr(expr))] if outside else _details(expr, macs, weights)
    return {
        "title": "from" if outside else _text(called_name(expr)),
        "name": _text(expr.name),
        "qualname": _text(expr.outputs[0].qualname if expr.outputs else ""),
        "path": _text(module_path(expr)),
        "kind": "input" if outside else "fold" if item.inside is not None else kind_of(expr),
        "outside": outside,
        "spec": _text(", ".join(map(_spec, expr.outputs))),
        "macs": macs or 0,
        "parameters": _sizes(weights)[0],
        "details": [(label, _text(value)) for label, value in details if value],
    }


def _fold(item: Item, costs: Costs) -> dict[str, Any]:
    """The box of expressions that stand together."""
    weights: Weights = {}
    for expr in item.made:
        weights |= costs.weights(expr)
    macs = sum(costs.macs(expr) or 0 for expr in item.made)
    made, sizes = results(item), _sizes(weights)
    called = Counter(map(called_name, item.made))
    details = [
        ("results", "\n".join(f"{n.name}: {_spec(n)}" for n in made)),
        ("holds", f"{len(item.made):,}: " + ", ".join(f"{count} {name}" for name, count in called.most_common())),
        *_cost_lines(macs, sizes),
    ]
    return {
        "title": _text(item.title),
        "name": f"({len(item.made):,})",
        "qualname": "",
        "path": _text(item.title),
        "kind": "fold",
        "outside": False,
        "spec": _text(", ".join(map(_spec, made))),
        "macs": macs,
        "parameters": sizes[0],
        "details": [(label, _text(value)) for label, value in details if value],
    }


def _cost_lines(macs: int | None, size: tuple[int, int]) -> Details:
    return [
        ("parameters", f"{size[0]:,} ({size[1] / 1e3:,.1f} kB)" if size[0] else ""),
        ("MACs", "not known without real values" if macs is None else f"{macs:,}" if macs else ""),
        ("FLOPs", f"{2 * macs:,}" if macs else ""),
    ]


def _details(expr: Expr, macs: int | None, weights: Weights) -> Details:
    tensors = [n for n in expr.inputs if isinstance(n, TensorNode)]
    path, source, passes = provenance(expr)
    found: Details = [
        ("results", "\n".join(f"{n.name}: {_spec(n)}" for n in expr.outputs)),
        ("inputs", "\n".join(f"{n.name}: {_spec(n)}" for n in tensors if not isinstance(n.expr, (Constant, GetAttr)))),
        ("weights", _weights(expr, tensors)),
        *_cost_lines(macs, _sizes(weights)),
        ("module", module_path(expr)),
        ("path of the value", path),
        ("source", source),
        ("passes", ", ".join(passes)),
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
        lines.append(
            f"{counted(len(dtype.scale), 'scale')} along axis {dtype.axis}: {low:.6g} to {high:.6g}\n{some}{more}"
        )
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
