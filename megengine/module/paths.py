"""The path of a submodule: the attribute that it was first set as, below the path of the module around it."""

from __future__ import annotations

from typing import Any


class Place:
    """The position of a module: its path in the module around it, and the position of that module.

    Places refer to places, not to modules: a module that is set deeper later moves all below it at once.
    """

    __slots__ = ("name", "outer")

    def __init__(self, name: str = "", outer: Place | None = None) -> None:
        self.name, self.outer = name, outer

    @property
    def path(self) -> str:
        """Names of all places around it and its own, with dots; empty for a module that was set nowhere."""
        names: list[str] = []
        seen: set[int] = set()
        at: Place | None = self
        while at is not None and id(at) not in seen:  # modules may hold each other
            seen.add(id(at))
            names.append(at.name)
            at = at.outer
        return ".".join(name for name in reversed(names) if name)


_slots: list[Any] = []  # where modules keep their places; one entry


def keep_in(kind: Any) -> None:
    """Keep the places of modules in the slot `_place` of this class, and remove that name from the class."""
    _slots.append(kind.__dict__["_place"])
    del kind._place


def place_of(module: Any) -> Place:
    """The place of a module, which may not be set anywhere yet."""
    try:
        return _slots[0].__get__(module)
    except AttributeError:
        place = Place()
        _slots[0].__set__(module, place)
        return place


def set_child(module: Any, name: str, value: Any, kind: type) -> None:
    """Set an attribute that is a module (of class `kind`) or may hold some; one that was none of these comes last."""
    state = object.__getattribute__(module, "__dict__")
    if not isinstance(state.get(name, value), (kind, list, tuple, dict)):
        del state[name]  # MegEngine keeps the children in the order in which they came
    object.__setattr__(module, name, value)
    note(module, name, value, kind)


def note(module: Any, name: str, value: Any, kind: type) -> None:
    """Note the modules (of class `kind`) in an attribute, also in lists and dicts; each keeps its first name."""
    todo: list[tuple[str, Any]] = [(name, value)]
    entered: set[int] = set()  # containers may hold themselves
    while todo:
        path, at = todo.pop()
        if isinstance(at, kind):
            place = place_of(at)
            place.name = place.name or path
            if place.name == path:
                place.outer = place_of(module)
        elif id(at) not in entered:
            entered.add(id(at))
            entries = at.items() if isinstance(at, dict) else enumerate(at)
            todo += [(f"{path}.{key}", v) for key, v in entries if isinstance(v, (kind, list, tuple, dict))]


def to_state(module: Any) -> dict[str, str | None]:
    """The path as MegEngine keeps it in the state of a module."""
    place = place_of(module)
    return {"_name": place.path or None, "_short_name": place.name or None}


def from_state(module: Any, path: Any, name: Any) -> None:
    """Take the path that a state holds."""
    if isinstance(path, str) and isinstance(name, str) and path.endswith(name):
        above = path[: -len(name)].removesuffix(".")
        _slots[0].__set__(module, Place(name, Place(above) if above else None))
