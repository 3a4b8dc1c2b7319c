"""Write rules of ops that run graphs: If and Loop, whose graphs read what stands around them by name."""

from typing import Any

import numpy as np

from megengine.convert.onnx.writing import Writer, writer
from megengine.core.sizes import is_open
from megengine.traced_module.bodies import Body
from megengine.traced_module.ir.expr import Apply


def _inside(w: Writer, body: Body, outer: list[str]) -> Any:
    """The ONNX graph of a body whose last inputs are values around it."""
    graph = body.graph.clone()
    nodes = list(graph.nodes())
    captured = dict(zip(map(id, graph.inputs[len(graph.inputs) - len(outer) :]), outer, strict=True))
    wanted = [captured[id(node)] if id(node) in captured else w.free(node.name) for node in nodes]
    for number, node in enumerate(nodes):  # in two steps: a new name may be another node's old one
        graph.rename(node, w.free(f"renamed_{number}"))
    for node, name in zip(nodes, wanted, strict=True):
        graph.rename(node, name)
    assert w.write_graph is not None, w
    return w.write_graph(
        Writer(w.opset, taken=w.taken, write_graph=w.write_graph), graph, graph.inputs[: len(graph.inputs) - len(outer)]
    )


@writer("if")
def branches(w: Writer, expr: Apply) -> None:
    """If."""
    condition, *outer = map(w.value, expr.inputs)
    then, otherwise = (_inside(w, expr.attrs[name], outer) for name in ("then", "otherwise"))
    w.emit("If", expr, [condition], then_branch=then, else_branch=otherwise)


@writer("loop")
def rounds(w: Writer, expr: Apply) -> None:
    """Loop."""
    import onnx

    a, names = expr.attrs, list(map(w.value, expr.inputs))
    limit = names.pop(0) if a["limited"] else ""
    if is_open(a.get("rounds")):  # readers see that it follows from the sizes
        limit = w.add("Squeeze", [w.size(a["rounds"]), w.constant([0], "first", np.int64)], f"{limit}_open")
    elif limit and expr.inputs[0].dtype != "int64":
        limit = w.add("Cast", [limit], f"{limit}_wide", to=onnx.TensorProto.INT64)
    condition = names.pop(0) if a["asked"] else ""
    body = _inside(w, a["body"], names[a["states"] :])
    w.emit("Loop", expr, [limit, condition, *names[: a["states"]]], body=body)
