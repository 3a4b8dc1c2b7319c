"""Names of nodes: identifiers, unique in their graph, counted as MegEngine counts them."""

from __future__ import annotations

import builtins
import heapq
import keyword
import re
from collections.abc import Iterator, Mapping

from megengine.traced_module.ir.node import Node

END_NAMES = "onnx.names"  # metadata of a graph: what an ONNX file calls its inputs and results, by their nodes
STAND_INS = ("_dq", "_int", "_rq")  # behind the name of a value: what stands for it in a quantized network
_NOT_IDENTIFIER = re.compile(r"\W")
_COUNTED = re.compile(r"(.*)_(\d+)")
_RESERVED = frozenset(dir(builtins))


def identifier(text: str) -> str:
    """A name made of word characters that does not start with a digit."""
    if not text.isascii() or not text.isidentifier():  # mostly it is one
        text = _NOT_IDENTIFIER.sub("_", text) or "_"
    return f"_{text}" if text[0].isdigit() or keyword.iskeyword(text) else text


def written_name(text: str) -> str:
    """The name that MegEngine makes of a text that is set as one: `a.b c` is `a_b_c`, `class` is `class_1`."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII)
    name = f"_{name}" if name[:1].isdigit() else name
    return f"{name}_1" if keyword.iskeyword(name) or name in _RESERVED else name


def without_count(name: str) -> str:
    """A name without the count that it ends with (`conv_out` of `conv_out_2`)."""
    counted = _COUNTED.fullmatch(name)
    return counted[1] if counted else name


class NameSpace:
    """The names of one graph.

    A name in use, or the name of a Python builtin, gets `_1`, `_2`, ...; a count that it already ends with is
    replaced. Names can be taken without a node: while tracing, each read of a submodule counts.
    """

    __slots__ = ("_counts", "_freed", "_used")

    def __init__(self) -> None:
        self._used: dict[str, Node | None] = {}
        self._counts: dict[str, int] = {}  # base -> all counts up to this one were found in use
        self._freed: dict[str, list[int]] = {}  # base -> a heap of those that were given back since

    def copy(self, nodes: Mapping[int, Node | None]) -> NameSpace:
        """The same names for other nodes, given by the ids of these."""
        other = NameSpace()
        other._used = {name: nodes[id(node)] for name, node in self._used.items()}
        return other

    def __contains__(self, name: object) -> bool:
        return name in self._used

    def __iter__(self) -> Iterator[str]:
        return iter(self._used)

    def get(self, name: str) -> Node | None:
        """The node of that name, if there is one."""
        return self._used.get(name)

    def nodes(self) -> dict[str, Node]:
        """Name -> node."""
        return {name: node for name, node in self._used.items() if node is not None}

    def unique(self, name: str) -> str:
        """A free name made from `name`; it is not taken yet."""
        name = identifier(name)
        if name not in self._used and name not in _RESERVED:
            return name
        base = without_count(name)
        freed = self._freed.get(base)
        while freed:
            if f"{base}_{freed[0]}" not in self._used:
                return f"{base}_{freed[0]}"
            heapq.heappop(freed)
        count = self._counts.get(base, 0) + 1
        while f"{base}_{count}" in self._used:
            count += 1
        self._counts[base] = count - 1  # the count itself is given when the name is taken; a freed one may come again
        return f"{base}_{count}"

    def take(self, name: str, node: Node | None) -> None:
        """Let a free name stand for a node, or for nothing."""
        self._used[name] = node

    def free(self, name: str) -> None:
        """Give a name back."""
        self._used.pop(name, None)
        counted = _COUNTED.fullmatch(name)
        if counted is None:
            return
        highest = self._counts.get(counted[1], 0)
        if len(counted[2]) < 10 and 0 < int(counted[2]) <= highest:
            freed = self._freed.setdefault(counted[1], [])
            if len(freed) > 2 * highest:  # taken and given back again and again, as by undo and redo
                freed[:] = sorted(set(freed))
            heapq.heappush(freed, int(counted[2]))
