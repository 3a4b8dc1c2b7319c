"""Networks that take batches of any size, from those that were captured or read with a fixed one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from megengine.core.errors import MegEngineError, ShapeError
from megengine.core.sizes import OpenSize, is_open, named
from megengine.core.spec import TensorSpec
from megengine.dispatch.refusal import kinds_named
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign
from megengine.traced_module.opening.examples import SIZES, joined
from megengine.traced_module.opening.resizing import at_batch
from megengine.traced_module.opening.rows import rows_apart, same_at
from megengine.traced_module.sizes import specialised
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.tracing.entry import lower

_REMEDY = "capture or read the network with the batch that it shall take, or with a batch of two or more"


@kinds_named
def open_batch(model: TracedModule | InternalGraph, name: str = "batch") -> TracedModule:
    """The network as ops, for batches of any size: a copy, from one with a fixed batch (or an open one, kept).

    The first axis of every input is the batch, and one axis of every result. Lengths that were computed with, or
    written as numbers for, the fixed batch follow it. What was found is tried on random numbers: two samples together
    have to give what each gives alone, and the fixed batch what it gave before.

    Args:
        model: a traced network, an imported one, or an integer network (`quantized.traced()`).
        name: of the open axis, in shapes and in exported files.

    Raises:
        ShapeError: inputs have no common first length, a node does not take another batch (it is named), or samples
            of one batch depend on each other.
    """
    graph = model.graph if isinstance(model, TracedModule) else model
    return TracedModule(_checked(graph, name))


def lowered(model: TracedModule | InternalGraph) -> InternalGraph:
    """The network as ops, for batches of any size where it can be, else for that of the trace.

    Samples of a batch may depend on each other, as in training, if all lengths of a graph of calls follow the batch.
    """
    graph = model.graph if isinstance(model, TracedModule) else model
    try:
        batch = _batch_of(graph, "batch")
        made = next(_of_calls(graph, batch), None) if graph.of_calls and batch is not None else None
        return _checked(graph, "batch") if made is None else made
    except ShapeError:
        return lower(graph).graph


def _checked(graph: InternalGraph, name: str) -> InternalGraph:
    """As `open_batch`."""
    batch, fixed = _batch_of(graph, name), lower(graph).graph
    if batch is None:
        return fixed
    if graph.of_calls:
        for made in _of_calls(graph, batch):
            if rows_apart(made) and same_at(fixed, made):
                return made
    refused: list[ShapeError] = []
    for last in (False, True):
        try:
            made = _of_ops(fixed, batch, last=last)
        except ShapeError as error:
            refused.append(error)
            continue
        if rows_apart(made) and same_at(fixed, made):
            return made
    if len(refused) == 2:
        refused[0].add_note(_REMEDY)
        raise refused[0]
    raise ShapeError(
        f"open_batch: the network {graph.name!r} gives other results for two samples at once than for each alone; "
        f"{_REMEDY}"
    )


def _batch_of(graph: InternalGraph, name: str) -> OpenSize | None:
    """The open size of a network's batch; None if it is open already. Raises ShapeError if inputs have no batch."""
    what = f"open_batch: the network {graph.name!r}"
    nodes = [n for n in graph.inputs if isinstance(n, TensorNode)]
    shapes = ", ".join(f"{n.name} {n.spec}" for n in nodes)
    if not nodes or not all(n.spec.ndim for n in nodes):
        raise ShapeError(f"{what} has inputs without a first axis: {shapes}; expected the batch there; {_REMEDY}")
    lengths = [n.spec.shape[0] for n in nodes]
    if any(is_open((length,)) for length in lengths):
        return None
    if len(set(lengths)) > 1:
        raise ShapeError(f"{what} has inputs of different first lengths: {shapes}; expected the batch; {_REMEDY}")
    return named(name, lengths[0])


def _of_calls(graph: InternalGraph, batch: OpenSize) -> Iterator[InternalGraph]:
    """A graph of calls as ops whose results have the batch: computed with its formula, and from examples."""
    with suppress(MegEngineError):  # the network computes with its sizes, or has numbers where the batch should be
        with _inputs_at(graph, batch):
            made = lower(graph).graph
        if _follows(made):
            yield made
    with suppress(MegEngineError):
        examples = []
        for size in SIZES:
            with _inputs_at(graph, size):
                examples.append(lower(graph).graph)
        made = joined(examples, batch)
        if made is not None and _follows(made):
            yield made


def _follows(graph: InternalGraph) -> bool:
    """Whether results have the batch. Raises ShapeError if a node has a number where it should be: that of the trace
    suits the trace only.
    """
    specialised(graph, [(SIZES[0], *node.spec.example.shape[1:]) for node in graph.inputs])
    return all(is_open(n.spec.shape) for n in graph.outputs if n.spec.ndim)


@contextmanager
def _inputs_at(graph: InternalGraph, size: int) -> Iterator[None]:
    """In the body the inputs of a graph of calls have another batch."""
    nodes = [n for n in graph.inputs if isinstance(n, TensorNode)]
    fixed = [n.spec for n in nodes]
    try:
        for node, spec in zip(nodes, fixed, strict=True):
            assign(graph, node, "_spec", TensorSpec((size, *spec.shape[1:]), spec.dtype, spec.device))
        yield
    finally:
        for node, spec in zip(nodes, fixed, strict=True):
            assign(graph, node, "_spec", spec)


def _of_ops(graph: InternalGraph, batch: OpenSize, *, last: bool) -> InternalGraph:
    """A graph of ops in which lengths follow the batch. Raises ShapeError, which names a node that does not."""
    made = joined([at_batch(graph, size, last=last) for size in SIZES], batch)
    if made is None:
        raise ShapeError(
            f"open_batch: the network {graph.name!r} has lengths that are no multiple of the batch; {_REMEDY}"
        )
    return made
