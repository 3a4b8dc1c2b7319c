"""Sums of products of tensors by the letters of their axes."""

from __future__ import annotations

import math
import string
from typing import Any

from megengine.core.errors import OptionError, ShapeError
from megengine.core.text import counted
from megengine.dispatch import apply, public
from megengine.ops.common import as_tensor, factors
from megengine.ops.matmul import product
from megengine.tensor import Tensor


def _terms(equation: Any, count: int) -> tuple[list[str], str | None]:
    if not isinstance(equation, str):
        raise OptionError(f"einsum: equation is {equation!r}; expected a text such as 'ij,jk->ik'")
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    for term in (*terms, output):
        letters = term.replace("...", "", 1)
        if not all(c in string.ascii_letters for c in letters):
            raise OptionError(f"einsum: {equation!r} holds {term!r}; expected letters, and '...' at most once")
    if len(terms) != count:
        raise OptionError(f"einsum: {equation!r} names {counted(len(terms), 'tensor')}; got {count}")
    return terms, output if arrow else None


def _spelt(term: str, ndim: int, rest: str) -> str:
    """A term with letters of `rest` in place of its dots, aligned at the last ones, as NumPy broadcasts."""
    letters = term.replace("...", "")
    extra = ndim - len(letters)
    if extra < 0 or (extra and "..." not in term) or extra > len(rest):
        raise ShapeError(f"einsum: {term!r} names {counted(len(letters), 'axis')}; got a tensor of {ndim}")
    return term.replace("...", rest[len(rest) - extra :])


def _diagonals(x: Tensor, term: str) -> tuple[Tensor, str]:
    """The diagonal along axes that have the same letter."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            i, j = term.index(letter), term.rindex(letter)
            n = x.shape[i]
            if x.shape[j] != n:
                raise ShapeError(f"einsum: {letter!r} stands for axes of length {n} and {x.shape[j]}")
            order = (*(a for a in range(x.ndim) if a not in (i, j)), i, j)
            moved = apply("transpose", x, perm=order)
            flat = apply("reshape", moved, shape=(*moved.shape[:-2], n * n))
            step = (None,) * (flat.ndim - 1)
            x = apply("slice", flat, starts=(*step, 0), stops=(*step, n * n), steps=(*[1] * len(step), n + 1))
            term = "".join(term[a] for a in order[:-2]) + letter
    return x, term


def _summed(x: Tensor, term: str, keep: str) -> tuple[Tensor, str]:
    axes = tuple(i for i, letter in enumerate(term) if letter not in keep)
    if not axes:
        return x, term
    return apply("sum", x, axis=axes, keepdims=False), "".join(c for c in term if c in keep)


def _ordered(x: Tensor, term: str, wanted: str) -> Tensor:
    order = tuple(term.index(c) for c in wanted)
    return x if order == tuple(range(len(order))) else apply("transpose", x, perm=order)


def _lengths(terms: list[str], tensors: list[Tensor]) -> dict[str, int]:
    lengths: dict[str, int] = {}
    for term, x in zip(terms, tensors, strict=True):
        for letter, n in zip(term, x.shape, strict=True):
            have = lengths.get(letter, 1)
            if n != have and 1 not in (n, have):
                raise ShapeError(f"einsum: {letter!r} stands for axes of length {have} and {n}")
            lengths[letter] = n if have == 1 else have
    return lengths


def _joined(a: Tensor, b: Tensor, left: str, right: str, keep: str) -> tuple[Tensor, str]:
    """One batched matrix product: shared letters that are kept form the batch, the other shared ones are summed."""
    a, left = _summed(a, left, keep + right)
    b, right = _summed(b, right, keep + left)
    a, b = factors("einsum", a, b)
    lengths = _lengths([left, right], [a, b])
    batch = [c for c in left if c in right and c in keep]
    inner = [c for c in left if c in right and c not in keep]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]

    def size(letters: list[str]) -> int:
        return math.prod(lengths[c] for c in letters)

    def matrix(x: Tensor, term: str, first: list[str], second: list[str]) -> Tensor:
        x = _ordered(x, term, "".join(batch + first + second))
        x = apply("broadcast_to", x, shape=tuple(lengths[c] for c in batch + first + second))
        return apply("reshape", x, shape=(*(lengths[c] for c in batch), size(first), size(second)))

    y = product(matrix(a, left, rows, inner), matrix(b, right, inner, columns))
    letters = batch + rows + columns
    return apply("reshape", y, shape=tuple(lengths[c] for c in letters)), "".join(letters)


@public(home="megengine.functional.math")
def einsum(equation: str, *operands: Any) -> Tensor:
    """Sum of products by Einstein's notation: `einsum("bij,bjk->bik", x, y)` multiplies batches of matrices.

    A letter names an axis. Letters that are missing behind `->` are summed; a letter twice in one term takes the
    diagonal; `...` stands for any leading axes, which broadcast. Without `->` the result has the letters that occur
    once, in alphabetical order. Tensors are multiplied from left to right. Any float or integer dtype.
    Raises OptionError for an invalid equation and ShapeError where lengths differ.
    """
    tensors = [as_tensor(x) for x in operands]
    if not tensors:
        raise OptionError(f"einsum: {equation!r} got no tensors; expected one for each term")
    terms, output = _terms(equation, len(tensors))
    used = set("".join(terms))
    free = [c for c in string.ascii_letters if c not in used]
    widest = max(
        (x.ndim - len(t.replace("...", "")) for t, x in zip(terms, tensors, strict=True) if "..." in t), default=0
    )
    if widest > len(free):
        raise OptionError(f"einsum: {equation!r} needs more letters than there are")
    rest = "".join(free[: max(widest, 0)])
    spelt = [_spelt(t, x.ndim, rest) for t, x in zip(terms, tensors, strict=True)]
    if output is None:
        output = rest + "".join(sorted(c for c in used if c.isalpha() and "".join(spelt).count(c) == 1))
    else:
        output = output.replace("...", rest)
    if len(set(output)) != len(output) or set(output) - set("".join(spelt)):
        raise OptionError(f"einsum: the result of {equation!r} is {output!r}; expected letters of the terms, once each")
    _lengths(spelt, tensors)
    total, have = _diagonals(tensors[0], spelt[0])
    for k, (term, x) in enumerate(zip(spelt[1:], tensors[1:], strict=True), 2):
        x, term = _diagonals(x, term)
        total, have = _joined(total, x, have, term, output + "".join(spelt[k:]))
    total, have = _summed(total, have, output)
    return _ordered(total, have, output)
