"""Lowering: a module-level graph is run on values that only have specs, and every op it applies is written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from megengine.core import hooks
from megengine.core.errors import GraphError
from megengine.core.pytree import flatten
from megengine.core.sizes import is_open
from megengine.core.spec import TensorSpec
from megengine.dispatch import Interposer, Op, infer, interpose
from megengine.logger import get_logger
from megengine.random.rng import HOME
from megengine.tensor import Tensor
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.interpret import interpret
from megengine.traced_module.ir.end_names import keep_result_names, stored_result_names
from megengine.traced_module.ir.expr import SHAPE_OF, CallFunction, Expr
from megengine.traced_module.ir.functions import function_of
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import identifier, without_count
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.ir.provenance import FLOAT, graph_path, module_path
from megengine.traced_module.tracing.calls import alias, untouched
from megengine.traced_module.tracing.sized import Sized, sized_result


class OpRecorder(Interposer):
    """Writes applied ops into a graph; tensors it has not seen become constants."""

    holds_draws = False
    looks_inside = True

    def __init__(self, graph: InternalGraph) -> None:
        self.graph = graph
        self.nodes: dict[int, TensorNode] = {}
        self.alive: list[Tensor] = []  # ids in `nodes` stay valid while the tensors live
        self.meta: dict[str, Any] = {}
        self.names: dict[int, str] = {}

    def inputs(self, names: Sequence[str], specs: Sequence[TensorSpec]) -> list[Tensor]:
        """Inputs of the graph as tensors without values."""
        tensors = []
        for name, spec in zip(names, specs, strict=True):
            tensors.append(Tensor._deferred(spec))
            self.bind(tensors[-1], add_input(self.graph, name, spec))
        return tensors

    def finish(self, results: Sequence[Tensor], structure: Any) -> None:
        set_outputs(self.graph, [self.node_of(t) for t in results])
        self.graph.out_def = structure
        remove_dead(self.graph)

    def bind(self, tensor: Tensor, node: TensorNode) -> None:
        self.nodes[id(tensor)] = node
        self.alive.append(tensor)

    def rebind(self, tensor: Tensor, new: Tensor) -> None:
        """Item assignment: the tensor stands for another node from now on."""
        self.bind(tensor, self.node_of(new))

    def node_of(self, tensor: Tensor) -> TensorNode:
        """The node of a tensor; a tensor from outside becomes a constant."""
        if id(tensor) not in self.nodes:
            name = self.names.get(id(tensor), "const_tensor")
            meta = {"module": self.meta.get("module", ""), "parameter": name}
            self.bind(
                tensor,
                self.graph.constant(Tensor._wrap(tensor._storage(), tensor.dtype, tensor._device), name, meta=meta),
            )
        return self.nodes[id(tensor)]

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        if op.name == SHAPE_OF and not is_open(tensors[0].spec.shape):  # other shapes are fixed at op level
            return Tensor._wrap(np.array(tensors[0].spec.shape, np.int32), device=tensors[0].spec.device)
        fixed = all(t._value is not None and id(t) not in self.nodes for t in tensors)
        if fixed and not is_open(attrs):
            return proceed()  # arithmetic on constants is done now
        inputs = [self.node_of(t) for t in tensors]
        path = self.meta.get("module", "")
        name = f"{path}_{op.name}_out" if path else f"{op.name}_out"
        out = self.graph.apply(
            op.name,
            *inputs,
            attrs=attrs,
            name=name,
            meta={key: value for key, value in self.meta.items() if key not in ("passes", FLOAT) or value},
        )
        results: list[Tensor] = [Tensor._deferred(n.spec) for n in (out if isinstance(out, tuple) else (out,))]
        if op.name == SHAPE_OF:
            results = [Sized.of(tensors[0].spec.shape, results[0].spec)]
        elif (known := sized_result(op, tensors, attrs, results[0].spec)) is not None:
            results = [known]
        for t, n in zip(results, out if isinstance(out, tuple) else (out,), strict=True):
            self.bind(t, n)
        specs = infer(op, [t.spec for t in tensors], attrs)
        return results[0] if isinstance(specs, TensorSpec) else tuple(results)


def record(
    function: Callable[..., Any], specs: Sequence[TensorSpec], *, name: str = "graph", input_names: Sequence[str] = ()
) -> InternalGraph:
    """Capture the ops that `function(*inputs)` applies. Its result may nest in tuples, lists and dicts."""
    recorder = OpRecorder(InternalGraph(name))
    labels = [*input_names, *(f"input_{i}" for i in range(len(input_names), len(specs)))]
    with interpose(recorder):
        result = function(*recorder.inputs(labels, specs))
        leaves, structure = flatten(result)
        recorder.finish([t for t in leaves if isinstance(t, Tensor)], structure)
    return recorder.graph


def record_graph(source: InternalGraph) -> InternalGraph:
    """A module-level graph as ops: independent of the module, with its parameters as constants.

    Raises what the ops raise, and DeferredValueError where a value is needed that only a real input has.
    """
    assert source.owner is not None, source  # of a graph at module level
    recorder = OpRecorder(InternalGraph(source.name))
    recorder.graph.metadata = dict(source.metadata)
    recorder.names = {id(t): identifier(path) for path, t in source.owner.named_tensors()}

    def on_expr(expr: Expr) -> None:
        """Ops carry the path of the layer that applies them, and the line of the user's code that called it."""
        if isinstance(expr, CallFunction) and expr.qualified.startswith(f"{HOME}."):
            raise GraphError(
                f"lower: {expr!r} draws random values, which graphs of ops do not hold; pass them as inputs"
            )
        recorder.meta["module"] = module_path(expr)[outside:]
        recorder.meta["source"] = expr.meta.get("source", "")
        recorder.meta["passes"] = list(expr.meta.get("passes", ()))
        recorder.meta[FLOAT] = bool(expr.meta.get(FLOAT))

    outside = len(f"{graph_path(source)}.") if graph_path(source) else 0
    nodes = source.inputs[1:]
    owner: Any = source.owner
    paths = {id(m): path for path, m in owner.named_modules()}
    with untouched(owner), hooks.listening(_LayerPath(recorder, paths)), interpose(recorder):
        inputs = recorder.inputs([n.name for n in nodes], [n.spec for n in nodes])
        recorder.finish(interpret(source, inputs, on_expr=on_expr), source.out_def)
        _keep_names(recorder.graph, source)
        assigned = [path for path, t in owner.named_tensors() if t._value is None]
    if assigned:
        get_logger(__name__).warning(
            f"lower: the forward of {source.name!r} assigns {', '.join(assigned[:4])}{', ...' * (len(assigned) > 4)}, "
            "as batch norms in training mode do; graphs of ops assign nothing: call eval() before trace_module"
        )
    return recorder.graph


def _keep_names(made: InternalGraph, source: InternalGraph) -> None:
    """Exports call results as a file or an edit named them; names that tracing gave (`fc_out`) become those of ops."""
    if len(made.outputs) != len(source.outputs):
        return
    pairs = list(zip(made.outputs, source.outputs, stored_result_names(source), strict=True))
    given = [(new if _is_traced(old.name) else old).name if name is None else name for new, old, name in pairs]
    if given != [node.name for node in made.outputs]:
        keep_result_names(made, given)


def _is_traced(name: str) -> bool:
    return without_count(name).endswith("_out")


class _LayerPath(hooks.TraceHooks):
    """Trace hooks that only note which part of a fused layer is running: the recorder hears the rest as interposer."""

    def __init__(self, recorder: OpRecorder, paths: dict[int, str]) -> None:
        self.recorder, self.meta, self.paths, self.depth = recorder, recorder.meta, paths, 0

    def module(self, module: Any, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        """The layer itself was named by the call; its parts have paths of their own."""
        before = self.meta.get("module", "")
        if self.depth:
            self.meta["module"] = self.paths.get(id(module), before)
        self.depth += 1
        try:
            return run()
        finally:
            self.depth -= 1
            self.meta["module"] = before

    def built(self, tensor: Tensor, data: Any, dtype: Any, device: Any) -> Tensor | None:
        return None if not self._is_recorded(data) else function_of("megengine.tensor.tensor")(data, dtype, device)

    def _is_recorded(self, data: Any) -> bool:
        if isinstance(data, (list, tuple)):
            return any(map(self._is_recorded, data))
        return isinstance(data, Tensor) and id(data) in self.recorder.nodes

    def alias(self, tensor: Tensor) -> Tensor:
        twin = alias(tensor)
        if id(tensor) in self.recorder.nodes:
            self.recorder.bind(twin, self.recorder.nodes[id(tensor)])
        return twin
