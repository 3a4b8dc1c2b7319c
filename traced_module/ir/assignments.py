"""`node[key] = value` while a graph is edited: from there on the node stands for the new value, as a tensor would.

In a graph all are values, so the assignment makes another node. What follows it uses that one, and what a program
says of the old node later means it too.
"""

from __future__ import annotations

from typing import Any


class Assignments:
    """The nodes of a graph to whose items something was assigned, and their values since.

    The values in between, which no program holds, are what they are.
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[Any, list[Any]]] = {}  # id of a node -> the node and its values, the last at last

    def note(self, node: Any, value: Any) -> None:
        """A node, and every other one that had its value, has another value from now on."""
        before = self.latest(node)
        self._values.setdefault(id(node), (node, []))
        for other, values in self._values.values():
            if other is node or self.latest(other) is before:
                values.append(value)

    def latest(self, value: Any) -> Any:
        """What a node stands for; of an assignment that was undone nothing is left. Other values as they are."""
        node, values = self._values.get(id(value), (value, ()))
        return next((v for v in reversed(values) if v.expr.in_graph), value) if node is value else value

    def end(self, first_id: int) -> None:
        """After an insertion, nodes that stood before it are what they were; those it made keep their values."""
        self._values = {key: pair for key, pair in self._values.items() if pair[0].expr.id >= first_id}
