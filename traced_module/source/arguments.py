"""Parameters of generated forward functions, and how calls of them are written."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megengine.core.pytree import flatten, unflatten
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, Node
from megengine.traced_module.source.text import INDENT, WIDTH, Names, flat, literal

KINDS = inspect.Parameter


@dataclass(frozen=True, slots=True)
class Entry:
    """A parameter: its name in the file, and what one graph was traced with: nodes and constants, nested."""

    name: str
    kind: Any
    value: Any
    default: Any = KINDS.empty

    @property
    def holds_tensors(self) -> bool:
        """True if a node is among the values."""
        return any(isinstance(leaf, Node) for leaf in flatten(self.value)[0])


@dataclass(frozen=True, slots=True)
class Written:
    """The parameters of a graph; `entries` are those of its function, `all_entries` have the constant ones too."""

    entries: tuple[Entry, ...]
    all_entries: tuple[Entry, ...]


def _bound(signature: inspect.Signature | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Entry]:
    if signature is not None:
        plainly = signature.replace(parameters=list(signature.parameters.values())[1:])
        try:
            bound = plainly.bind(*args, **kwargs)
        except TypeError:
            bound = None  # the call was edited since; its arguments are taken as they come
        if bound is not None:
            bound.apply_defaults()
            found = plainly.parameters
            return [Entry(n, found[n].kind, v, found[n].default) for n, v in bound.arguments.items()]
    named = [Entry(k, KINDS.KEYWORD_ONLY, v) for k, v in kwargs.items()]
    places = [Entry(_name(v, i), KINDS.POSITIONAL_OR_KEYWORD, v) for i, v in enumerate(args)]
    return [*places, *named]


def _name(value: Any, index: int) -> str:
    return value.name if isinstance(value, Node) else f"args_{index}"


def written_of_graph(graph: InternalGraph, signature: inspect.Signature | None) -> Written:
    """The parameters of a graph's function: those of the module's forward that hold tensors."""
    nodes = [n for n in graph.inputs if not isinstance(n, ModuleNode)]
    names = Names()
    if graph.arguments is None:
        entries = [Entry(names.give(n.name), KINDS.POSITIONAL_OR_KEYWORD, n) for n in nodes]
        return Written(tuple(entries), tuple(entries))
    leaves: list[Any] = list(nodes)
    for index, value in graph.arguments[1]:
        leaves.insert(index, value)
    args, kwargs = unflatten(graph.arguments[0], leaves)
    found = [Entry(names.give(e.name), e.kind, e.value, e.default) for e in _bound(signature, args, kwargs)]
    return Written(tuple(e for e in found if e.holds_tensors), tuple(found))


def parameters_text(entries: Sequence[Entry], *, defaults: bool = False) -> list[str]:
    """Parameters behind `self`. With `defaults`, those that the module's forward had are kept."""
    text: list[str] = []
    starred = False
    for entry in entries:
        if entry.kind is KINDS.VAR_POSITIONAL:
            starred = True
            text.append(f"*{entry.name}")
        elif entry.kind is KINDS.VAR_KEYWORD:
            text.append(f"**{entry.name}")
        else:
            if entry.kind is KINDS.KEYWORD_ONLY and not starred:
                starred = True
                text.append("*")
            given = "" if not defaults or entry.default is KINDS.empty else f"={flat(literal(entry.default))}"
            text.append(f"{entry.name}{given}")
    return text


def passed(entries: Sequence[Entry]) -> Iterator[tuple[str, Any]]:
    """(name or "", value) of the arguments of a call."""
    for entry in entries:
        if entry.kind is KINDS.VAR_POSITIONAL:
            yield from (("", v) for v in entry.value)
        elif entry.kind is KINDS.VAR_KEYWORD:
            yield from entry.value.items()
        else:
            yield entry.name if entry.kind is KINDS.KEYWORD_ONLY else "", entry.value


def arguments_of_call(
    signature: inspect.Signature | None, target: Written, args: Sequence[Any], kwargs: Mapping[str, Any], *, whole: bool
) -> Iterator[tuple[str, Any]]:
    """The arguments of a call of a generated forward; with `whole` the constant ones too."""
    wanted = [e.name for e in (target.all_entries if whole else target.entries)]
    names = [e.name for e in target.all_entries]
    given = [Entry(n, e.kind, e.value, e.default) for n, e in zip(names, _bound(signature, args, kwargs), strict=True)]
    yield from passed([e for e in given if e.name in wanted])


# ---------------------------------------------------------------- several graphs


def dispatch(graphs: Sequence[Written]) -> list[str]:
    """The body of a forward that takes all arguments and calls the function of the graph that fits them."""
    lines: list[str] = []
    for i, written in enumerate(graphs):
        tests = [
            test
            for j, entry in enumerate(written.all_entries)
            if any(_shape(g.all_entries[j].value) != _shape(entry.value) for g in graphs)
            for test in _tests(entry.value, entry.name)
        ]
        whole = f"{INDENT * 2}if {' and '.join(tests)}:"
        if len(whole) <= WIDTH:
            lines.append(whole)
        else:
            joined = [f"{INDENT * 3}{'and ' if k else ''}{test}" for k, test in enumerate(tests)]
            lines += [f"{INDENT * 2}if (", *joined, f"{INDENT * 2}):"]
        lines.append(f"{INDENT * 3}return self._forward_{i}({', '.join(_handed_on(written.entries))})")
    lines.append(f'{INDENT * 2}raise ValueError("the module was not traced with these arguments")')
    return lines


def _handed_on(entries: Sequence[Entry]) -> Iterator[str]:
    stars = {KINDS.VAR_POSITIONAL: "*{0}", KINDS.VAR_KEYWORD: "**{0}", KINDS.KEYWORD_ONLY: "{0}={0}"}
    return (stars.get(e.kind, "{0}").format(e.name) for e in entries)


def _shape(value: Any) -> Any:
    """Equal for arguments that need no test to be told apart."""
    leaves, structure = flatten(value)
    return structure, [None if isinstance(v, Node) else (type(v), flat(literal(v))) for v in leaves]


def _tests(value: Any, code: str) -> Iterator[str]:
    if isinstance(value, Node):
        yield f"isinstance({code}, Tensor)"
    elif isinstance(value, (list, tuple)):
        yield f"isinstance({code}, {'list' if isinstance(value, list) else 'tuple'})"
        yield f"len({code}) == {len(value)}"
        for i, item in enumerate(value):
            yield from _tests(item, f"{code}[{i}]")
    elif isinstance(value, dict):
        keys = ", ".join(flat(literal(k)) for k in value)
        yield f"isinstance({code}, dict)"
        yield f"{code}.keys() == {{{keys}}}" if keys else f"not {code}"
        for key, item in value.items():
            yield from _tests(item, f"{code}[{flat(literal(key))}]")
    elif value is None or isinstance(value, bool):
        yield f"{code} is {value}"
    else:
        yield f"{code} == {flat(literal(value))}"
