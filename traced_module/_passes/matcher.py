"""Finding MegEngine's patterns at an expression."""

from __future__ import annotations

from collections import Counter, OrderedDict

from megengine.traced_module._passes.pattern import CallPattern, ExprPattern, OrPattern, walk
from megengine.traced_module.ir.expr import Expr
from megengine.traced_module.patterns import match

__all__ = ["PatternMatcher"]


class PatternMatcher:
    """Matches a pattern with an expression and what is before it.

    Attributes:
        matched_patterns: patterns that have an expression, the whole last.
        matched_exprs: pattern -> expression.

    Example:
        >>> matcher = PatternMatcher()
        >>> if matcher.match(is_op(F.relu)(conv), expr):
        ...     matcher.matched_exprs[conv]
    """

    def __init__(self) -> None:
        self.matched_patterns: list[ExprPattern] = []
        self.matched_exprs: OrderedDict[ExprPattern, Expr] = OrderedDict()

    def match(self, pattern: ExprPattern, expr: Expr) -> bool:
        """True if it matches, with what is used nowhere else (see `ExprPattern.check_users`)."""
        self.matched_patterns, self.matched_exprs = [], OrderedDict()
        for node in expr.outputs:
            known: dict = {}
            native = pattern.native(known)
            found = match(native, node)
            if found is None:
                continue
            exprs = {i: found.expr(p) for i, p in known.items() if p in found}
            exprs[id(pattern)] = expr
            self._keep(pattern, exprs)
            if self._is_private(pattern):
                return True
            self.matched_patterns, self.matched_exprs = [], OrderedDict()
        return False

    def _keep(self, pattern: ExprPattern, exprs: dict[int, Expr]) -> None:
        """Note the parts that matched; what a call calls stands for the call."""
        called: dict[int, Expr] = {}
        for part in walk(pattern):
            if isinstance(part, CallPattern) and id(part) in exprs:
                for op in walk(part.op):
                    called.setdefault(id(op), exprs[id(part)])
        for part in walk(pattern):
            expr = exprs.get(id(part), called.get(id(part)))
            if expr is None or (id(part) in called and not part.fits(expr)):
                continue
            if part not in self.matched_exprs:
                self.matched_exprs[part] = expr
                self.matched_patterns.append(part)

    def _is_private(self, root: ExprPattern) -> bool:
        """True if what the parts stand for is used in the match only, as often as the pattern has it."""
        uses: Counter[int] = Counter()
        for part in self.matched_patterns:
            if isinstance(part, CallPattern):
                uses.update(i for arg in part.args for i in _stands_for(arg))
        calls = {id(self.matched_exprs[p]) for p in self.matched_patterns if isinstance(p, CallPattern)}
        for part, expr in self.matched_exprs.items():
            if part is root or not part._check_users or not uses[id(part)]:
                continue
            returned = any(node is out for node in expr.outputs for out in expr.top_graph.outputs)
            users = [node._users for node in expr.outputs]
            times = sum(sum(used.values()) for used in users)
            if returned or times != uses[id(part)] or any(id(u) not in calls for used in users for u in used):
                return False
        return True


def _stands_for(pattern: ExprPattern) -> list[int]:
    """A pattern and, where it is a choice, the choices."""
    if isinstance(pattern, OrPattern):
        return [id(pattern), *_stands_for(pattern.left), *_stands_for(pattern.right)]
    return [id(pattern)]
