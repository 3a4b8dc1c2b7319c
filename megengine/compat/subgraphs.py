"""`subgraph` and `subgraph_fn`: operators written as small graphs of others, as MegEngine's own functions are.

The decorated function gets `inputs`, `f(op, *tensors)`, which applies an op class or an operator by its sign, and
`c(value)`, which makes a constant. It returns (outputs, whether each can have a gradient). With `custom_grad` it is a
generator that yields the outputs, receives their gradients, and yields those of the inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from megengine.autodiff import Function
from megengine.compat.elementwise import Elemwise
from megengine.compat.indexing import Subtensor
from megengine.compat.opdef import OpDef, apply, as_tensor
from megengine.compat.tensors import Const
from megengine.core.errors import ArgumentError, OptionError, nearest
from megengine.core.text import counted
from megengine.tensor import Tensor

Formula = Callable[..., Any]

_TAIL, _HEAD = (Subtensor(items=[(0, *flags, False, False)]) for flags in ((False, True), (True, False)))
OPERATORS: dict[tuple[str, int], OpDef] = {
    **{
        (sign, count): Elemwise(mode)
        for sign, count, mode in (
            *(("-", 1, "NEGATE"), ("abs", 1, "ABS"), ("exp", 1, "EXP"), ("log1p", 1, "LOG1P"), ("relu", 1, "RELU")),
            *(("cond_leq_mov", 3, "COND_LEQ_MOV"), ("fma3", 3, "FUSE_MUL_ADD3"), ("fma4", 4, "FUSE_MUL_ADD4")),
            *(("+", 2, "ADD"), ("-", 2, "SUB"), ("*", 2, "MUL"), ("/", 2, "TRUE_DIV"), ("//", 2, "FLOOR_DIV")),
            *(("**", 2, "POW"), ("max", 2, "MAX"), ("min", 2, "MIN"), ("additive", 2, "ADD"), ("exp", 2, "EXP")),
            *(("switch_gt0", 2, "SWITCH_GT0"), ("abs_grad", 2, "ABS_GRAD")),
        )
    },
    ("[?:]", 2): _HEAD,
    ("[:?]", 2): _TAIL,
}


def _operator(name: str) -> Callable[..., Any]:
    def f(op: OpDef | str, *tensors: Any) -> Any:
        """The one result, or a tuple of several."""
        if not isinstance(op, OpDef):
            key = (op, len(tensors))
            if key not in OPERATORS:
                signs = sorted({sign for sign, _ in OPERATORS})
                raise OptionError(
                    f"{name}: no operator {op!r} of {counted(len(tensors), 'tensor')}; expected one of "
                    f"{', '.join(signs)}, or an op class (megengine.core.ops.builtin){nearest(str(op), signs)}"
                )
            op = OPERATORS[key]
        out = apply(op, *tensors)
        return out[0] if len(out) == 1 else out

    return f


class Subgraph:
    """An op that a function of other ops computes."""

    def __init__(self, formula: Formula, name: str, dtype: Any, nr_inputs: int, *, custom_grad: bool) -> None:
        self.formula, self.name, self.nr_inputs, self.custom_grad = formula, name, nr_inputs, custom_grad
        self.dtype = dtype

    def __repr__(self) -> str:
        return self.name

    def run(self, *inputs: Any) -> tuple[Any, ...]:
        """The outputs."""
        if len(inputs) < self.nr_inputs:
            raise ArgumentError(f"{self.name}: got {counted(len(inputs), 'tensor')}; expected {self.nr_inputs}")
        tensors = tuple(map(as_tensor, inputs))
        if self.custom_grad:
            out = _WithGradient(self)(*tensors)
            return out if isinstance(out, tuple) else (out,)
        outputs, has_gradient = self.formula(tensors, _operator(self.name), self.constant)
        pairs = itertools.zip_longest(outputs, has_gradient or (), fillvalue=True)
        return tuple(y if keeps else y.detach() for y, keeps in pairs)

    def constant(self, value: Any, dtype: Any = None, device: Any = None) -> Tensor:
        """A number of the dtype of the graph, unless another is named."""
        return Const(value, self.dtype if dtype is None else dtype, None)


class _WithGradient(Function):
    def __init__(self, op: Subgraph) -> None:
        self.op = op

    def forward(self, *inputs: Tensor) -> Any:
        """Runs the generator as far as the outputs."""
        self.steps = self.op.formula(inputs, _operator(self.op.name), self.op.constant)
        outputs: tuple[Tensor, ...] = tuple(self.steps.send(None))
        return outputs[0] if len(outputs) == 1 else outputs

    def backward(self, *output_grads: Tensor) -> tuple[Any, ...]:
        """Runs it to the gradients of the inputs."""
        return tuple(self.steps.send(output_grads))


def subgraph(
    name: str,
    dtype: Any,
    device: Any,
    nr_inputs: int,
    gopt_level: int | None = None,
    jit_fusion: bool = False,
    custom_grad: bool = False,
) -> Callable[[Formula], Callable[[], Subgraph]]:
    """Decorator: calling the function gives an op for `apply`."""
    return lambda function: lambda: Subgraph(function, name, dtype, nr_inputs, custom_grad=custom_grad)


def subgraph_fn(
    name: str,
    dtype: Any,
    device: Any,
    nr_inputs: int,
    gopt_level: int | None = None,
    jit_fusion: bool = False,
    custom_grad: bool = False,
    *,
    interpret: bool = False,
) -> Callable[[Formula], Callable[..., Any]]:
    """Decorator: the function takes tensors and gives the outputs: a tuple, or a list with `interpret`."""
    sequence = list if interpret else tuple
    build = subgraph(name, dtype, device, nr_inputs, gopt_level, jit_fusion, custom_grad)
    return lambda function: lambda *args: sequence(build(function)().run(*args))


def interpret_subgraph(func: Formula, dtype: Any, device: Any) -> Callable[..., list[Any]]:
    """The function of tensors that runs the graph each time."""
    return subgraph_fn(func.__name__, dtype, device, 0, interpret=True)(func)
