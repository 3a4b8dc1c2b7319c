"""`node[key] = value` while a graph is edited: from there on the node stands for the new value, as a tensor would.

In a graph all are values, so the assignment makes another node. What follows it uses that one, and what a program
says of the old node later means it too.
"""

from __future__ import annotations

from typing import Any


class Assignments:
    """The nodes of a graph to whose items something was assigned, and their values since."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Any, Any]] = {}  # id of a node -> the node and its value

    def note(self, node: Any, value: Any) -> None:
        """A node has another value from now on."""
        self._values[id(node)] = (node, value)

    def latest(self, value: Any) -> Any:
        """What a node stands for; of an assignment that was undone nothing is left. Other values as they are."""
        while (found := self._values.get(id(value))) is not None and found[1].expr.in_graph:
            value = found[1]
        return value

    def end(self, first_id: int) -> None:
        """After an insertion, nodes that stood before it are what they were; those it made keep their values."""
        self._values = {key: pair for key, pair in self._values.items() if pair[0].expr.id >= first_id}
