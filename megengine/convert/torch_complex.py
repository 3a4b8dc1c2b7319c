"""Complex numbers of torch as pairs of real ones, for what torch's exporter to ONNX translates of real numbers only."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Parts:
    """A complex tensor: two real ones of the same shape; or a complex number."""

    re: Any
    im: Any


def in_real_parts(torch: Any, program: Any, inputs: tuple[Any, ...], named: dict[str, Any], shapes: Any) -> Any:
    """An exported program whose complex values are pairs of real ones; one without complex values as it is.

    A complex result has its parts along a new last axis. Raises NotImplementedError for functions without a rule.
    """
    if not any(map(_is_complex, program.graph.nodes)):
        return program
    program = _decomposed(torch, program)
    graph = program.module()

    class Real(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of = graph

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return _run(torch, self.of, torch.utils._pytree.tree_leaves([*args, *kwargs.values()]))

    return torch.export.export(Real(), inputs, named, dynamic_shapes=shapes, strict=False)


def _is_complex(node: Any) -> bool:
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return any(getattr(getattr(v, "dtype", None), "is_complex", False) for v in parts)


def _decomposed(torch: Any, program: Any) -> Any:
    """The program in which functions of complex values are those that have no parts of their own."""
    table, done = torch.export.default_decompositions(), set()
    while True:
        found = {n.target for n in program.graph.nodes if any(map(_is_complex, (n, *n.all_input_nodes)))}
        new = {target for target in found - done if target in table}
        if not new:
            return program
        done |= new
        program = program.run_decompositions({target: table[target] for target in done})


def _run(torch: Any, module: Any, leaves: list[Any]) -> Any:
    """What the graph of a module gives, computed by parts."""
    values: dict[Any, Any] = {}
    given: Iterator[Any] = iter(leaves)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = _apart(torch, next(given))
        elif node.op == "get_attr":
            values[node] = _apart(torch, operator.attrgetter(node.target)(module))
        elif node.op == "call_function":
            args, named = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = _called(torch, node.target, list(args), dict(named))
        elif node.op == "output":
            made = torch.fx.node.map_arg(node.args[0], values.__getitem__)
            return _with_parts(torch, lambda v: torch.stack((v.re, v.im), -1), made)
    raise AssertionError("a graph ends with its output")


def _apart(torch: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_complex():
        pair = torch.view_as_real(value)
        return Parts(pair[..., 0], pair[..., 1])
    return Parts(value.real, value.imag) if isinstance(value, complex) else value


def _with_parts(torch: Any, change: Callable[[Parts], Any], value: Any) -> Any:
    mapped = torch.utils._pytree.tree_map
    return mapped(lambda v: change(v) if isinstance(v, Parts) else v, value, is_leaf=lambda v: isinstance(v, Parts))


def _called(torch: Any, target: Any, args: list[Any], named: dict[str, Any]) -> Any:
    name = getattr(target, "overloadpacket", target)
    real_of = {torch.complex64: torch.float32, torch.complex128: torch.float64}
    makes = named.get("dtype") in real_of
    named = {key: real_of.get(value, value) if key == "dtype" else value for key, value in named.items()}
    args = [_apart(torch, a) if isinstance(a, complex) else a for a in args]
    leaves = torch.utils._pytree.tree_leaves((args, named), is_leaf=lambda v: isinstance(v, Parts))
    if (rule := _rules(torch).get(name)) is not None and (makes or any(isinstance(v, Parts) for v in leaves)):
        return rule(target, *args, **named)
    if (rule := _makers(torch).get(name)) is not None:
        return rule(target, *args, **named)
    if makes:  # zeros, and real numbers that become complex
        made = target(*_with_parts(torch, lambda v: v.re, args), **named)
        return Parts(made, torch.zeros_like(made))
    if not any(isinstance(v, Parts) for v in leaves):
        return target(*args, **named)
    if name in _products(torch):
        return _product(target, *map(_pair, args[:2]))
    if name not in _same_on_parts(torch):
        raise NotImplementedError(f"no rule for {name} of complex numbers")
    made = [target(*_with_parts(torch, take, args), **named) for take in (lambda v: v.re, lambda v: v.im)]
    return [Parts(*pair) for pair in zip(*made, strict=True)] if isinstance(made[0], (list, tuple)) else Parts(*made)


def _same_on_parts(torch: Any) -> set[Any]:
    """Functions that give their real and imaginary parts of these parts."""
    aten = torch.ops.aten
    return {
        aten.alias, aten.cat, aten.clone, aten.constant_pad_nd, aten.contiguous, aten.copy, aten.detach,
        aten.expand, aten.flip, aten.gather, operator.getitem, aten.index, aten.index_put, aten.index_select,
        aten.lift_fresh_copy, aten.mean, aten.neg, aten.permute, aten.pixel_shuffle, aten.repeat, aten.reshape,
        aten.resolve_conj, aten.resolve_neg, aten.roll, aten.select, aten.select_scatter, aten.slice,
        aten.slice_scatter, aten.split, aten.split_with_sizes, aten.squeeze, aten.squeeze_copy, aten.stack,
        aten.sum, aten.t, aten.transpose, aten.unbind, aten.unsqueeze, aten.view, aten.where, aten._unsafe_view,
    }  # fmt: skip


def _products(torch: Any) -> set[Any]:
    aten = torch.ops.aten
    return {aten.mul, aten.mm, aten.bmm, aten.matmul, aten.dot, aten.mv}


def _pair(value: Any) -> Parts:
    """Of a real value, without an imaginary part."""
    return value if isinstance(value, Parts) else Parts(value, None)


def _product(target: Callable[..., Any], a: Parts, b: Parts) -> Parts:
    if b.im is None:
        return Parts(target(a.re, b.re), target(a.im, b.re))
    if a.im is None:
        return Parts(target(a.re, b.re), target(a.re, b.im))
    return Parts(target(a.re, b.re) - target(a.im, b.im), target(a.re, b.im) + target(a.im, b.re))


def _makers(torch: Any) -> dict[Any, Callable[..., Any]]:
    """Functions of real values that give complex ones."""
    aten = torch.ops.aten
    return {
        aten.complex: lambda op, re, im: Parts(re, im),
        aten.polar: lambda op, length, angle: Parts(length * torch.cos(angle), length * torch.sin(angle)),
        aten.view_as_complex: lambda op, x: Parts(x[..., 0], x[..., 1]),
        aten._fft_r2c: lambda op, *args: _apart(torch, op(*args)),
    }


def _rules(torch: Any) -> dict[Any, Callable[..., Any]]:
    """Functions of complex values, each with its op."""
    aten = torch.ops.aten

    def whole(x: Parts) -> Any:
        return torch.view_as_complex(torch.stack((x.re, x.im), -1))

    def inverse(x: Parts) -> Parts:
        power = x.re * x.re + x.im * x.im
        return Parts(x.re / power, -x.im / power)

    def quotient(op: Any, a: Any, b: Any) -> Parts:
        if not isinstance(b, Parts):
            return Parts(a.re / b, a.im / b)
        return _product(torch.mul, _pair(a), inverse(b))

    def total(op: Any, a: Any, b: Any, alpha: float = 1) -> Parts:
        a, b = _pair(a), _pair(b)
        zero = torch.zeros_like(a.re if isinstance(a.re, torch.Tensor) else b.re)
        return Parts(
            op(a.re, b.re, alpha=alpha),
            op(zero if a.im is None else a.im, zero if b.im is None else b.im, alpha=alpha),
        )

    def power(op: Any, x: Parts, exponent: Any) -> Parts:
        if exponent != 2:
            raise NotImplementedError(f"no rule for powers of {exponent} of complex numbers")
        return _product(torch.mul, x, x)

    def filled(op: Any, like: Any, value: Any, **named: Any) -> Parts:
        pair = _pair(value)
        like = like.re if isinstance(like, Parts) else like
        return Parts(op(like, pair.re, **named), op(like, pair.im or 0, **named))

    return {
        **dict.fromkeys((aten.add, aten.sub), total),
        **dict.fromkeys(
            (aten._conj, aten.conj_physical, aten._conj_physical, aten.conj), lambda op, x: Parts(x.re, -x.im)
        ),
        **dict.fromkeys((aten.full, aten.full_like), filled),
        aten.zeros_like: lambda op, x, **named: Parts(torch.zeros_like(x.re), torch.zeros_like(x.im)),
        aten._to_copy: lambda op, x, **named: x if isinstance(x, Parts) else Parts(x, torch.zeros_like(x)),
        aten.real: lambda op, x: x.re,
        aten.imag: lambda op, x: x.im,
        aten.view_as_real: lambda op, x: torch.stack((x.re, x.im), -1),
        aten.abs: lambda op, x: torch.sqrt(x.re * x.re + x.im * x.im),
        aten.angle: lambda op, x: torch.atan2(x.im, x.re),
        aten.exp: lambda op, x: Parts(torch.exp(x.re) * torch.cos(x.im), torch.exp(x.re) * torch.sin(x.im)),
        aten.reciprocal: lambda op, x: inverse(x),
        aten.div: quotient,
        aten.pow: power,
        aten._fft_c2c: lambda op, x, *args: _apart(torch, op(whole(x), *args)),
        aten._fft_c2r: lambda op, x, *args: op(whole(x), *args),
    }


__all__ = ["in_real_parts"]
