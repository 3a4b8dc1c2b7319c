"""Classes of a generated file: modules that look the same share one; its parameters are what differs between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.errors import GraphError
from megengine.module import Module
from megengine.tensor import Parameter, Tensor
from megengine.traced_module.source.arguments import Entry, dispatch, parameters_text, varying
from megengine.traced_module.source.body import Body, Imports
from megengine.traced_module.source.layers import Made, same_value
from megengine.traced_module.source.parts import HolderPart, LayerPart, ModulePart, Part, Parts, TensorPart, read
from megengine.traced_module.source.text import (
    INDENT,
    Code,
    Group,
    Labelled,
    Names,
    called,
    flat,
    harmless,
    literal,
    mapping,
    plain,
    wrapped,
)

LISTED = 4  # paths in the docstring of a class at most
Sources = Mapping[tuple[int, str], str | None]  # (part, by identity, and slot) -> the parameter that gives its value


@dataclass(frozen=True, slots=True)
class Slot:
    """A value in which modules of one class may differ: a name for it, and whether it is passed by position."""

    hint: str
    value: Any
    positional: bool


@dataclass(eq=False, slots=True)
class ClassPlan:
    """One class: its modules, its parameters, and which of them gives each slot of its first module (or None)."""

    name: str
    members: list[ModulePart]
    parameters: list[Slot] = field(default_factory=list)
    sources: dict[tuple[int, str], str | None] = field(default_factory=dict)
    values: dict[int, list[Slot]] = field(default_factory=dict)  # of each module: a value for each parameter


class Classes:
    """The classes of a traced module, innermost first."""

    def __init__(self, parts: Parts, imports: Imports, name: str | None) -> None:
        self.parts, self.imports = parts, imports
        self.names = Names({*imports.names.taken, "net", "weights"}, separator="")
        self.plans: list[ClassPlan] = []
        self.of: dict[int, ClassPlan] = {}
        self.bodies: dict[int, list[tuple[list[Entry], list[str]]]] = {}  # of each module: parameters and statements
        self.top_name = name
        modules = modules_of(parts.top)
        for module in modules:
            if not module.sequential:
                lines = [Body(i, module, parts, imports).lines for i in range(len(module.graphs))]
                self.bodies[id(module)] = list(zip(module.written, lines, strict=True))
        self.names.taken |= imports.names.taken  # with those that statements needed
        imports.scopes.append(self.names)
        for level in _by_height(modules):
            groups: dict[Any, list[ModulePart]] = {}
            for module in level:
                if not module.sequential:
                    groups.setdefault(self._key(module), []).append(module)
            for members in groups.values():
                self._plan(members)

    # ------------------------------------------------------------ which modules share a class

    def _key(self, module: ModulePart) -> Any:
        children = tuple((n, self._skeleton(c)) for n, c in module.entries.items())
        bodies = tuple((tuple(parameters_text(varying(e))), tuple(lines)) for e, lines in self.bodies[id(module)])
        return module.value.origin, module is self.parts.top, children, bodies, tuple(module.aliases)

    def _skeleton(self, part: Part) -> Any:
        """Equal for parts that differ only in the values of their slots."""
        if isinstance(part, LayerPart):
            fixes = tuple((path, _fixed(value)) for path, value in part.made.fixes)
            return "layer", part.made.kind, tuple(part.made.arguments), fixes
        if isinstance(part, TensorPart):
            return "tensor", isinstance(part.value, Parameter), flat(literal(part.value.dtype))
        if isinstance(part, ModulePart) and not part.sequential:
            return "class", self.of[id(part)].name
        return type(part).__name__, tuple((n, self._skeleton(c)) for n, c in part.entries.items())

    def _slots(self, part: Part) -> Iterator[tuple[int, Slot]]:
        """(identity of the part, slot) of a part and of those that it holds."""
        if isinstance(part, LayerPart):
            for name, value in part.made.arguments.items():
                yield id(part), Slot(name, value, name in part.made.required)
        elif isinstance(part, TensorPart):
            yield id(part), Slot("shape", tuple(part.value.spec.shape), True)
        elif isinstance(part, ModulePart) and not part.sequential:
            yield from ((id(part), slot) for slot in self.of[id(part)].values[id(part)])
        else:
            for child in part.entries.values():
                yield from self._slots(child)

    def _plan(self, members: list[ModulePart]) -> None:
        plan = ClassPlan(self.names.give(self._wanted_name(members[0])), members)
        rows = [[(n, *slot_of) for n, c in m.entries.items() for slot_of in self._slots(c)] for m in members]
        known: dict[tuple[str, ...], str] = {}
        names = Names()
        for column in zip(*rows, strict=True):
            attribute, part, slot = column[0]
            slots = [own for _, _, own in column]
            texts = tuple(_text(own, m) for own, m in zip(slots, members, strict=True))
            if len(set(texts)) > 1 and texts not in known:
                taken = slot.hint in known.values()
                known[texts] = names.give(f"{attribute}_{slot.hint}" if taken else slot.hint)
                plan.parameters.append(Slot(known[texts], slot.value, slot.positional))
                for own, m in zip(slots, members, strict=True):
                    plan.values.setdefault(id(m), []).append(Slot(known[texts], own.value, slot.positional))
            plan.sources[part, slot.hint] = known.get(texts)
        for module in members:
            plan.values[id(module)] = sorted(plan.values.get(id(module), []), key=lambda s: not s.positional)
            self.of[id(module)] = plan
        plan.parameters.sort(key=lambda s: not s.positional)
        self.plans.append(plan)

    def _wanted_name(self, module: ModulePart) -> str:
        if module is self.parts.top and self.top_name:
            return self.top_name
        if module.value.origin and module.value.origin != "Sequential":
            return module.value.origin
        path = module.path or (module.value.name or module.graphs[0].name,)
        named = [p for p in path if not p.isdigit()] or ["part"]
        camel = "".join(w[:1].upper() + w[1:] for w in re.split(r"[_\W]+", named[-1]))
        return camel + ("Block" if path[-1].isdigit() else "")

    # ------------------------------------------------------------ making a part

    def make(self, part: Part, sources: Sources) -> Code:
        """The expression that makes a part; `after` gives the statements that it needs besides."""
        if isinstance(part, LayerPart):
            return self._constructed(part.made, part, sources)
        if isinstance(part, TensorPart):
            return _zeros(part.value, sources[id(part), "shape"])
        if isinstance(part, ModulePart) and not part.sequential:
            slots = self.of[id(part)].values[id(part)]
            arguments = [_argument(s.hint, s.value, sources[id(part), s.hint], s.positional) for s in slots]
            return called(self.of[id(part)].name, arguments)
        entries = {n: self.make(c, sources) for n, c in part.entries.items()}
        if isinstance(part, ModulePart):
            return called("M.Sequential", entries.values() if part.numbered else [mapping(entries)])
        assert isinstance(part, HolderPart)
        if part.kind is list:
            return Group("", "[", tuple(entries.values()), "]")
        return "M.Module()" if part.kind is not dict else mapping(entries)

    def _constructed(self, made: Made, part: Part, sources: Sources) -> Code:
        """The call that makes a layer, which is a part or inside of one."""
        items = []
        for name, value in made.arguments.items():
            source = sources.get((id(part), name))
            if source is None and name in made.defaults and same_value(value, made.defaults[name]):
                continue
            if source is None and isinstance(value, Enum) and plain(value.name):
                source = f"{self.imports.of(type(value).__module__, type(value).__qualname__)}.{value.name}"
            try:
                items.append(_argument(name, value, source, name in made.required))
            except GraphError as exc:
                raise GraphError(f"{'.'.join(part.path)}: {name}={value!r} of a {made.kind.__name__}: {exc}") from None
        return called(self.imports.kind(made.kind), items)

    def after(self, part: Part, target: str, sources: Sources) -> Iterator[list[str]]:
        """Statements behind the one that makes a part: entries of empty modules, attributes of layers."""
        if isinstance(part, LayerPart):
            for path, value in part.made.fixes:
                if isinstance(value, Made):
                    code: Code = self._constructed(value, part, {})
                else:
                    code = _zeros(value) if isinstance(value, Tensor) else literal(value)
                yield assignment(read(part, target, path), code)
        elif not isinstance(part, ModulePart) or part.sequential:
            for name, child in part.entries.items():
                where = part.access(target, name)
                if isinstance(part, HolderPart) and part.kind is Module:
                    yield wrapped(self.make(child, sources), 2, f"{where} = ")
                yield from self.after(child, where, sources)

    # ------------------------------------------------------------ text

    def text(self, plan: ClassPlan) -> list[str]:
        module = plan.members[0]
        lines = [f"class {plan.name}(M.Module):", f'{INDENT}"""{_paths(plan.members)}"""', ""]
        head = ["self", *(s.hint for s in plan.parameters)]
        lines += [*wrapped(called("def __init__", head), 1, suffix=":"), f"{INDENT * 2}super().__init__()"]
        for name, child in module.entries.items():
            target = module.access("self", name)
            lines += assignment(target, self.make(child, plan.sources))
            for more in self.after(child, target, plan.sources):
                lines += more
        for new, first in module.aliases:
            lines += assignment(read(module, "self", new), read(module, "self", first))
        return lines + self._functions(module)

    def _functions(self, module: ModulePart) -> list[str]:
        bodies = self.bodies[id(module)]
        if len(bodies) == 1:
            return ["", *_function("forward", parameters_text(varying(bodies[0][0]))), *bodies[0][1]]
        written = [w for w, _ in bodies]
        head = parameters_text(written[0], defaults=True)
        lines = ["", *_function("forward", head), *dispatch(written)]
        for i, (own, body) in enumerate(bodies):
            lines += ["", *_function(f"_forward_{i}", parameters_text(varying(own))), *body]
        return lines


def _function(name: str, parameters: list[str]) -> list[str]:
    return wrapped(called(f"def {name}", ["self", *parameters]), 1, suffix=":")


def assignment(target: str, code: Code) -> list[str]:
    """The statement that sets an attribute or an item, given the text that reads it."""
    if target.endswith(")"):
        return wrapped(called("setattr", [target.removeprefix("getattr(").removesuffix(")"), code]), 2)
    return wrapped(code, 2, f"{target} = ")


def _argument(name: str, value: Any, source: str | None, positional: bool) -> Code:
    code = literal(value) if source is None else source
    return code if positional else Labelled(f"{name}=", code)


def _zeros(tensor: Tensor, shape: str | None = None) -> Code:
    """A parameter or buffer of zeros: its values come from the file of weights."""
    dtype, kind = tensor.dtype, "Parameter" if isinstance(tensor, Parameter) else "Tensor"
    stored = storage_of(dtype)
    arguments: list[Code] = [shape or literal(tuple(tensor.spec.shape))]
    zeros = called("F.zeros", arguments + ([] if stored == np.float32 else [Labelled("dtype=", literal(stored))]))
    if isinstance(dtype, QuantizedDType):
        return called(kind, [zeros, Labelled("dtype=", literal(dtype))])
    return called(kind, [zeros]) if kind == "Parameter" else zeros


def _fixed(value: Any) -> Any:
    if isinstance(value, Made):
        return value.kind, repr(value.arguments)
    if isinstance(value, Tensor):
        return isinstance(value, Parameter), tuple(value.spec.shape), str(value.dtype)
    return flat(literal(value))


def _text(slot: Slot, module: ModulePart) -> str:
    try:
        return flat(literal(slot.value))
    except GraphError as exc:
        where = ".".join(module.path) or "the module"
        raise GraphError(f"{where}: {slot.hint}={slot.value!r}: {exc}") from None


def modules_of(top: Part) -> list[ModulePart]:
    """The modules of a part, each once, outermost first."""
    parts: dict[int, Part] = {}
    todo = [top]
    while todo:
        at = todo.pop()
        if id(at) not in parts:
            parts[id(at)] = at
            todo += reversed(at.entries.values())
    return [part for part in parts.values() if isinstance(part, ModulePart)]


def _by_height(modules: list[ModulePart]) -> list[list[ModulePart]]:
    """Modules grouped by the levels of modules below them: first those that hold none."""
    heights: dict[int, int] = {}

    def height(part: Part) -> int:
        if id(part) not in heights:
            below = max([height(child) for child in part.entries.values()], default=0)
            heights[id(part)] = below + isinstance(part, ModulePart)
        return heights[id(part)]

    levels: dict[int, list[ModulePart]] = {}
    for module in modules:
        levels.setdefault(height(module), []).append(module)
    return [levels[level] for level in sorted(levels)]


def _paths(members: list[ModulePart]) -> str:
    paths = [".".join(m.path) for m in members]
    if paths == [""]:
        return "The whole module."
    more = f" and {len(paths) - LISTED} more" if len(paths) > LISTED else ""
    return harmless(", ".join(p[:60] for p in paths[:LISTED])) + more + "."
