"""Ops without a CUDA kernel: refused by name, or computed by the processor where a setting allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megengine.core.effectless import warn_caller
from megengine.core.spec import TensorSpec
from megengine.kernels.cuda.placing import host, placed
from megengine.kernels.cuda.settings import switch
from megengine.kernels.problem import Problem


class HostFallbackWarning(UserWarning):
    """The processor computes an op of tensors on a GPU."""


VARIABLE = "MEGENGINE_CUDA_HOST_FALLBACK"
_chosen: list[bool] = []  # by `allow`; empty before
_warned: set[str] = set()


def allowed() -> bool:
    """Whether the processor may compute what has no CUDA kernel."""
    return _chosen[0] if _chosen else switch(VARIABLE)


def allow(allowed_now: bool) -> None:
    """Choose whether the processor may compute what has no CUDA kernel, whatever the environment says."""
    _chosen[:] = [bool(allowed_now)]


def refusal(op: str, problem: Problem, kernels: list[tuple[str, str]]) -> str:
    """The message of an op that no CUDA kernel computes."""
    inputs = ", ".join(map(str, problem.inputs))
    why = "; ".join(f"{name}: {reason}" for name, reason in kernels if name.startswith("cuda"))
    return (
        f"{op}: no CUDA kernel computes it for {inputs or 'no inputs'}, attributes {problem.attrs}"
        f"{f' ({why})' if why else ''}; copy its inputs with .to('cpu0'), or set {VARIABLE}=1 to let the processor "
        "compute such ops"
    )


def of_host(problem: Problem) -> Problem:
    """The same problem on the processor."""
    inputs, outputs = ([TensorSpec(s.shape, s.dtype) for s in specs] for specs in (problem.inputs, problem.outputs))
    return Problem(problem.op, inputs, outputs, problem.attrs)


def on_host(op: str, problem: Problem, run: Callable[..., Any], single: bool) -> Callable[..., Any]:
    """A function of DeviceArrays that are copied, computed with by the processor, and copied back; it warns once."""
    device = problem.device
    if op not in _warned:
        _warned.add(op)
        warn_caller(f"{op} has no CUDA kernel: the processor computes it", HostFallbackWarning)

    def call(*arrays: Any) -> Any:
        out = run(*map(host, arrays))
        return placed(out, device) if single else tuple(placed(one, device) for one in out)

    return call
