"""Capture at op level: run a function on values that only have specs, and write down every op it applies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from megengine.core import hooks
from megengine.core.pytree import flatten
from megengine.core.spec import TensorSpec
from megengine.dispatch import Interposer, Op, infer, interpose
from megengine.tensor import Tensor
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.node import TensorNode


class OpRecorder(Interposer):
    """Writes applied ops into a graph; tensors it has not seen become constants."""

    def __init__(self, graph: InternalGraph) -> None:
        self.graph = graph
        self.nodes: dict[int, TensorNode] = {}
        self.alive: list[Tensor] = []  # ids in `nodes` stay valid while the tensors live
        self.path: list[str] = []
        self.names: dict[int, str] = {}

    def bind(self, tensor: Tensor, node: TensorNode) -> None:
        """Remember that `tensor` is the value `node`."""
        self.nodes[id(tensor)] = node
        self.alive.append(tensor)

    def rebind(self, tensor: Tensor, new: Tensor) -> None:
        """Item assignment: the tensor stands for another node from now on."""
        self.bind(tensor, self.node_of(new))

    def node_of(self, tensor: Tensor) -> TensorNode:
        """The node of a tensor; a tensor from outside becomes a constant."""
        if id(tensor) not in self.nodes:
            name = self.names.get(id(tensor), "const_tensor")
            meta = {"module": ".".join(self.path), "parameter": name}
            self.bind(tensor, self.graph.constant(Tensor._wrap(tensor._storage(), tensor.dtype), name, meta=meta))
        return self.nodes[id(tensor)]

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        """Record one op and give back values that only have specs."""
        if not any(id(t) in self.nodes for t in tensors) and all(t._value is not None for t in tensors):
            return proceed()  # arithmetic on constants is done now
        inputs = [self.node_of(t) for t in tensors]
        path = ".".join(p for p in self.path if p)
        meta = {"module": path, "source": user_line()}
        name = f"{path}_{op.name}_out" if path else f"{op.name}_out"
        out = self.graph.apply(
            op.name, *inputs, attrs=attrs, name=name, meta=meta, qualname=f"{self.graph.name}.{path}.[{op.name}]"
        )
        made = [Tensor._deferred(n.spec) for n in (out if isinstance(out, tuple) else (out,))]
        for t, n in zip(made, out if isinstance(out, tuple) else (out,), strict=True):
            self.bind(t, n)
        specs = infer(op, [t.spec for t in tensors], attrs)
        return made[0] if isinstance(specs, TensorSpec) else tuple(made)


class ModulePath:
    """Trace hooks that only keep track of which module is running."""

    def __init__(self, recorder: OpRecorder, names: dict[int, str]) -> None:
        self.recorder = recorder
        self.names = names

    def function(self, record: Any, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        """Functions are recorded op by op."""
        return run()

    def module(self, module: Any, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        """Note the module's path while it runs."""
        self.recorder.path[:], before = [self.names.get(id(module), "")], list(self.recorder.path)
        try:
            return run()
        finally:
            self.recorder.path[:] = before

    def attribute(self, module: Any, name: str, value: Any) -> Any:
        """Attributes are read as they are."""
        return value


def user_line() -> str:
    """file:line of the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("megengine."):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def record(
    function: Callable[..., Any],
    specs: Sequence[TensorSpec],
    *,
    name: str = "graph",
    input_names: Sequence[str] = (),
    modules: dict[int, str] | None = None,
    parameters: dict[int, str] | None = None,
) -> InternalGraph:
    """Capture `function(*inputs)` as a flat graph. Outputs may be nested in tuples, lists and dicts."""
    graph = InternalGraph(name)
    recorder = OpRecorder(graph)
    recorder.names = parameters or {}
    inputs = []
    for i, spec in enumerate(specs):
        node = graph.add_input(input_names[i] if i < len(input_names) else f"input_{i}", spec)
        tensor = Tensor._deferred(spec)
        recorder.bind(tensor, node)
        inputs.append(tensor)
    token = hooks.active.set(ModulePath(recorder, modules or {}))
    try:
        with interpose(recorder):
            leaves, _ = flatten(function(*inputs))
    finally:
        hooks.active.reset(token)
    graph.set_outputs([recorder.node_of(t) for t in leaves if isinstance(t, Tensor)])
    graph.remove_dead()
    return graph
