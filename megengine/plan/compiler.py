"""From an op-level graph to a plan: fusion, then native steps."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.dtype import converted, storage_of
from megengine.core.errors import DTypeError, ShapeError
from megengine.core.text import counted
from megengine.kernels.memory import bits
from megengine.plan.biases import add_biases
from megengine.plan.building import Builder, StepInfo, Watch, is_exact, title
from megengine.plan.cast_places import move_casts
from megengine.plan.chains import fuse_chains
from megengine.plan.channel_norms import join_factors
from megengine.plan.fuse import fuse
from megengine.plan.half_casts import widen_halves
from megengine.plan.half_tables import tabulate_halves
from megengine.plan.norms import name_norms
from megengine.plan.quantized_moves import quantize_before_moves
from megengine.plan.rearranging import join_moves
from megengine.plan.reductions import gather_axes
from megengine.plan.tables import merge_maps, quantize_truths
from megengine.plan.views import fold_views
from megengine.traced_module import InternalGraph
from megengine.traced_module.editing.expressions import set_outputs
from megengine.traced_module.formats import native as files
from megengine.traced_module.passes import run_passes
from megengine.traced_module.passes.activations import name_activations


class Plan:
    """A compiled network: call it with arrays, get arrays. Shapes are those of the graph.

    Runs without Python and without the GIL, except steps that `describe` lists as "reference" or "python:" and a
    kernel. With `watch`, functions by names of values, it gives no outputs: each function gets its value when it is
    computed, in memory that the plan uses again.
    """

    def __init__(
        self,
        source: InternalGraph,
        *,
        threads: int = 1,
        tune: bool = False,
        watch: Mapping[str, Watch] | None = None,
    ) -> None:
        self.source = source  # what `save` writes; `graph` is what the steps were made from
        self.graph = graph = source.clone()
        if watch:
            set_outputs(graph, [graph.node(name) for name in watch])
        self.threads, self._tune, self._watch = threads, tune, watch
        exact = is_exact(graph)
        if not exact:
            name_activations(graph)  # before their factors are folded into the layers behind, and behind other folds
        run_passes(graph)
        if not exact:
            name_activations(graph)
            fold_views(graph)
        name_norms(graph, exact=exact)
        join_factors(graph, exact=exact)
        widen_halves(graph, exact=exact)
        if name_norms(graph, exact=exact):
            join_factors(graph, exact=exact)
        fuse(graph, exact=exact)
        if exact:
            add_biases(graph)
            quantize_truths(graph)
            quantize_before_moves(graph)
            gather_axes(graph)
        join_moves(graph)
        move_casts(graph)
        fuse_chains(graph)
        tabulate_halves(graph)
        if exact:
            merge_maps(graph)
        graph.lint()
        self._builder = builder = Builder(graph, threads, tune=tune)
        for node, one in zip(graph.outputs, (watch or {}).values(), strict=bool(watch)):
            builder.watched.setdefault(id(node), []).append(one)
        self._results = [] if watch else graph.outputs
        builder.build()
        self._native, self.arena_bytes = builder.finish()

    def __repr__(self) -> str:
        return title(self, counted(len(self.steps), "step"), counted(self.threads, "thread"))

    @property
    def steps(self) -> list[StepInfo]:
        """What runs, in order."""
        return [s.info for s in self._builder.steps]

    def _arrays(self, inputs: Sequence[Any]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        nodes = self.graph.inputs
        if len(inputs) != len(nodes):
            raise ShapeError(f"plan of {self.graph.name!r} takes {counted(len(nodes), 'input')}, got {len(inputs)}")
        arrays = []
        for node, value in zip(nodes, inputs, strict=True):
            array, dtype = np.asarray(value), storage_of(node.dtype)
            if array.shape != node.shape:
                remedy = "; open_batch gives a network for any batch" if array.shape[1:] == node.shape[1:] else ""
                raise ShapeError(f"plan: input {node.name!r} has shape {array.shape}; expected {node.shape}{remedy}")
            if array.dtype != dtype and array.dtype.kind in "iu" and dtype.kind in "iu":
                exact = converted(array, dtype)  # integers of another width, where all values fit
                array = array if exact is None else exact
            if array.dtype != dtype:
                raise DTypeError(f"plan: input {node.name!r} is {array.dtype}; expected {dtype}; use .astype")
            arrays.append(bits(np.ascontiguousarray(array)))
        return arrays, [np.empty(n.shape, storage_of(n.dtype)) for n in self._results]

    def __call__(self, *inputs: Any) -> list[np.ndarray]:
        """Run on arrays (4-D: NCHW); returns the outputs."""
        arrays, outputs = self._arrays(inputs)
        self._native.run(arrays, [*map(bits, outputs)])
        return outputs

    def __reduce__(self) -> Any:
        """What `pickle` and `copy.deepcopy` take: the network, which is compiled again."""
        return partial(Plan, threads=self.threads, tune=self._tune, watch=self._watch), (self.source,)

    def profile(self, *inputs: Any, repeat: int = 20) -> list[tuple[StepInfo, float]]:
        """Median CPU seconds of every step over `repeat` runs."""
        arrays, outputs = self._arrays(inputs)
        outputs = [*map(bits, outputs)]
        times = np.array([self._native.profile(arrays, outputs) for _ in range(repeat)])
        return list(zip(self.steps, np.median(times, axis=0).tolist(), strict=True))

    def save(self, path: str | Path) -> None:
        """Write the op-level graph and its unpacked weights; fusion, layout and kernels are chosen at `load`.

        Raises:
            WriteError: the path cannot be written.
        """
        files.save(self.source, path)

    def describe(self) -> str:
        """One line per step: op, value, kernel, module, and why better kernels were rejected."""
        lines = [
            f"plan of {self.graph.name}: {counted(len(self.steps), 'step')}, arena {counted(self.arena_bytes, 'byte')}"
        ]
        for s in self.steps:
            why = "; ".join(f"not {name}: {reason}" for name, reason in s.rejected) if s.kernel == "reference" else ""
            lines.append(f"  {s.op:18} {s.name:32} {s.kernel:24} {s.module} {why}".rstrip())
        return "\n".join(lines)
