"""Formulas of open sizes in a normal form: sums of products of atoms, which are names and operations on formulas."""

from __future__ import annotations

import ast
import keyword
import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from typing import TypeAlias

from megengine.core.errors import ShapeError

Atom: TypeAlias = "str | tuple[str, Formula, Formula]"  # a name, or an operation and its operands
Formula: TypeAlias = "tuple[tuple[tuple[Atom, ...], Fraction], ...]"  # products of atoms with their factors, sorted
_MAX_TERMS = 64  # of a formula; longer ones stand for sizes that no network has
MAX_TEXT = 10_000
_MAX_STORED = 5 * MAX_TEXT  # of Python's text of a formula, which has six letters for one: each rounding may double it
FUNCTIONS = ("largest", "least")
_UNBOUNDED = (1 << 31) - 1


def _formula(terms: Mapping[tuple[Atom, ...], Fraction]) -> Formula:
    kept = sorted((-len(atoms), repr(atoms), atoms, factor) for atoms, factor in terms.items() if factor)
    if len(kept) > _MAX_TERMS:
        raise ShapeError(f"a size follows from the open sizes by a formula of more than {_MAX_TERMS} terms")
    if sum(len(text) for _, text, *_ in kept) > _MAX_STORED:
        raise ShapeError(
            f"a size follows from the open sizes by a formula of more than {MAX_TEXT} letters; give a fixed length in "
            "the place of an open one"
        )
    return tuple((atoms, factor) for *_, atoms, factor in kept)


def number_formula(value: float | Fraction) -> Formula:
    return _formula({(): Fraction(value)})


_ONE = number_formula(1)


def add(a: Formula, b: Formula, sign: int = 1) -> Formula:
    terms = dict(a)
    for atoms, factor in b:
        terms[atoms] = terms.get(atoms, Fraction(0)) + sign * factor
    return _formula(terms)


def multiply(a: Formula, b: Formula) -> Formula:
    for number, other in ((a, b), (b, a)):
        if len(number) == 1 and not number[0][0]:  # the order of terms does not depend on their factors
            factor = number[0][1]
            return other if factor == 1 else tuple((atoms, f * factor) for atoms, f in other)
    terms: dict[tuple[Atom, ...], Fraction] = {}
    for left, f in a:
        for right, g in b:
            atoms = _cancelled((*left, *right))
            terms[atoms] = terms.get(atoms, Fraction(0)) + f * g
    return _formula(terms)


def _cancelled(atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """Factors in their order, without those that are divided by too."""
    kept = list(atoms)
    for atom in atoms:
        below = atom[2][0][0][0] if isinstance(atom, tuple) and atom[0] == "/" and len(atom[2]) == 1 else None
        if below is not None and below in kept:
            kept.remove(atom)
            kept.remove(below)
    return tuple(sorted(kept, key=repr))


def constant_of(a: Formula) -> Fraction | None:
    return Fraction(0) if not a else a[0][1] if len(a) == 1 and not a[0][0] else None


def _divided(a: Formula, b: Formula) -> Formula | None:
    """The exact quotient of two formulas, None where there is none."""
    quotient, rest = (), a
    lead, factor = b[0]
    for _ in range(_MAX_TERMS):
        if not rest:
            return quotient
        left = list(rest[0][0])
        for atom in lead:
            if atom not in left:
                return None
            left.remove(atom)
        part = _formula({tuple(left): rest[0][1] / factor})
        quotient, rest = add(quotient, part), add(rest, multiply(part, b), -1)
    return None


def quotient(a: Formula, b: Formula) -> Formula:
    if not b:
        raise ZeroDivisionError
    exact = _divided(a, b)
    if exact is not None:
        return exact
    if len(b) != 1:
        return multiply(a, (((("/", _ONE, b),), Fraction(1)),))
    (atoms, factor), made = b[0], a  # by each of its atoms, which may cancel later
    for atom in atoms:
        made = multiply(made, (((("/", _ONE, (((atom,), Fraction(1)),)),), Fraction(1)),))
    return multiply(made, number_formula(1 / factor))


def divides(atoms: tuple[Atom, ...]) -> bool:
    """Whether a product is divided by something that follows from sizes, or has a factor that may be no integer."""
    return any(isinstance(atom, tuple) and (atom[0] == "/" or _may_be_broken(atom)) for atom in atoms)


def _may_be_broken(atom: tuple[str, Formula, Formula]) -> bool:
    """Whether the largest or least of two formulas may be no integer."""
    return atom[0] in FUNCTIONS and any(f.denominator > 1 or divides(inner) for a in atom[1:] for inner, f in a)


def over_one(a: Formula) -> tuple[Formula, Formula]:
    """Numerator and denominator, without quotients in them: a result is divided once, and so rounded once."""
    scale = math.lcm(*(factor.denominator for _, factor in a))
    top, bottom = number_formula(0), number_formula(1)
    for atoms, factor in a:
        above, below = number_formula(factor * scale), number_formula(1)
        for atom in atoms:
            if isinstance(atom, tuple) and atom[0] == "/":
                above, below = multiply(above, atom[1]), multiply(below, atom[2])
            else:
                above = multiply(above, (((_of_products(atom),), Fraction(1)),))
        top, bottom = add(multiply(top, below), multiply(above, bottom)), multiply(bottom, below)
    return top, multiply(bottom, number_formula(scale))


def _of_products(atom: Atom) -> Atom:
    """A rounded quotient without quotients in its operands."""
    if isinstance(atom, str) or atom[0] != "//":
        return atom
    (top, under), (bottom, over) = over_one(atom[1]), over_one(atom[2])
    return "//", multiply(top, over), multiply(under, bottom)


def rounded_down(a: Formula) -> Formula:
    """The formula rounded down: what is whole stands outside, and a quotient of a rounded quotient is one quotient."""
    whole: dict[tuple[Atom, ...], Fraction] = {}
    rest: dict[tuple[Atom, ...], Fraction] = {}
    for atoms, factor in a:
        outside = Fraction(0) if divides(atoms) else Fraction(math.floor(factor))
        whole[atoms], rest[atoms] = outside, factor - outside
    left = _formula(rest)
    constant = constant_of(left)
    if constant is not None:  # below 1
        return _formula(whole)
    parts = math.lcm(*(factor.denominator for _, factor in left))
    if any(divides(atoms) for atoms, _ in left):
        return add(_formula(whole), (((("//", left, _ONE),), Fraction(1)),))
    lead, share = left[0]
    if share > Fraction(1, 2):  # -n // -4 and (n + 3) // 4 are one formula
        rounded_up = rounded_down(
            add(add(((lead, Fraction(1)),), left, -1), number_formula(Fraction(parts - 1, parts)))
        )
        return add(add(_formula(whole), ((lead, Fraction(1)),)), rounded_up, -1)
    above = multiply(left, number_formula(parts))
    for atoms, factor in above:
        inner = atoms[0] if len(atoms) == 1 and factor == 1 else None
        if isinstance(inner, tuple) and inner[0] == "//" and parts > 1:
            others = add(above, ((atoms, factor),), -1)
            if below := constant_of(inner[2]):
                under = add(multiply(inner[1], number_formula(1 / below)), others)
                return add(_formula(whole), rounded_down(multiply(under, number_formula(Fraction(1, parts)))))
    return add(_formula(whole), (((("//", above, number_formula(parts)),), Fraction(1)),))


def _least_of_quotients(a: Formula) -> Fraction | None:
    """A lower bound where rounding down takes at most the whole fraction below 1 away."""
    for atoms, factor in a:
        atom = atoms[0] if factor > 0 and len(atoms) == 1 else ""
        if isinstance(atom, tuple) and atom[0] == "//" and (below := constant_of(atom[2])):
            under = add(atom[1], number_formula(1 - below))
            rest = add(add(a, ((atoms, factor),), -1), multiply(under, number_formula(factor / below)))
            return _least_value(rest)
    return None


def _least_value(a: Formula) -> Fraction | None:
    """What a formula is at least where every named size is 1 or more; None where that is not known."""
    for atoms, factor in a:  # what is taken away is at most the quotient before it is rounded down
        atom = atoms[0] if factor < 0 and len(atoms) == 1 else ""
        if isinstance(atom, tuple) and atom[0] == "//" and (below := constant_of(atom[2])):
            relaxed = multiply(atom[1], number_formula(factor / below))
            return _least_value(add(add(a, ((atoms, factor),), -1), relaxed))
    if any(factor < 0 for atoms, factor in a if atoms):
        return _least_of_quotients(a)
    if not all(_is_natural(atom) for atoms, _ in a for atom in atoms):
        return None
    named = (factor for atoms, factor in a if all(isinstance(atom, str) for atom in atoms))
    return sum(named, Fraction(0))


def _is_natural(atom: Atom) -> bool:
    """Whether an atom is known to be never negative: a quotient of something negative may be."""
    if isinstance(atom, str):
        return True
    known = [(least := _least_value(operand)) is not None and least >= 0 for operand in atom[1:]]
    return any(known) if atom[0] == "largest" else all(known)


_EXACT: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "/": lambda a, b: a / b,
    "//": lambda a, b: Fraction(math.floor(a / b)),
    "largest": max,
    "least": min,
}


def evaluated(a: Formula, sizes: Mapping[str, int]) -> Fraction:
    total = Fraction(0)
    for atoms, factor in a:
        for atom in atoms:
            if isinstance(atom, str):
                factor *= sizes[atom]
            else:
                factor *= _EXACT[atom[0]](evaluated(atom[1], sizes), evaluated(atom[2], sizes))
        total += factor
    return total


def substituted(a: Formula, sizes: Mapping[str, Formula]) -> Formula:
    """A formula with others in the place of some names."""
    total: Formula = ()
    for atoms, factor in a:
        term = number_formula(factor)
        for atom in atoms:
            if isinstance(atom, str):
                part = sizes[atom] if atom in sizes else (((atom,), Fraction(1)),)
            else:
                first, second = (substituted(operand, sizes) for operand in atom[1:])
                part = quotient(first, second) if "/" in atom[0] else extreme(atom[0], first, second)
                part = rounded_down(part) if atom[0] == "//" else part
            term = multiply(term, part)
        total = add(total, term)
    return total


def names_in(a: Formula) -> Iterator[str]:
    for atoms, _ in a:
        for atom in atoms:
            if isinstance(atom, str):
                yield atom
            else:
                yield from names_in(atom[1])
                yield from names_in(atom[2])


# ---------------------------------------------------------------- text


@cache
def text_of(a: Formula) -> str:
    """The formula in Python's notation; names that are no identifiers stand in quotes."""
    parts: list[str] = []
    for atoms, factor in a:
        above = [str(abs(factor.numerator))] if abs(factor.numerator) != 1 or not atoms else []
        product = "*".join([*above, *map(_atom_text, atoms)])
        product += f"/{factor.denominator}" if factor.denominator != 1 else ""
        sign = ("-" if factor < 0 else "") if not parts else (" - " if factor < 0 else " + ")
        parts.append(sign + product)
    return "".join(parts) or "0"


def _is_read_as_name(text: str) -> bool:
    """Whether a parser of Python takes a text for a name, and for this one: it normalises letters."""
    reserved = keyword.iskeyword(text) or text in FUNCTIONS
    return text.isidentifier() and not reserved and unicodedata.is_normalized("NFKC", text)


def _atom_text(atom: Atom) -> str:
    if isinstance(atom, str):
        return atom if _is_read_as_name(atom) else repr(atom)
    operator, a, b = atom
    if operator in FUNCTIONS:
        return f"{operator}({text_of(a)}, {text_of(b)})"
    return f"({_in_brackets(a)}{operator}{_in_brackets(b)})"


def _in_brackets(a: Formula) -> str:
    text = text_of(a)
    return f"({text})" if len(a) > 1 or not text.replace("_", "a").isalnum() else text


def parsed(node: ast.AST) -> Formula:
    match node:
        case ast.Name(id=name):
            return (((name,), Fraction(1)),)
        case ast.Constant(value=str(name)):
            return (((name,), Fraction(1)),)
        case ast.Constant(value=int(number)):
            return number_formula(number)
        case ast.UnaryOp(op=ast.USub(), operand=a):
            return multiply(number_formula(-1), parsed(a))
        case ast.BinOp(left=a, op=operator, right=b) if type(operator) in BINARY:
            return BINARY[type(operator)](parsed(a), parsed(b))
        case ast.Call(func=ast.Name(id="largest" | "least" as name), args=[a, b]):
            return extreme(name, parsed(a), parsed(b))
    raise ValueError


@lru_cache(4096)  # a network divides the same few sizes at each of its windows
def _floored(a: Formula, b: Formula) -> Formula:
    return rounded_down(quotient(a, b))


BINARY: dict[type, Callable[[Formula, Formula], Formula]] = {
    ast.Add: add,
    ast.Sub: lambda a, b: add(a, b, -1),
    ast.Mult: multiply,
    ast.Div: quotient,
    ast.FloorDiv: _floored,
}


def sign_of(a: Formula) -> int | None:
    """1 for what is positive at every size, 0 for what is never negative, -1 for what is negative; None if unknown."""
    alone = dict(a).get((), Fraction(0))
    if abs(alone) >= _UNBOUNDED:  # what files write for "to the end"
        return 1 if alone > 0 else -1
    low, high = _least_value(a), _least_value(multiply(a, number_formula(-1)))
    if high is not None and high > 0:
        return -1
    return None if low is None or low < 0 else 1 if low > 0 else 0


def extreme(name: str, a: Formula, b: Formula) -> Formula:
    """The largest or least of two formulas: one of them where that is known."""
    for first, other in ((a, b), (b, a)):
        if (sign := sign_of(add(first, other, -1))) is not None:
            return first if (sign >= 0) == (name == "largest") else other
        inner = other[0][0][0] if len(other) == 1 and other[0][1] == 1 and len(other[0][0]) == 1 else ""
        if isinstance(inner, tuple) and inner[0] in ("largest", "least") and first in inner[1:]:
            return other if inner[0] == name else first
    a, b = sorted((a, b), key=repr)
    return ((((name, a, b),), Fraction(1)),)
