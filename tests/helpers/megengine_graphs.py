"""Graphs that MegEngine 1.13 wrote, and the listing of a graph in the form in which it listed them."""

import importlib.util
import re
from pathlib import Path

import numpy as np

from megengine.core.dtype import storage_of
from megengine.tensor import tensor
from megengine.traced_module import CallFunction, CallMethod, GetAttr, TracedModule, trace_module
from megengine.traced_module.ir.queries import child_graphs

DATA = Path(__file__).parent.parent / "data" / "megengine" / "graphs"
NETS = {"call_mix": "CallMix", "multi_io": "MultiIO", "res_plain": "ResPlain", "res_fused": "ResFused"}
# traced modules that it wrote
FILES = [
    *("call_mix", "call_mix_flat", "multi_io", "multi_io_flat", "res_plain", "res_plain_flat", "res_plain_opt"),
    *("res_fused", "res_fused_flat", "res_fused_qat", "res_fused_qat_flat", "res_fused_q", "res_fused_q_flat"),
]
# MegEngine's graph reads the output of a dropout that returned its argument unchanged where the model reads the
# argument itself: a wrong edge, not copied.
CORRECTED = {("math.argmax(drop_out, -1", "math.argmax(softmax_out, -1")}


def nets():
    spec = importlib.util.spec_from_file_location("megengine_nets", DATA / "nets.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs_of(name: str) -> list[np.ndarray]:
    with np.load(DATA / f"{name}.npz") as stored:
        return [stored[k] for k in sorted(stored.files) if k.startswith("in")]


def traced(name: str) -> TracedModule:
    net = getattr(nets(), NETS[name])().eval()
    return trace_module(net, *map(tensor, inputs_of(name)))


def _node(node) -> str:
    if hasattr(node, "spec"):
        dtype = storage_of(node.dtype).name  # the listings name the stored type
        what = f"shape={node.spec.shape} dtype={dtype}"
    else:
        what = f"module:{node.module_type.__module__}.{node.module_type.__qualname__}"
    return f"{node.id}\t{node.name}\t{node.qualname}\t{what}\tusers={len(node.users)}"


def _callee(expr) -> str:
    if isinstance(expr, CallFunction):
        return expr.qualified
    if isinstance(expr, CallMethod):
        return expr.method
    return expr.name if isinstance(expr, GetAttr) else getattr(expr, "op", "")


def listing(module: TracedModule) -> list[str]:
    """The text of a `.nodes.txt` file: the printed graph, then every graph's expressions and nodes."""
    lines = [*repr(module.graph).split("\n"), ""]
    todo, seen = [module.graph], set()
    while todo:
        graph = todo.pop(0)
        if id(graph) in seen:
            continue
        seen.add(id(graph))
        lines.append(f"graph\t{graph.name}\t{graph.qualname}")
        lines += [f"  input\t{_node(n)}" for n in graph.inputs]
        for expr in graph.exprs(recursive=False):
            lines.append(f"  expr\t{expr.id}\t{type(expr).__name__}\t{_callee(expr)}")
            lines += [f"    node\t{_node(n)}" for n in expr.outputs]
        lines.append(f"  outputs\t{', '.join(n.name for n in graph.outputs)}")
        todo = [*child_graphs(graph), *todo]
    return lines


def wanted(file: str) -> list[str]:
    lines = (DATA / f"{file}.nodes.txt").read_text().rstrip("\n").split("\n")
    return [line for line in lines if not line.startswith("#")]


def without_ids(lines: list[str]) -> list[str]:
    return [re.sub(r"%\d+:|(?<=expr\t)\d+|(?<=node\t)\d+|(?<=input\t)\d+", "", line).rstrip() for line in lines]


def check(module: TracedModule, file: str, corrected: set[str] = frozenset(), corrected_edge: bool = True) -> None:
    got, want = listing(module), wanted(file)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        for theirs, ours in CORRECTED if corrected_edge else ():
            w = w.replace(theirs, ours)
        if g != w and any(w.startswith(f"    node\t{i}\t") for i in corrected):
            g, w = g.rpartition("users=")[0], w.rpartition("users=")[0]
        assert g.rstrip() == w.rstrip()


def leaves(result):
    from megengine.core.pytree import flatten

    return flatten(result)[0]
