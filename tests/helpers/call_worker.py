"""Makes drawn calls, in a process of its own: what came of each, judged.

An outcome is ("result", [(dtype, shape, array), ...]), ("refused", text) or ("fault", text).
"""

from __future__ import annotations

import math
import os
import re
import resource
import time
import traceback
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from call_subjects import PLANTED_SECONDS, Subject, subjects
from drawn_calls import MODES, Array, Drawn, Key, Left, Odd, Scalar
from wrong_calls import _INSIDES, judged, text_of

import megengine as mge
from megengine.autodiff import GradManager, jvp
from megengine.core import dtype as dtypes
from megengine.core.errors import MegEngineError

MEMORY = 3 << 30  # bytes that a call may reserve, above those of the program
CPU_SECONDS = 8.0
MOVED = {", moved": 1e-6, ", moved back": -1e-6}  # in the mode of a call -> by what part of the largest value
MANY = 100_000  # elements of a result of which all are compared

Outcome = tuple[str, Any]

_ODD = {
    "object": object,
    "function": lambda: lambda *_: None,
    "class": lambda: int,
    "array": lambda: np.zeros((2, 3)),
    "complex": lambda: 1j,
    "bytes": lambda: b"x",
    "set": lambda: {1, 2},
    "iterable": lambda: {0: "", 1: "", 2: ""}.keys(),
}


# ---------------------------------------------------------------- values


def _numbers(array: Array, given: Any) -> np.ndarray:
    """The values as float64, or of the given array's dtype."""
    shape, size = array.shape, math.prod(array.shape)
    rng = np.random.default_rng(zlib.crc32(repr((shape, array.place)).encode()))
    match array.values:
        case "given" if given is not None:
            return np.resize(given, shape) if np.size(given) else np.zeros(shape)
        case "zeros" | "ones":
            return np.full(shape, float(array.values == "ones"))
        case "counting" | "negative":
            return (np.arange(size).reshape(shape) % 7) * (1.0 if array.values == "counting" else -1.0)
        case "big" | "tiny":
            return rng.standard_normal(shape) * (1e30 if array.values == "big" else 1e-30)
        case "nan" | "inf":
            some = rng.random(shape) < 0.3
            return np.where(some, np.nan if array.values == "nan" else np.inf, rng.standard_normal(shape))
        case "extreme":
            return np.where(rng.random(shape) < 0.5, 2.0**62, -(2.0**62))
    return rng.standard_normal(shape) * 3


def _stored(values: np.ndarray, name: str) -> tuple[np.ndarray, Any]:
    """The values in the storage of a dtype: what does not fit is cut off."""
    kind: Any
    dtype: Any
    if name.startswith(("qint", "quint")):
        name, _, axis = name.partition("/")
        zero, scales = 3 if name.startswith("quint") else 0, values.shape[:1] if axis else ()
        scale = np.linspace(0.25, 1, *scales) if scales and scales[0] else 0.25
        kind = dtypes.quantized(name, scale, zero, 0 if np.ndim(scale) else None)
        dtype, low, high = kind.storage, kind.qmin, kind.qmax
    else:
        kind = dtype = np.dtype(name) if name == "complex64" else dtypes.storage_of(dtypes.as_dtype(name))
        if dtype.kind not in "iu":
            return values.astype(dtype), kind
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if values.dtype.kind not in "iu":
        values = np.nan_to_num(values.real, nan=0, posinf=2.0**62, neginf=-(2.0**62)).clip(-(2.0**62), 2.0**62)
        values = values.astype(np.int64)
    return np.clip(values, max(low, -(2**63)), min(high, 2**63 - 1)).astype(dtype), kind


def _laid_out(a: np.ndarray, layout: str) -> np.ndarray:
    """The values with other strides."""
    match layout:
        case "transposed":
            return np.ascontiguousarray(a.T).T
        case "last" if a.ndim > 2:
            return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1)
        case "reversed" if a.ndim:
            back = (slice(None, None, -1),) * a.ndim
            return np.ascontiguousarray(a[back])[back]
        case "gaps":
            wide = np.empty((*a.shape, 2), a.dtype)
            wide[..., 0], wide[..., 1] = a, a.dtype.type(77)
            return wide[..., 0]
        case "part" if a.ndim:
            wide = np.full((*a.shape[:-1], a.shape[-1] + 5), a.dtype.type(77), a.dtype)
            wide[..., 3:-2] = a
            return wide[..., 3:-2]
        case "repeated" if a.ndim and a.shape[0]:
            return np.broadcast_to(a[:1], a.shape)
    return a


def made(array: Array, given: Any, *, plain: bool) -> Any:
    """The tensor, array or other value that an Array stands for; `plain` gives the values their usual strides."""
    with np.errstate(all="ignore"):
        storage, dtype = _stored(np.asarray(_numbers(array, given)), array.dtype)
    storage = _laid_out(np.asarray(storage), array.layout)
    if plain:
        storage = np.ascontiguousarray(storage).reshape(storage.shape)
    match array.kind:
        case "ndarray":
            return storage
        case "list" | "tuple":
            listed = storage.tolist()
            return tuple(listed) if array.kind == "tuple" and storage.ndim else listed
        case "number" | "scalar" if storage.size:
            return storage.reshape(-1)[0].item() if array.kind == "number" else storage.reshape(-1)[0]
    kind = mge.Parameter if array.kind == "Parameter" else mge.Tensor
    return kind._wrap(storage, dtype, "test0" if array.kind == "elsewhere" else "cpu0")


def values_of(tree: Any, objects: tuple[Any, ...], *, plain: bool) -> Any:
    """Arguments as they are given to the call."""
    if isinstance(tree, dict):
        return {k: values_of(v, objects, plain=plain) for k, v in tree.items() if not isinstance(v, Left)}
    if isinstance(tree, (tuple, list)):
        return type(tree)(values_of(v, objects, plain=plain) for v in tree)
    if isinstance(tree, Array):
        return made(tree, objects[tree.place] if tree.place >= 0 else None, plain=plain)
    if isinstance(tree, Key):
        return slice(tree.start, tree.stop, tree.step)
    if isinstance(tree, Scalar):
        return np.asarray(tree.value).astype(tree.dtype)[()]
    if isinstance(tree, Odd):
        return objects[tree.place] if tree.name == "given" else _ODD[tree.name]()
    return None if isinstance(tree, Left) else tree


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, mge.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from (t for v in value.values() for t in _tensors(v))
    elif isinstance(value, (tuple, list)) and len(value) < 1000:
        yield from (t for v in value if v is not value for t in _tensors(v))


# ---------------------------------------------------------------- results


def summed_up(tensor: Any) -> tuple[str, tuple[int, ...], np.ndarray]:
    """What is compared of a result, a part of many values. AssertionError if it contradicts itself."""
    a, storage = tensor.numpy(), dtypes.storage_of(tensor.dtype)
    assert a.shape == tensor.spec.shape, f"a result of shape {a.shape} says it has {tensor.spec.shape}"
    assert a.dtype == storage, f"a result of {a.dtype} says it has {tensor.dtype}"
    flat = a.reshape(-1)[:: a.size // MANY + 1]
    if flat.dtype.kind == "V" or flat.dtype == dtypes.bfloat16:
        flat = flat.astype(np.float64)
    return str(tensor.dtype), a.shape, np.array(flat)


def _results(value: Any) -> list[Any]:
    """Tensors and numbers of a result, in order."""
    if isinstance(value, mge.Tensor):
        return [summed_up(value)]
    if isinstance(value, np.ndarray):
        return [(str(value.dtype), value.shape, value.reshape(-1)[:MANY].copy())] if value.dtype != object else []
    if isinstance(value, (tuple, list)):
        return [r for v in value[:1000] for r in _results(v)]
    if isinstance(value, (bool, int, float)):
        return [(type(value).__name__, (), np.asarray([value], np.float64))] if abs(value) < 1e300 else []
    return []


def _differentiable(value: Any) -> list[Any]:
    found = {id(t): t for t in _tensors(value)}
    return [t for t in found.values() if dtypes.is_differentiable(t.dtype)]


def _move(tensors: list[Any], part: float) -> None:
    """Let values be others, by a part of the largest."""
    for t in tensors:
        old = t.numpy()
        noise = np.random.default_rng(0).standard_normal(old.shape) * np.abs(old).max(initial=0)
        t._reset(mge.Tensor((old + part * noise).astype(old.dtype), dtype=t.dtype))


def _cotangent(t: Any) -> Any:
    return mge.Tensor._wrap(np.asarray((np.arange(t.size) % 5 - 2).reshape(t.shape), dtypes.storage_of(t.dtype)))


def _gradient(run: Any, inputs: list[Any]) -> list[Any]:
    for t in inputs:
        t.grad = None
    manager = GradManager().attach(inputs)
    with manager:
        out = run()
        found = _differentiable(out)
        if found:
            manager.backward(found, [_cotangent(t) for t in found])
    return [*_results(out), *(summed_up(t.grad) for t in inputs if t.grad is not None)]


def _second(run: Any, inputs: list[Any]) -> list[Any]:
    for t in inputs:
        t.grad = None
    outer, inner = GradManager().attach(inputs), GradManager().attach(inputs)
    with outer:
        with inner:
            found = _differentiable(run())
            if not found:
                return []
            inner.backward(found, [_cotangent(t) for t in found])
        grads = [t.grad for t in inputs if t.grad is not None]
        for t in inputs:
            t.grad = None
        if grads:
            outer.backward(grads, [_cotangent(t) for t in grads])
    return [summed_up(t) for t in [*grads, *(t.grad for t in inputs if t.grad is not None)]]


def _forward(run: Any, inputs: list[Any]) -> list[Any]:
    out, tangents = jvp(lambda *_: run(), inputs, [_cotangent(t) for t in inputs])
    return _results([out, tangents])


def _again(made: Any) -> list[Any]:
    """Calls alike, and gradient rules, are repeated natively from the third on."""
    found = []
    for _ in range(4):
        mge.random.seed(3)
        found.append(made())
    first, *others = found
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert a[:2] == b[:2], "the same call again gives another shape or dtype"
            assert a[2].tobytes() == b[2].tobytes(), "the same call again gives other values"
    return first


# ---------------------------------------------------------------- calls

# they change what they are given, so they are not made again and their arguments are not compared
_CHANGING = re.compile(
    r"__i\w+__|__setitem__|\w*[a-z]_|set_value|reset_zero|shuffle|\w*norm|clip_grad_\w+|[A-Z].*|seed|quantized_.*"
)


class Maker:
    """Makes calls of the subjects; `plain` gives every tensor its usual strides."""

    def __init__(self, *, plain: bool = False, only_planted: bool = False) -> None:
        mge.random.seed(3)  # some of them hold layers with weights
        self.subjects: dict[str, Subject] = subjects(only_planted=only_planted)
        self.plain = plain
        self.seconds = PLANTED_SECONDS if only_planted else CPU_SECONDS

    def outcome(self, drawn: Drawn) -> Outcome:
        """Make one call."""
        subject = self.subjects[drawn.subject]
        name = drawn.subject.partition("/")[0]
        mge.random.seed(3)
        start = time.process_time()
        try:
            args, kwargs = (values_of(v, subject.objects, plain=self.plain) for v in (drawn.args, drawn.kwargs))
            mode, comma, moved = drawn.mode.partition(",")
            if comma:
                drawn = replace(drawn, mode=mode)
                _move(_differentiable([*_tensors(args), *_tensors(kwargs)]), MOVED[comma + moved])
        except MemoryError:
            return "refused", "the arguments themselves do not fit into memory"
        try:
            result = "result", self._run(subject, drawn, name, args, kwargs)
        except Exception as error:
            result = self._judged(subject, drawn, error)
        finally:
            mge.set_default_device("cpu0")
        taken = time.process_time() - start
        return ("fault", f"takes {taken:.1f} s of CPU time") if taken > self.seconds else result

    def _run(self, subject: Subject, drawn: Drawn, name: str, args: Any, kwargs: Any) -> list[Any]:
        if subject.bound and not (args and isinstance(args[0], mge.Tensor)):
            return []
        changing = _CHANGING.fullmatch(name)
        given = [*_tensors(args), *_tensors(kwargs)]
        before = [] if changing else [t.numpy().tobytes() for t in given if t.size < MANY]

        def run() -> Any:
            return subject.call.make()(*args, **kwargs)

        inputs = [t for t in _differentiable(given) if t.device == "cpu0"]
        match drawn.mode:
            case "again" if not changing:
                found = _again(lambda: _results(run()))
            case "gradient" if inputs:
                found = _gradient(run, inputs) if changing else _again(lambda: _gradient(run, inputs))
            case "second" if inputs:
                found = _second(run, inputs) if changing else _again(lambda: _second(run, inputs))
            case "jvp" if inputs:
                found = _forward(run, inputs)
            case _:
                found = _results(run())
        after = [] if changing else [t.numpy().tobytes() for t in given if t.size < MANY]
        assert before == after, "the call changed what it was given"
        return found

    def _judged(self, subject: Subject, drawn: Drawn, error: Exception) -> Outcome:
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        if isinstance(error, AssertionError) and not isinstance(error, MegEngineError):
            return "fault", f"AssertionError: {error}\n{where}"
        if isinstance(error, BufferError) and str(error):  # what the protocol of DLPack asks for
            return "refused", str(error)
        if isinstance(error, MemoryError) and not subject.ours:  # a list of billions
            return "refused", "MemoryError"
        fault = judged(subject.call.name, error)
        if fault.startswith("the call is not named") and (drawn.mode in MODES[2:] or not subject.ours):
            fault = "words about our insides" if _INSIDES.search(str(error)) else ""
        return ("fault", f"{fault}\n{where}") if fault else ("refused", f"{type(error).__name__}: {text_of(error)}")


def serve(connection: Any, plain: bool, limited: bool, only_planted: bool) -> None:
    """Make the calls that come, until None comes; the trees of the subjects are sent first."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    mge.set_log_level("ERROR")
    maker = Maker(plain=plain, only_planted=only_planted)
    if limited:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["COLUMNS"] = "100"
    connection.send([s.tree for s in maker.subjects.values()])
    while (drawn := connection.recv()) is not None:
        connection.send(maker.outcome(drawn))
