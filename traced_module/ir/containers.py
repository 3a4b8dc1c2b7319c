"""Parts of lists, tuples, dicts and Sequentials of modules, by their places and keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megengine.core.errors import ArgumentError, IndexOutOfRangeError, StateDictError, nearest
from megengine.module import Module
from megengine.tensor import Tensor


def part_names(module: Any) -> list[str]:
    """Names of the modules and tensors that a module holds; places in a list in their order."""
    entries = object.__getattribute__(module, "__dict__").items()
    names = [name for name, value in entries if isinstance(value, (Module, Tensor))]
    return sorted(names, key=int) if _are_places(names) else names


def part_name(module: Any, index: Any) -> str | list[str]:
    """The name of a part by its place or name; of a slice those of several. A place may count from the end.

    Names are taken for every module, places where there is an order.

    Raises:
        ArgumentError: the module has no places, or the index is of another kind.
        IndexOutOfRangeError: there is no such place.
        StateDictError: a KeyError: there is no such name.
    """
    names = part_names(module) if isinstance(index, str) else _listed(module)
    if isinstance(index, str):
        if index not in names:
            raise StateDictError(f"there is no part {index!r}{nearest(index, names)}; the parts are {_shown(names)}")
        return index
    if isinstance(index, slice):
        return names[index]
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise ArgumentError(f"an index of parts is {index!r}; expected a whole number, a slice or a name")
    at, length = int(index), part_count(module)
    name = str(at % length) if length and _are_places(names) else names[at] if -length <= at < length else ""
    if not -length <= at < length or name not in names:
        raise IndexOutOfRangeError(f"there is no part {at}; the parts are {_shown(names)}")
    return name


def part_count(module: Any) -> int:
    """How many parts there are; of a list its length, as far as parts show it. Raises as `part_name`."""
    names = _listed(module)
    return int(names[-1]) + 1 if names and _are_places(names) else len(names)


def keys_of_parts(module: Any) -> Iterator[str] | None:
    """The keys of a dict of modules; None for others, whose parts are iterated. Raises as `part_name`."""
    names = _listed(module)
    return None if module.graphs or _are_places(names) else iter(names)


def _listed(module: Any) -> list[str]:
    """Names of the parts of a container. Raises ArgumentError for other modules."""
    names = part_names(module)
    if getattr(module, "graphs", ()) and module.origin != "Sequential" and not _are_places(names):
        what = module.origin or "the module"
        raise ArgumentError(f"{what} is no list, dict or Sequential; read its parts by name: {_shown(names)}")
    return names


def _are_places(names: list[str]) -> bool:
    return bool(names) and all(name.isdecimal() and name.isascii() for name in names)


def _shown(names: list[str]) -> str:
    return ", ".join(names[:12]) + ", ..." * (len(names) > 12) if names else "none"
