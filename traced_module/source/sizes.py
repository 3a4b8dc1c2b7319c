"""Sizes that follow from open axes, as source."""

import ast
from collections.abc import Callable

from megengine.core.formulas import over_one, text_of
from megengine.core.sizes import OpenRatio, OpenSize
from megengine.traced_module.ir.node import Node, TensorNode

FUNCTIONS = {"largest": max.__name__, "least": min.__name__}


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


def size_text(size: OpenSize | OpenRatio, length: Callable[[str], str]) -> str:
    """The expression of a size; `length` gives the variable of an open length."""
    texts = []
    for formula in over_one(size.formula):
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
