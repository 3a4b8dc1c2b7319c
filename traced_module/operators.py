"""Python's operators: the sign of each method (by the stem of its name), and the op that it is."""

from __future__ import annotations

BINARY = {
    **{"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@"},
    **{"lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^"},
}
COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
UNARY = {"neg": "-", "pos": "+", "invert": "~"}
STEMS = {sign: stem for stem, sign in BINARY.items()}
ARITHMETIC = tuple(STEMS[sign] for sign in "+-*/")
COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "and", "or", "xor", "eq", "ne"})


def op_of(sign: str) -> str:
    """The op of an arithmetic operator: "+" gives add, "/" div."""
    return STEMS[sign].removeprefix("true")
