"""Parameters of generated forward functions, and the arguments of calls of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from megengine.core.pytree import flatten
from megengine.traced_module.ir.functions import unflatten_arguments, without_self
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, Node
from megengine.traced_module.source.text import INDENT, WIDTH, Names, flat, literal

KINDS = inspect.Parameter


@dataclass(frozen=True, slots=True)
class Entry:
    """A parameter: its name in the file, and its argument in the trace of one graph: nodes and constants, nested."""

    name: str
    kind: Any
    value: Any
    default: Any = KINDS.empty


Entries = Sequence[Entry]


def holds_node(value: Any) -> bool:
    """True if a nested value holds a node."""
    return any(isinstance(leaf, Node) for leaf in flatten(value)[0])


def varying(entries: Entries) -> list[Entry]:
    """The parameters of the function of a graph: those that hold tensors."""
    return [entry for entry in entries if holds_node(entry.value)]


def _bound(signature: inspect.Signature | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Entry]:
    if signature is not None:
        plain_signature = without_self(signature)
        with suppress(TypeError):  # the call was edited since: its arguments are taken by position
            bound = plain_signature.bind(*args, **kwargs)
            bound.apply_defaults()
            parameters = plain_signature.parameters
            return [Entry(n, parameters[n].kind, v, parameters[n].default) for n, v in bound.arguments.items()]
    names = [value.name if isinstance(value, Node) else f"args_{i}" for i, value in enumerate(args)]
    places = [Entry(name, KINDS.POSITIONAL_OR_KEYWORD, v) for name, v in zip(names, args, strict=True)]
    return [*places, *(Entry(k, KINDS.KEYWORD_ONLY, v) for k, v in kwargs.items())]


def entries_of_graph(graph: InternalGraph, signature: inspect.Signature | None) -> list[Entry]:
    """The parameters of the module's forward, as one graph was traced."""
    nodes = [n for n in graph.inputs if not isinstance(n, ModuleNode)]
    names = Names()
    if graph.arguments is None:
        return [Entry(names.give(n.name), KINDS.POSITIONAL_OR_KEYWORD, n) for n in nodes]
    args, kwargs = unflatten_arguments(graph.arguments, nodes)
    return [Entry(names.give(e.name), e.kind, e.value, e.default) for e in _bound(signature, args, kwargs)]


def parameters_text(entries: Entries, *, defaults: bool = False) -> list[str]:
    """Parameters behind `self`; with `defaults`, those of the module's forward are written."""
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
            default = "" if not defaults or entry.default is KINDS.empty else f"={flat(literal(entry.default))}"
            text.append(f"{entry.name}{default}")
    return text


def arguments_of_call(
    signature: inspect.Signature | None, target: Entries, args: Sequence[Any], kwargs: Mapping[str, Any], *, whole: bool
) -> Iterator[tuple[str, Any]]:
    """(name or "", value) of the arguments for a generated forward; with `whole` the constant ones too."""
    for parameter, entry in zip(target, _bound(signature, args, kwargs), strict=True):
        if not whole and not holds_node(parameter.value):
            continue
        if entry.kind is KINDS.VAR_POSITIONAL:
            yield from (("", v) for v in entry.value)
        elif entry.kind is KINDS.VAR_KEYWORD:
            yield from entry.value.items()
        else:
            yield parameter.name if entry.kind is KINDS.KEYWORD_ONLY else "", entry.value


# ---------------------------------------------------------------- several graphs


def dispatch(graphs: Sequence[Entries]) -> list[str]:
    """The body of a forward that calls the function of the graph that fits its arguments."""
    lines: list[str] = []
    for i, entries in enumerate(graphs):
        tests = [
            test
            for j, entry in enumerate(entries)
            if any(_shape(g[j].value) != _shape(entry.value) for g in graphs)
            for test in _tests(entry.value, entry.name)
        ]
        whole = f"{INDENT * 2}if {' and '.join(tests)}:"
        if len(whole) <= WIDTH:
            lines.append(whole)
        else:
            joined = [f"{INDENT * 3}{'and ' if k else ''}{test}" for k, test in enumerate(tests)]
            lines += [f"{INDENT * 2}if (", *joined, f"{INDENT * 2}):"]
        stars = {KINDS.VAR_POSITIONAL: "*{0}", KINDS.VAR_KEYWORD: "**{0}", KINDS.KEYWORD_ONLY: "{0}={0}"}
        arguments = ", ".join(stars.get(e.kind, "{0}").format(e.name) for e in varying(entries))
        lines.append(f"{INDENT * 3}return self._forward_{i}({arguments})")
    lines.append(f'{INDENT * 2}raise ValueError("the module was not traced with these arguments")')
    return lines


def _shape(value: Any) -> Any:
    """Equal for arguments that the generated forward need not distinguish."""
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
