"""Calls on a GPU that are recorded as one CUDA graph and replayed: steps of training, above all.

The first two calls with arguments of new kinds run as they are written: optimizers make their states, and functions and
gradient rules are learned, whose constants stay on the device. The third call does, too, and is watched: where it reads
a value or copies from main memory none is ever recorded. The fourth one is recorded, and from then on its launches are
replayed, without Python.

What the call changes, parameters for example, gets memory of its own before it is recorded. Each replay writes the new
values there, and tensors get new arrays on this memory: what was packed from an old array is not that of a new one.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from megengine.core.effectless import warn_caller
from megengine.core.errors import DeviceError
from megengine.core.pytree import TreeDef, flatten, unflatten
from megengine.dispatch.apply import active_interposers
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.placing import on_gpu
from megengine.kernels.cuda.runtime import Recording, Runtime, runtime_of
from megengine.kernels.cuda.updates import copy_all
from megengine.tensor import Parameter, Tensor

_UNWATCHED = 2  # calls before the one that is watched
_MOST = 16  # kinds of arguments whose recordings are kept
_GRADIENTS = "gradients outlive the call: it ends with clear_grad()"
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class _Same:
    """An argument that is the same only as itself: a network, an optimizer."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _is_data(value: Any) -> bool:
    """Whether an argument is given anew at each call; a parameter is the same one."""
    return isinstance(value, Tensor) and not isinstance(value, Parameter)


def _part(value: Any) -> Any:
    if _is_data(value):
        return value.spec
    return (type(value), value) if type(value) in _PLAIN else _Same(value)


def _again(array: DeviceArray) -> DeviceArray:
    """Another array on the same memory."""
    return array.reshape(array.shape)


def _objects() -> list[Any]:
    """All objects that the collector knows, those that a program has frozen, too."""
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        if frozen:
            gc.freeze()


def _of(runtime: Runtime) -> list[tuple[Tensor, DeviceArray]]:
    """All tensors of a device that live, with their arrays."""
    found = [o for o in _objects() if issubclass(type(o), Tensor)]
    pairs = [(t, t._value) for t in found]
    return [(t, v) for t, v in pairs if type(v) is DeviceArray and v.runtime is runtime and v.size]


def _gradients(tensors: list[tuple[Tensor, DeviceArray]]) -> list[int]:
    """Which gradients tensors have."""
    return [id(t.grad) for t, _ in tensors]


def _left(runtime: Runtime, known: set[int]) -> bool:
    """Whether tensors live that are not known, other than such that the next collection frees."""
    if all(id(t) in known for t, _ in _of(runtime)):
        return False
    gc.collect()
    return any(id(t) not in known for t, _ in _of(runtime))


class _State:
    """A tensor that the launches read or write, the array that it had after the last replay, and who held it then."""

    __slots__ = ("array", "held", "tensor", "written")

    def __init__(self, tensor: Tensor, array: DeviceArray, *, written: bool) -> None:
        self.tensor, self.array, self.written = tensor, array, written
        self.held: tuple[int, int] = (0, 0)

    def holders(self) -> tuple[int, int]:
        """How many objects hold the array, and its memory."""
        return sys.getrefcount(self.array), sys.getrefcount(self.array.owner)


class _Recorded:
    """A recorded call: its launches, inputs, results, and the tensors that it reads and changes."""

    def __init__(self, runtime: Runtime, given: list[DeviceArray]) -> None:
        self.runtime, self.given = runtime, given
        self.recording: Recording | None = None
        self.states: list[_State] = []
        self.results: list[Any] = []  # leaves; for a tensor its dtype stands, whose array is the next output
        self.nesting: TreeDef | None = None

    def fits(self) -> bool:
        """Whether a replay does what the call would do: what it changes belongs to its tensor alone."""
        assert self.recording is not None
        homes = {s.array.address for s in self.states}
        return all(self._fits(state, homes) for state in self.states) and self.recording.holds()

    def _fits(self, state: _State, homes: set[int]) -> bool:
        held = state.holders()  # before names here hold it
        value, array = state.tensor._value, state.array
        if state.tensor.grad is not None:
            return False
        if value is array:
            return not state.written or held == state.held
        if type(value) is not DeviceArray or value.runtime is not self.runtime:
            return False
        if (value.shape, value.dtype) != (array.shape, array.dtype):
            return False
        if not state.written:
            return value.address == array.address
        return value.address not in homes and held[1] == state.held[1]

    def replay(self, arrays: Sequence[DeviceArray], *, first: bool = False) -> Any:
        """Launch everything on new inputs; new tensors of the results."""
        runtime, recording = self.runtime, self.recording
        assert recording is not None and self.nesting is not None
        moved = [s for s in self.states if s.tensor._value is not s.array]
        copy_all([s.array for s in moved], [s.tensor._value for s in moved])
        for state in moved:
            state.tensor._value = state.array
        for own, array in zip(self.given, arrays, strict=True):
            if array.size:
                runtime.copy_within(own, array)
        if not first:
            recording.refresh()
        recording.replay()
        for state in self.states:
            if state.written:
                state.array = state.tensor._value = _again(state.array)
        outputs = iter(recording.outputs)
        leaves = [
            Tensor._wrap(runtime.duplicate(next(outputs)), leaf.dtype, runtime.name)
            if isinstance(leaf, _Result)
            else leaf
            for leaf in self.results
        ]
        return unflatten(self.nesting, leaves)

    def count(self) -> None:
        """Note who holds what the launches change, while nobody else does."""
        for state in self.states:
            if state.written:
                state.held = state.holders()


class _Result:
    """Stands for a tensor among the results of a recorded call."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype


class _Kind:
    """What is known of calls with one kind of arguments."""

    def __init__(self) -> None:
        self.calls, self.reason = 0, ""
        self.changed: list[Tensor] = []
        self.recorded: _Recorded | None = None


class Replayed:
    """A function whose calls on a GPU are recorded and replayed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._kinds: OrderedDict[Any, _Kind] = OrderedDict()
        self._lock = threading.Lock()

    def reasons(self) -> list[str]:
        """Why calls run as they are written, each reason once; empty where they are recorded, or will be."""
        return list(dict.fromkeys(kind.reason for kind in self._kinds.values() if kind.reason))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, nesting = flatten((args, kwargs))
        data = [x for x in leaves if _is_data(x)]
        devices = {x.spec.device for x in data}
        if len(devices) != 1 or not on_gpu(*devices) or active_interposers() or not self._lock.acquire(blocking=False):
            return self._function(*args, **kwargs)
        try:
            return self._called(runtime_of(*devices), leaves, nesting)
        finally:
            self._lock.release()

    def _plain(self, leaves: list[Any], nesting: TreeDef) -> Any:
        args, kwargs = unflatten(nesting, leaves)
        return self._function(*args, **kwargs)

    def _called(self, runtime: Runtime, leaves: list[Any], nesting: TreeDef) -> Any:
        key = (nesting, *map(_part, leaves))
        kind = self._kinds.setdefault(key, _Kind())
        self._kinds.move_to_end(key)
        if len(self._kinds) > _MOST:
            self._kinds.popitem(last=False)
        if kind.recorded is not None:
            if kind.recorded.fits():
                return kind.recorded.replay([x._storage() for x in leaves if _is_data(x)])
            kind.recorded, kind.calls = None, 0
        kind.calls += 1
        if kind.reason or kind.calls <= _UNWATCHED or runtime.synchronous:
            return self._plain(leaves, nesting)
        if kind.calls == _UNWATCHED + 1:
            return self._watched(runtime, kind, leaves, nesting)
        result = self._recorded(runtime, kind, leaves, nesting)
        if kind.recorded is not None:
            kind.recorded.count()
        return result

    def _watched(self, runtime: Runtime, kind: _Kind, leaves: list[Any], nesting: TreeDef) -> Any:
        before = _of(runtime)
        gradients = _gradients(before)
        with runtime.watched() as found:
            result = self._plain(leaves, nesting)
        kind.changed = [t for t, value in before if t._value is not value]
        if _gradients(before) != gradients:
            found.append(_GRADIENTS)
        elif _left(runtime, {id(t) for t, _ in before} | {id(x) for x in flatten(result)[0]}):
            found.append("tensors that the call makes outlive it")
        if found:
            kind.reason = found[0]
            warn_caller(f"jit.trace(replay=True): the function runs as it is written: {kind.reason}", UserWarning)
        return result

    def _recorded(self, runtime: Runtime, kind: _Kind, leaves: list[Any], nesting: TreeDef) -> Any:
        arrays = [x._storage() for x in leaves if _is_data(x)]
        before = _of(runtime)
        gradients = [t.grad for t, _ in before]
        changing = {id(t): t for t in kind.changed}
        if any(t.grad is not None for t in kind.changed):  # an earlier call of another function left them
            return self._plain(leaves, nesting)
        made = _Recorded(runtime, [runtime.duplicate(a) for a in arrays])
        homes = [runtime.duplicate(v) if id(t) in changing else _again(v) for t, v in before]
        for (tensor, _), home in zip(before, homes, strict=True):
            tensor._value = home
        try:
            made.recording = runtime.record(
                lambda: self._work(made, before, homes, set(changing), leaves, nesting), ready=True
            )
            kind.reason = "" if made.recording else f"{runtime.name} records no launches"
        except DeviceError as exc:
            if "recorded" not in str(exc):
                raise
            kind.reason = str(exc)
        finally:
            for (tensor, value), home, gradient in zip(before, homes, gradients, strict=True):
                tensor._value, tensor.grad = home if made.recording else value, gradient
        if made.recording is None:
            return self._plain(leaves, nesting)
        named = made.recording.named
        made.states = [
            _State(t, home, written=id(t) in changing)
            for (t, _), home in zip(before, homes, strict=True)
            if id(home.owner) in named
        ]
        kind.recorded = made
        return made.replay(arrays, first=True)

    def _work(
        self,
        made: _Recorded,
        before: list[tuple[Tensor, DeviceArray]],
        homes: list[DeviceArray],
        changing: set[int],
        leaves: list[Any],
        nesting: TreeDef,
    ) -> list[DeviceArray]:
        """The call on the recording's own inputs, and copies of what it changed to where that lies."""
        runtime, gradients = made.runtime, _gradients(before)
        inputs = iter(made.given)
        own = [Tensor._wrap(next(inputs), x.dtype, runtime.name) if _is_data(x) else x for x in leaves]
        results, made.nesting = flatten(self._plain(own, nesting))
        made.results = [_Result(x.dtype) if isinstance(x, Tensor) else x for x in results]
        outputs = [x._storage() for x in results if isinstance(x, Tensor)]
        if any(type(o) is not DeviceArray or o.runtime is not runtime for o in outputs):
            runtime.not_recorded("a result lies elsewhere")
        if any(x._value is not array for x, array in zip(filter(_is_data, own), made.given, strict=True)):
            runtime.not_recorded("the call changes its argument")
        moved = [(t, home) for (t, _), home in zip(before, homes, strict=True) if t._value is not home]
        if not {id(t) for t, _ in moved} <= changing:
            runtime.not_recorded("a call changes more tensors than the one before")
        if _gradients(before) != gradients:
            runtime.not_recorded(_GRADIENTS)
        places = {home.address for _, home in moved}
        if any(type(t._value) is not DeviceArray or t._value.runtime is not runtime for t, _ in moved):
            runtime.not_recorded("a tensor leaves the device")
        if any(t._value.address in places and t._value.address != home.address for t, home in moved):
            runtime.not_recorded("tensors take each other's values")
        apart = [(t, home) for t, home in moved if t._value.address != home.address]
        kept = {t._value.address for t, _ in moved} | places
        outputs = [runtime.duplicate(o) if o.size and o.address in kept else o for o in outputs]
        copy_all([home for _, home in apart], [t._value for t, _ in apart])
        return outputs
