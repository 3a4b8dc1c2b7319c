"""collect: statistics of a network by one pass over data, in one or several processes, kept on the way."""

import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from megengine.core.errors import CalibrationError, OptionError
from megengine.device import normalize
from megengine.dispatch.refusal import kinds_named
from megengine.kernels.cuda.placing import on_gpu
from megengine.quantization.pipeline.calibrate import observe_all, prepared, require_traced, samples_at_once
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.device_counting import DeviceCounter
from megengine.quantization.ranges import (
    Batch,
    Data,
    Progress,
    Statistics,
    TensorStatistics,
    as_samples,
    items_of,
    sample_number,
    told_by_sample,
    watched,
)
from megengine.traced_module import TracedModule
from megengine.traced_module.formats.native import digest
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.moving import home
from megengine.traced_module.opening import takes_rows

INTERVAL = 2.0  # seconds between two times at which statistics are kept
Edges = dict[str, TensorStatistics]


@kinds_named
def collect(
    model: TracedModule | InternalGraph,
    data: Iterable[Any],
    *,
    workers: int = 1,
    seen: Statistics | None = None,
    keep: Callable[[Statistics], None] | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Statistics:
    """What every edge of a network is like on some data, for `quantize_model(..., statistics=)`.

    The result is the same for any order of the samples, any batches, any number of workers, and interrupted or not.

    Args:
        model: a traced module, or an op-level graph.
        data: inputs of the model; read once.
        workers: processes that run the network.
        seen: statistics of this network that are continued; samples that they have seen already are left out.
        device: where the network runs, "gpu0"; where the model lies by default.
        keep: called with the statistics so far every few seconds, and when the data ends with an error.
        progress: called with (stage, done, total or None).

    Raises:
        CalibrationError: unusable data, or statistics of another network.
        QuantizationError: the network is quantized already.
        OptionError: workers is below 1, or above 1 on a GPU.
    """
    require_traced(model, "collect")
    if workers < 1:
        raise OptionError(f"workers: expected at least 1, got {workers}")
    place = home(model) if device is None else normalize(device)
    if workers > 1 and on_gpu(place):
        raise OptionError(f"workers: expected 1 on {place}, got {workers}: the device computes many samples at a time")
    graph = prepared(model)
    edges = observe_all(graph, QuantConfig())
    total = Statistics(digest(graph), _empty(edges))
    if seen is not None:
        total.merge(seen)
    divided = takes_rows(graph)
    with _counters(graph, edges, workers, place, rows=divided) as counters:
        samples = as_samples(Data(_told(items_of(data, graph), progress), divided), graph)
        _count_all(graph, samples, total, counters, keep or (lambda _: None))
    if not total.samples:
        raise CalibrationError("calibration: the data has no batch; expected at least one input of the model")
    return total


def _count_all(
    graph: InternalGraph,
    batches: Iterator[Batch],
    total: Statistics,
    counters: Sequence[Any],
    keep: Callable[[Statistics], None],
) -> None:
    known, together = Counter(total.samples), samples_at_once(graph)
    pending: Counter[int] = Counter()
    turn, last, number = 0, time.monotonic(), -1

    def gather() -> None:
        for counter in counters:
            counter.ask()
        parts = [counter.part() for counter in counters]
        for part in parts:
            total.merge(Statistics(total.model, part))
        total.samples.update(pending)
        pending.clear()
        keep(total)

    while True:
        try:
            arrays = next(batches, None)
        except BaseException:
            gather()  # all samples before the one that cannot be read
            raise
        if arrays is None:
            break
        number += 1
        names = _digests(arrays, together)
        if all(known[name] > 0 for name in names):
            known.subtract(names)
            continue
        counter = counters[turn % len(counters)]
        with told_by_sample(number, arrays) if counter.at_once else nullcontext():
            counter.take(arrays)
        pending.update(names)
        turn += 1
        if time.monotonic() - last > INTERVAL:
            gather()
            last = time.monotonic()
    gather()


def _told(data: Iterable[Any], progress: Progress | None) -> Iterator[Any]:
    total = len(data) if isinstance(data, Sized) else None
    for done, item in enumerate(data, 1):
        yield item
        if progress is not None:
            progress("calibrate", done, total)


def _digests(arrays: Batch, together: int) -> list[int]:
    """A number of 64 bits for each sample of a batch, by its values."""
    samples = [arrays] if together == 1 else [tuple(a[i : i + 1] for a in arrays) for i in range(together)]
    return [sample_number(sample) for sample in samples]


def _empty(edges: Edges) -> Edges:
    return {n: TensorStatistics(n, one.channel_axis, one.bins, averaged=one.averaged) for n, one in edges.items()}


class _Counters:
    """Counts in this process."""

    at_once = True  # what `take` raises is of the sample that it takes

    def __init__(self, graph: InternalGraph, edges: Edges) -> None:
        self.edges = _empty(edges)
        together = samples_at_once(graph)
        self.take = watched(graph, {name: partial(self._update, name, together) for name in edges})

    def _update(self, name: str, together: int, x: np.ndarray) -> None:
        self.edges[name].update(x, samples=together)

    def ask(self) -> None:
        """Nothing has to be asked for."""

    def part(self) -> Edges:
        """What was counted since the last time."""
        edges, self.edges = self.edges, _empty(self.edges)
        return edges


class _DeviceCounters:
    """Counts on a GPU."""

    at_once = False

    def __init__(self, graph: InternalGraph, edges: Edges, device: str, *, rows: bool) -> None:
        self.counter = DeviceCounter(graph, _empty(edges), samples_at_once(graph), device, rows=rows)
        self.take = self.counter.take

    def ask(self) -> None:
        """Run what waits."""
        self.counter.finish()

    def part(self) -> Edges:
        """What was counted since the last time."""
        edges, self.counter.edges = self.counter.edges, _empty(self.counter.edges)
        return edges


class _Worker:
    """Counts in a process of its own, which ends with this one."""

    at_once = False

    def __init__(self, graph: InternalGraph, edges: Edges, others: Sequence[Connection]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        closed = [*others, self.connection]  # held open in the child, they would hide the end of this process
        self.process = context.Process(target=_serve, args=(theirs, graph, edges, closed), daemon=True)
        self.process.start()
        theirs.close()

    def take(self, arrays: Batch) -> None:
        """Give it a batch."""
        self._told(arrays)

    def ask(self) -> None:
        """Ask it for what it counted."""
        self._told(None)

    def _told(self, message: Any) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            raise self._gone() from error

    def part(self) -> Edges:
        """What was counted since the last time; raises the worker's error."""
        try:
            answer = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._gone() from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _gone(self) -> CalibrationError:
        return CalibrationError(
            "calibration: a worker process has ended, perhaps for want of memory; take fewer --workers, and continue"
        )

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self.connection.close()
        self.process.terminate()
        self.process.join()


def _serve(connection: Connection, graph: InternalGraph, edges: Edges, closed: Sequence[Connection]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # so: without a word
    for other in closed:
        other.close()
    failed: Exception | None = None
    counters = _Counters(graph, edges)
    with suppress(EOFError, OSError):
        while True:
            batch = connection.recv()
            if batch is None:
                connection.send(failed or counters.part())
            elif failed is None:
                try:
                    counters.take(batch)
                except Exception as error:
                    failed = error


@contextmanager
def _counters(graph: InternalGraph, edges: Edges, workers: int, device: str, *, rows: bool) -> Iterator[Sequence[Any]]:
    if on_gpu(device):
        yield [_DeviceCounters(graph, edges, device, rows=rows)]
        return
    if workers == 1:
        yield [_Counters(graph, edges)]
        return
    with ExitStack() as stack:
        started: list[_Worker] = []
        for _ in range(workers):
            started.append(_Worker(graph, edges, [one.connection for one in started]))
            stack.callback(started[-1].close)
        yield started
