"""Sizes that follow from open axes, as source."""

import ast
from collections.abc import Callable
from fractions import Fraction

from megengine.core.formulas import Formula, add, multiply, number_formula, text_of
from megengine.core.sizes import OpenRatio, OpenSize
from megengine.traced_module.ir.node import Node, TensorNode

FUNCTIONS = {"largest": "max", "least": "min"}


class _Locals(ast.NodeTransformer):
    """A formula's names and functions as those of the file."""

    def __init__(self, length: Callable[[str], str]) -> None:
        self._length = length

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._length(node.id))

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Name(self._length(node.value)) if isinstance(node.value, str) else node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        assert isinstance(node.func, ast.Name)
        return ast.Call(ast.Name(FUNCTIONS[node.func.id]), [self.visit(a) for a in node.args], [])


def _over_one(formula: Formula) -> tuple[Formula, Formula]:
    """Numerator and denominator: divided once, a result is rounded once."""
    top, bottom = number_formula(0), number_formula(1)
    for atoms, factor in formula:
        above, below = number_formula(factor.numerator), number_formula(factor.denominator)
        for atom in atoms:
            if isinstance(atom, tuple) and atom[0] == "/":
                above, below = multiply(above, atom[1]), multiply(below, atom[2])
            else:
                above = multiply(above, (((atom,), Fraction(1)),))
        top, bottom = add(multiply(top, below), multiply(above, bottom)), multiply(bottom, below)
    return top, bottom


def size_text(size: OpenSize | OpenRatio, length: Callable[[str], str]) -> str:
    """The expression of a size; `length` gives the variable of an open length."""
    texts = []
    for formula in _over_one(size.formula):
        tree = _Locals(length).visit(ast.parse(text_of(formula), mode="eval").body)
        texts.append(ast.unparse(ast.fix_missing_locations(tree)))
    top, bottom = (text if text.isidentifier() or text.isdigit() else f"({text})" for text in texts)
    if bottom == "1":
        return texts[0]
    return f"{top} // {bottom}" if isinstance(size, OpenSize) else f"{top} / {bottom}"


def shape_of(node: Node) -> tuple[int, ...]:
    """The shape of a tensor, () for other values."""
    spec = node.spec if isinstance(node, TensorNode) else None
    return () if spec is None else tuple(spec.shape)
