"""`apply`, through which every op is computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from megengine.core import _engine, hooks
from megengine.core.dtype import is_differentiable, storage_of
from megengine.core.errors import DeviceError, MegEngineError
from megengine.core.limits import refuse_oversized
from megengine.core.sizes import as_examples, is_open
from megengine.core.spec import TensorSpec, interned
from megengine.dispatch.record import Op, get_op, registry
from megengine.kernels import cuda
from megengine.kernels.cuda import fallback, placing
from megengine.kernels.half_conversion import converted, wide, widened
from megengine.kernels.kernel import EagerKernel, FlatKernel
from megengine.kernels.problem import Problem
from megengine.kernels.registry import depends_on_values, family, on_change
from megengine.tensor import Tensor

Result = Tensor | tuple[Tensor, ...]
_zip = functools.partial(zip, strict=True)


class Interposer:
    """An object between `apply` and the kernels: a tracer, a recorder, a tape.

    Without `holds_draws` random numbers are refused while it is active, since it would keep them as constants. With
    `looks_inside` it sees the ops of a `Function`, which has a gradient of its own. One that is `first` sees every op
    before those that begin later, too: what it adds is seen by a tape.
    """

    holds_draws = True
    looks_inside = False
    first = False

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict, proceed: Callable[..., Result]) -> Result:
        """Handle one op; `proceed(tensors)` runs the next interposer or the kernels."""
        raise NotImplementedError

    def rebind(self, tensor: Tensor, new: Tensor) -> None:
        """`tensor` is about to get the value `new` (item assignment)."""


class Listener(Interposer):
    """An interposer that only observes the ops and their results: a tape, a counter.

    While all active interposers are listeners, calls stay on the native path.
    """

    def observe(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], out: Result) -> None:
        """Observe one op after it ran. Must not apply an op."""
        raise NotImplementedError

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict, proceed: Callable[..., Result]) -> Result:
        """Run the op, then observe it: the path while other interposers are active."""
        out = proceed()
        self.observe(op, tensors, attrs, out)
        return out


Standing = TypeVar("Standing", bound=Interposer)

_stack: ContextVar[tuple[Interposer, ...]] = ContextVar("megengine_interposers", default=())


def begin(interposer: Interposer) -> None:
    """Let `interposer` see every op that is applied from now on, before the active ones."""
    stack = _stack.get()
    place = len(stack)
    while place and stack[place - 1].first:
        place -= 1
    _stack.set((*stack[:place], interposer, *stack[place:]))


def end(interposer: Interposer) -> None:
    """Deactivate `interposer`. Several may end in any order; one that is not active is no error."""
    stack = _stack.get()
    if stack and stack[-1] is interposer:  # mostly
        _stack.set(stack[:-1])
        return
    for i in range(len(stack) - 1, -1, -1):
        if stack[i] is interposer:
            _stack.set(stack[:i] + stack[i + 1 :])
            return


class interpose(Generic[Standing]):  # noqa: N801 (used like a function)
    """Let `interposer` see every op that is applied in the body, before the active ones.

    A class, since a generator takes four times as long, and each traced call enters one.
    """

    __slots__ = ("interposer",)

    def __init__(self, interposer: Standing) -> None:
        self.interposer = interposer

    def __enter__(self) -> Standing:
        begin(self.interposer)
        return self.interposer

    def __exit__(self, *error: object) -> None:
        end(self.interposer)


@contextmanager
def hidden(predicate: Callable[[Interposer], bool]) -> Iterator[None]:
    """Deactivate the interposers for which the predicate is true; after the body those for which it still is return."""
    before = _stack.get()
    _stack.set(tuple(one for one in before if not predicate(one)))
    try:
        yield
    finally:
        now = _stack.get()  # an interposer that began in the body stays, one that ended there stays away
        kept = [one for one in before if one in now or predicate(one)]
        _stack.set((*kept, *(one for one in now if one not in before)))


@contextmanager
def no_interposers() -> Iterator[None]:
    """Run the body without interposers."""
    token = _stack.set(())
    try:
        yield
    finally:
        _stack.reset(token)


def active_interposers() -> tuple[Interposer, ...]:
    """The interposers that see the ops applied now."""
    return _stack.get()


if TYPE_CHECKING:

    def apply(op: Op | str, *tensors: Tensor, **attrs: Any) -> Any:
        """Compute an op on tensors. Attributes are hashable plain values.

        Returns a Tensor, or a tuple for ops with several results. Raises what the op's `infer` raises, with the op
        named.
        """

    def run_eager(op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any]) -> Result:
        """Run the selected kernel, without interposers."""
        ...

else:
    apply, run_eager = _engine.apply, _engine.run_eager


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
    devices = {spec.device for spec in specs}
    if len(devices) > 1:
        raise DeviceError(f"{op.name}: inputs live on different devices {sorted(devices)}; copy with .to(device)")
    try:
        if is_open([spec.shape for spec in specs]) or is_open(attrs):
            with as_examples():
                return op.infer(*specs, **attrs)
        return op.infer(*specs, **attrs)
    except MegEngineError as exc:
        exc.add_note(f"op {op.name}: inputs {', '.join(map(str, specs))}; attributes {attrs}")
        raise


def _prepare(op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any]) -> tuple:
    """What native code stores for a call, by op, specs and attributes.

    (function of the storage arrays, ((spec of a result, dtype of its array), ...), single, moves, whether the function
    is the reference, whose results are cast and for which NumPy's warnings are off, a native step that does the same
    or None, whether the result is the input in another shape, whether a result can have gradients)
    """
    specs = [t.spec for t in tensors]
    outputs = infer(op, specs, attrs)
    single = isinstance(outputs, TensorSpec)
    outputs = tuple(interned(s.shape, s.dtype, s.device) for s in ((outputs,) if single else outputs))
    for spec in outputs if not op.counts and not placing.on_gpu(outputs[0].device) else ():
        refuse_oversized(op.name, spec.shape, storage_of(spec.dtype).itemsize)
    problem = Problem(op.name, tuple(specs), outputs, attrs)
    # values that are only moved (pooled, reshaped), or become 0, are still values of their quantized dtype
    stay = op.moves or op.rule.bounds(attrs) == (0.0, None)
    moves = stay and all(spec.dtype == specs[0].dtype for spec in outputs)
    results = tuple((s, storage_of(s.dtype)) for s in outputs)
    recorded = any(is_differentiable(s.dtype) for s in outputs)
    if problem.on_gpu or problem.moves_devices:
        return _gpu_runner(op, problem, single), results, single, moves, False, None, False, recorded
    kernel = _kernel_runner(op, problem, single)
    usable = family(problem.op).candidates(problem)
    chosen = usable[0] if usable and not depends_on_values(usable[0]) else None
    step = chosen.make_flat(problem) if isinstance(chosen, FlatKernel) else None
    reshapes = isinstance(chosen, EagerKernel) and chosen.reshapes
    return kernel or _reference(op, problem), results, single, moves, kernel is None, step, reshapes, recorded


def _kernel_runner(op: Op, problem: Problem, single: bool) -> Callable[..., Any] | None:
    """The selected kernel as a function of storage arrays; None where the reference computes it."""
    kernels = family(op.name)
    usable = kernels.candidates(problem)
    if not usable:
        widen = _widened_gpu_runner if problem.on_gpu else _widened_runner
        return widen(op, problem, single) if op.widens(problem.inputs) else None
    if not depends_on_values(usable[0]):
        assert usable[0].run is not None
        return functools.partial(usable[0].run, problem)

    fallback = reference_runner(op, problem, single)

    def run(*arrays: np.ndarray) -> Any:
        """Select among kernels whose choice depends on values."""
        kernel = kernels.select(problem, dict(enumerate(arrays)))
        return fallback(*arrays) if kernel is None or kernel.run is None else kernel.run(problem, *arrays)

    return run


def _widened_runner(op: Op, problem: Problem, single: bool) -> Callable[..., Any]:
    """Float32 arithmetic on float16 and bfloat16 arrays, each result rounded once."""
    run = runner(op, widened(problem), single)
    taken = [storage_of(wide(s).dtype) for s in problem.inputs]
    given = [storage_of(s.dtype) for s in problem.outputs]

    def call(*arrays: np.ndarray) -> Any:
        out = run(
            *(converted(a, t) if s.dtype != t else a for a, s, t in zip(arrays, problem.inputs, taken, strict=True))
        )
        if single:
            return converted(out, given[0])
        return tuple(converted(a, d) for a, d in zip(out, given, strict=True))

    return call


def _gpu_runner(op: Op, problem: Problem, single: bool) -> Callable[..., Any]:
    """A CUDA kernel, or float32 arithmetic on halves, as a function of DeviceArrays; never the reference unasked."""
    if problem.moves_devices:
        return functools.partial(placing.copied, device=problem.outputs[0].device)
    kernel = _kernel_runner(op, problem, single)
    if kernel is not None:
        return kernel
    if fallback.allowed():
        return fallback.on_host(op.name, problem, runner(op, fallback.of_host(problem), single), single)
    raise DeviceError(fallback.refusal(op.name, problem, family(op.name).explain(problem)))


def _widened_gpu_runner(op: Op, problem: Problem, single: bool) -> Callable[..., Any] | None:
    """Float32 arithmetic on halves of a GPU; None where there is no kernel for it."""
    run = _kernel_runner(op, wider := widened(problem), single)
    if run is None:
        return None
    inputs = [storage_of(wide(s).dtype) for s in problem.inputs]
    outputs = [storage_of(s.dtype) if w.dtype != s.dtype else None for s, w in _zip(problem.outputs, wider.outputs)]
    cast = cuda.elementwise.cast

    def call(*arrays: Any) -> Any:
        out = run(*(a if s.dtype == t else cast(a, t) for a, s, t in _zip(arrays, problem.inputs, inputs)))
        results = (out,) if single else out
        results = tuple(a if t is None else cast(a, t) for a, t in _zip(results, outputs))
        return results[0] if single else results

    return call


def runner(op: Op, problem: Problem, single: bool) -> Callable[..., Any]:
    """The selected kernel, or the reference where none is usable, as a function of storage arrays."""
    if problem.on_gpu:
        return _gpu_runner(op, problem, single)
    return _kernel_runner(op, problem, single) or reference_runner(op, problem, single)


def _reference(op: Op, problem: Problem) -> Callable[..., Any]:
    """The op's NumPy reference as a function of storage arrays; its results may have other dtypes than inferred."""
    extra = dict(problem.attrs)
    if op.needs_specs:
        extra.update(in_specs=problem.inputs, out_specs=problem.outputs)
    return functools.partial(op.reference, **extra) if extra else op.reference


def _quiet(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The reference without NumPy's warnings: native kernels do not warn of infinities and NaN either."""
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        return reference  # there the decorator keeps state between calls, which threads would share
    return np.errstate(all="ignore")(reference)


def _quiet_state() -> tuple[ContextVar[Any], Any] | None:
    """The context variable that `np.errstate` sets, and what it sets it to; None where it sets none (NumPy 1)."""
    before = copy_context()
    with np.errstate(all="ignore"):
        changed = [(var, value) for var, value in copy_context().items() if before.get(var) is not value]
    return changed[0] if len(changed) == 1 else None


def reference_runner(op: Op, problem: Problem, single: bool) -> Callable[..., Any]:
    """The op's NumPy reference as a function of storage arrays, results cast to the inferred dtypes."""
    reference, dtypes = _quiet(_reference(op, problem)), [storage_of(s.dtype) for s in problem.outputs]

    def run(*arrays: np.ndarray) -> Any:
        out = reference(*arrays)
        if single:
            return np.asarray(out, dtypes[0])
        return tuple(np.asarray(a, d) for a, d in zip(out, dtypes, strict=True))

    return run


_engine.set_dispatch(
    interposers=_stack,
    tensor=Tensor,
    listener=Listener,
    op=Op,
    registry=registry,
    get_op=get_op,
    through=_through,
    prepare=_prepare,
    asarray=np.asarray,
    place=placing.placed,
    filled=placing.filled,
    watcher=hooks.active,
    quiet=_quiet_state(),
)
on_change(_engine.forget_calls)
