"""`apply`: the only door to computing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import DeviceError, MegEngineError
from megengine.core.spec import TensorSpec, interned
from megengine.dispatch.record import Op, get_op
from megengine.kernels import registry as kernel_registry
from megengine.tensor import Tensor

Result = Tensor | tuple[Tensor, ...]


class Interposer:
    """Something that stands between `apply` and the kernels: a tracer, a recorder, a tape."""

    def apply(
        self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Result]
    ) -> Result:
        """Handle one op; `proceed(tensors)` runs the next interposer or the kernels."""
        raise NotImplementedError

    def rebind(self, tensor: Tensor, new: Tensor) -> None:
        """`tensor` is about to take the value `new` (item assignment): what was known of it is of its old value."""


_stack: ContextVar[tuple[Interposer, ...]] = ContextVar("megengine_interposers", default=())


@contextmanager
def interpose(interposer: Interposer) -> Iterator[Interposer]:
    """Let `interposer` see every op applied in the body, before those that already stand there."""
    _stack.set((*_stack.get(), interposer))
    try:
        yield interposer
    finally:
        # not reset to what was before: bodies of several managers may end in any order
        stack = _stack.get()
        last = max((i for i, other in enumerate(stack) if other is interposer), default=len(stack))
        _stack.set(stack[:last] + stack[last + 1 :])


@contextmanager
def no_interposers() -> Iterator[None]:
    """Run the body with no interposer at all."""
    token = _stack.set(())
    try:
        yield
    finally:
        _stack.reset(token)


@contextmanager
def without(interposer: Interposer) -> Iterator[None]:
    """Run the body as if `interposer` did not stand there; the others still see every op."""
    token = _stack.set(tuple(i for i in _stack.get() if i is not interposer))
    try:
        yield
    finally:
        _stack.reset(token)


def active_interposers() -> tuple[Interposer, ...]:
    """Who sees the ops applied now."""
    return _stack.get()


def apply(op: Op | str, *tensors: Tensor, **attrs: Any) -> Any:
    """Compute an op on tensors. Attributes are hashable plain values.

    Returns a Tensor, or a tuple for ops with several results. Raises what the op's `infer` raises, with the op named.
    """
    if op.__class__ is not Op:
        op = get_op(op)
    stack = _stack.get()
    if stack:
        return _through(stack, op, tensors, attrs)  # type: ignore[arg-type]
    return run_eager(op, tensors, attrs)  # type: ignore[arg-type]


def _through(stack: Sequence[Interposer], op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any]) -> Result:
    if not stack:
        return run_eager(op, tensors, attrs)

    def proceed(new: tuple[Tensor, ...] | None = None) -> Result:
        return _through(stack[:-1], op, tensors if new is None else new, attrs)

    token = _stack.set(tuple(stack[:-1]))
    try:
        return stack[-1].apply(op, tensors, attrs, proceed)
    finally:
        _stack.reset(token)


def infer(op: Op | str, specs: Sequence[TensorSpec], attrs: dict[str, Any]) -> TensorSpec | tuple[TensorSpec, ...]:
    """Specs of the results, without computing; errors get the op's name as a note."""
    op = get_op(op)
    _same_device(op, specs)
    try:
        return op.infer(*specs, **attrs)
    except MegEngineError as exc:
        exc.add_note(f"op {op.name}: inputs {', '.join(map(str, specs))}; attributes {attrs}")
        raise


def _same_device(op: Op, specs: Sequence[TensorSpec]) -> None:
    devices = {spec.device for spec in specs}
    if len(devices) > 1:
        raise DeviceError(
            f"{op.name}: inputs live on different devices {sorted(devices)}; expected one; copy with .to(device)"
        )


# (op, ids of input specs, attributes) -> (run, result specs, single, input specs, moves). The entry keeps the input
# specs alive, so an id in a key cannot come to mean another spec.
_calls: dict[tuple, tuple[Callable[..., Any], tuple[TensorSpec, ...], bool, list[TensorSpec], bool]] = {}
_CALLS_LIMIT = 8192
kernel_registry.on_change(_calls.clear)


def run_eager(op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any]) -> Result:
    """Run the selected kernel now, past every interposer."""
    if len(tensors) == 1 and not attrs:  # the usual cases, without lists
        a = tensors[0]
        arrays: Any = (a._value if a._value is not None else a._storage(),)
        key: tuple = (op, id(a._spec or a.spec))
    elif len(tensors) == 2 and not attrs:
        a, b = tensors
        arrays = (
            a._value if a._value is not None else a._storage(),
            b._value if b._value is not None else b._storage(),
        )
        key = (op, id(a._spec or a.spec), id(b._spec or b.spec))
    else:
        arrays, ids = [], []
        for t in tensors:
            arrays.append(t._value if t._value is not None else t._storage())
            ids.append(id(t._spec or t.spec))
        key = (op, *ids, *attrs.items())
    call = _calls.get(key)
    if call is None:
        call = _prepare(op, [t.spec for t in tensors], attrs)
        if len(_calls) > _CALLS_LIMIT:
            _calls.clear()
        _calls[key] = call
    out = call[0](*arrays)
    if call[2]:
        made = Tensor._of_spec(out, call[1][0])
        if call[4] and tensors[0].qparams is not None:
            made.qparams = tensors[0].qparams
        return made
    many = tuple([Tensor._of_spec(a, s) for a, s in zip(out, call[1], strict=True)])
    if call[4] and tensors[0].qparams is not None:
        for made in many:
            made.qparams = tensors[0].qparams
    return many


def _prepare(
    op: Op, specs: list[TensorSpec], attrs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[TensorSpec, ...], bool, list[TensorSpec], bool]:
    outputs = infer(op, specs, attrs)
    single = isinstance(outputs, TensorSpec)
    outputs = tuple(interned(s.shape, s.dtype, s.device) for s in ((outputs,) if single else outputs))
    run = runner(op, kernel_registry.Problem(op.name, tuple(specs), outputs, attrs), single)
    # rounded values that are only moved (pooled, reshaped) still lie on their grid
    moves = op.quant == "move" and all(spec.dtype == specs[0].dtype for spec in outputs)
    return run, outputs, single, specs, moves


def runner(op: Op, problem: kernel_registry.Problem, single: bool) -> Callable[..., Any]:
    """The selected kernel, or the reference where none is usable, as a function of storage arrays."""
    family = kernel_registry.family(op.name)
    found, fallback = family.candidates(problem), reference_runner(op, problem, single)
    if not found:
        return fallback
    if found[0].accepts is kernel_registry.accept_all:
        assert found[0].run is not None
        return functools.partial(found[0].run, problem)

    def run(*arrays: np.ndarray) -> Any:
        """Kernels that look at values are asked with the arrays of the call."""
        kernel = family.select(problem, dict(enumerate(arrays)))
        return fallback(*arrays) if kernel is None or kernel.run is None else kernel.run(problem, *arrays)

    return run


def _quiet(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The reference without NumPy's warnings: an infinity or nan is a result like any other, whichever kernel runs."""
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        return reference  # there the decorator keeps its state between calls, and threads would mix theirs
    return np.errstate(all="ignore")(reference)


def reference_runner(op: Op, problem: Any, single: bool) -> Callable[..., Any]:
    """The op's NumPy reference as a function of storage arrays, results cast to the inferred dtypes."""
    extra = dict(problem.attrs)
    if op.needs_specs:
        extra.update(in_specs=problem.inputs, out_specs=problem.outputs)
    dtypes = [storage_of(s.dtype) for s in problem.outputs]

    if single:
        dtype, reference = dtypes[0], _quiet(op.reference)

        def run_one(*arrays: np.ndarray) -> np.ndarray:
            out = reference(*arrays, **extra) if extra else reference(*arrays)
            return out if out.__class__ is np.ndarray and out.dtype is dtype else np.asarray(out, dtype)

        return run_one

    several = _quiet(op.reference)

    def run_many(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.asarray(a, d) for a, d in zip(several(*arrays, **extra), dtypes, strict=True))

    return run_many
