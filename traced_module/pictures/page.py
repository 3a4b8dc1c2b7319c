"""An interactive HTML page of a model: submodules open in place, with search, costs and provenance at the side.

The page loads nothing and needs no network. Names may come from files: they are stored as JSON without any markup, the
script writes them as text only, and the policy of the page allows no other script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
from megengine.traced_module.pictures.boxes import called_name, spec_text
from megengine.traced_module.pictures.drawing import kind
from megengine.traced_module.pictures.hierarchy import Item, results, sheet_of
from megengine.traced_module.pictures.summary import Costs, Weights, sizes
from megengine.traced_module.pictures.texts import shortened
from megengine.traced_module.traced import TracedModule

LONGEST_TEXT, MOST_SCALES = 1000, 8
PARTS, DATA = ("page.html", "overview.js", "page.js"), "@DATA@"
Details = list[tuple[str, str]]


@nests()
def to_html(model: TracedModule | InternalGraph) -> str:
    """A self-contained page of all graphs of a model, of calls or of ops.

    Raises:
        GraphError: the model has no graph.

    Example:
        >>> Path("net.html").write_text(to_html(traced), encoding="utf-8")  # doctest: +SKIP
    """
    roots = model.graphs if isinstance(model, TracedModule) else (model,)
    if not roots:
        raise GraphError("to_html: the module has no graph; expected one that trace_module, lower or a file gave")
    return viewer()[0].replace(DATA, embedded(page_data(roots)), 1)


def viewer(more: Sequence[str] = ()) -> tuple[str, str]:
    """The page, with `DATA` in the place of its data, and the hash of its script for a policy.

    `more` are files of script for other pages that are built on it.
    """
    page, *scripts = ((Path(__file__).parent / name).read_text(encoding="utf-8") for name in (*PARTS, *more))
    script = "".join(scripts)
    allowed = hash_of(script)
    return page.replace("@SCRIPT_HASH@", allowed, 1).replace("@SCRIPT@", script, 1), allowed


def hash_of(script: str) -> str:
    """The hash that allows an inline script in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def embedded(value: Any) -> str:
    """JSON for a script element: ASCII, without characters that have a meaning in HTML."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page_data(roots: Sequence[InternalGraph], places: Mapping[int, int] | None = None) -> dict[str, Any]:
    """The data of the page: every sheet once, with boxes in rows and columns, and edges between their indices.

    With `places`, of expressions by identity, each box lists those of what it shows.
    """
    todo = [(sheet_of(graph), Costs(graph)) for graph in roots]
    macs, weights = todo[0][1].total(roots[0])
    index = {id(sheet): number for number, (sheet, _) in enumerate(todo)}
    graphs: list[dict[str, Any]] = []
    for sheet, costs in todo:  # grows while it is walked
        for item in sheet.items:
            if item.inside is not None and id(item.inside) not in index:
                index[id(item.inside)] = len(index)
                todo.append((item.inside, costs))
        returned = sheet.returned()
        nodes = []
        for number, item in enumerate(sheet.items):
            place = {"row": item.row, "column": item.column, "output": number in returned}
            opened = None if item.inside is None else index[id(item.inside)]
            node = {**_box(item, costs), **place, "graph": opened}
            if places is not None:
                node["exprs"] = [places[id(e)] for e in item.made or (item.source,) if id(e) in places]
            nodes.append(node)
        graphs.append({"name": _text(sheet.name), "nodes": nodes, "edges": sheet.edges})
    elements, stored = sizes(weights)
    totals = f"{counted(elements, 'parameter', spec=',')} ({stored / 1e6:.2f} MB), {macs:,} MACs"
    details = [("inputs", _interface(roots[0].inputs)), ("outputs", _interface(roots[0].outputs))]
    details += [("parameters", f"{elements:,} ({stored / 1e6:.2f} MB)"), ("MACs", f"{macs:,}")]
    details += [("FLOPs", f"{2 * macs:,}"), ("boxes", f"{sum(len(g['nodes']) for g in graphs):,}")]
    name = _text(roots[0].name)
    return {"name": name, "totals": totals, "details": details, "roots": list(range(len(roots))), "graphs": graphs}


def _interface(nodes: Sequence[Any]) -> str:
    return _text(_lines(n for n in nodes if isinstance(n, TensorNode)))


def _lines(nodes: Iterable[TensorNode]) -> str:
    return "\n".join(f"{n.name}: {spec_text(n)}" for n in nodes)


def _box(item: Item, costs: Costs) -> dict[str, Any]:
    """The box of an expression, of a value from outside of the sheet, or of a fold."""
    expr, outside = item.shown, item.source is not None
    weights = {key: size for e in item.made for key, size in costs.weights(e).items()}
    macs = sum(costs.macs(e) or 0 for e in item.made) if item.expr is None else costs.macs(item.expr)
    if outside:
        details = [("made by", repr(expr))]
    else:
        details = _fold_details(item, macs, weights) if expr is None else _details(expr, macs, weights)
    return {
        "title": "from" if outside else _text(item.title if expr is None else called_name(expr)),
        "name": f"({len(item.made):,})" if expr is None else _text(expr.name),
        "qualname": _text(expr.outputs[0].qualname if expr is not None and expr.outputs else ""),
        "path": _text(item.title if expr is None else module_path(expr)),
        "kind": kind(item),
        "outside": outside,
        "spec": _text(", ".join(map(spec_text, results(item)))),
        "macs": macs or 0,
        "parameters": sizes(weights)[0],
        "details": [(label, _text(value)) for label, value in details if value],
    }


def _fold_details(item: Item, macs: int | None, weights: Weights) -> Details:
    counts = Counter(map(called_name, item.made)).most_common()
    return [
        ("results", _lines(results(item))),
        ("holds", f"{len(item.made):,}: " + ", ".join(f"{count} {name}" for name, count in counts)),
        *_cost_lines(macs, weights),
    ]


def _cost_lines(macs: int | None, weights: Weights) -> Details:
    size = sizes(weights)
    return [
        ("parameters", f"{size[0]:,} ({size[1] / 1e3:,.1f} kB)" if size[0] else ""),
        ("MACs", "not known without real values" if macs is None else f"{macs:,}" if macs else ""),
        ("FLOPs", f"{2 * macs:,}" if macs else ""),
    ]


def _details(expr: Expr, macs: int | None, weights: Weights) -> Details:
    tensors = [n for n in expr.inputs if isinstance(n, TensorNode)]
    path, source, passes = provenance(expr)
    details: Details = [
        ("results", _lines(expr.outputs)),
        ("inputs", _lines(n for n in tensors if not isinstance(n.expr, (Constant, GetAttr)))),
        ("weights", _weights(expr, tensors)),
        *_cost_lines(macs, weights),
        ("module", module_path(expr)),
        ("path of the value", path),
        ("source", source),
        ("passes", ", ".join(passes)),
        ("expression", repr(expr).replace("\t", " ")),
    ]
    quantized = [(n.name, n.spec.dtype) for n in (*tensors, *expr.outputs)]
    details[6:6] = [(f"quantized {name}", _quantization(d)) for name, d in quantized if isinstance(d, QuantizedDType)]
    return details


def _weights(expr: Expr, tensors: Sequence[TensorNode]) -> str:
    lines = [f"{n.name}: {spec_text(n)}" for n in tensors if isinstance(n.expr, (Constant, GetAttr))]
    if is_call_module(expr) and child_graph(expr) is None:
        lines += [f"{name}: {spec_text(value)}" for name, value in expr.inputs[0].owner.named_tensors()]
    return "\n".join(lines)


def _quantization(dtype: QuantizedDType) -> str:
    lines = [f"{dtype.name}, stored as {dtype.storage} in [{dtype.qmin}, {dtype.qmax}]"]
    if isinstance(dtype.scale, tuple):
        some = ", ".join(f"{s:.6g}" for s in dtype.scale[:MOST_SCALES])
        more = ", …" if len(dtype.scale) > MOST_SCALES else ""
        ends = f"{min(dtype.scale, default=math.nan):.6g} to {max(dtype.scale, default=math.nan):.6g}"
        lines.append(f"{counted(len(dtype.scale), 'scale')} along axis {dtype.axis}: {ends}\n{some}{more}")
    else:
        lines.append(f"scale {dtype.scale:.9g}")
    return "\n".join([*lines, f"zero point {dtype.zero_point}"])


def _text(text: str) -> str:
    return shortened(text, LONGEST_TEXT)
