"""Classes of a generated file: modules that look the same share one; what differs between them is its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.errors import GraphError
from megengine.tensor import Parameter, Tensor
from megengine.traced_module.source.arguments import Written, dispatch, parameters_text
from megengine.traced_module.source.body import Body, Imports
from megengine.traced_module.source.layers import Made, entries, same_value
from megengine.traced_module.source.parts import (
    HolderPart,
    LayerPart,
    ModulePart,
    Part,
    Parts,
    Path,
    TensorPart,
    is_numbered,
    read,
)
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
    plain,
    quoted,
    wrapped,
)

FLOAT32 = np.dtype(np.float32)
LISTED = 4  # paths in the docstring of a class at most


@dataclass(frozen=True, slots=True)
class Slot:
    """A value that modules of one class may have different: what to call it, and whether it is best positional."""

    hint: str
    value: Any
    positional: bool


@dataclass(eq=False, slots=True)
class ClassPlan:
    """One class: its modules, its parameters, and for each of its slots the parameter that gives it (or None)."""

    name: str
    members: list[ModulePart]
    parameters: list[Slot] = field(default_factory=list)
    sources: list[str | None] = field(default_factory=list)
    values: dict[int, list[Slot]] = field(default_factory=dict)  # of each module: a value for each parameter


class Classes:
    """The classes of a traced module, innermost first."""

    def __init__(self, parts: Parts, imports: Imports, name: str | None) -> None:
        self.parts, self.imports = parts, imports
        self.names = Names({*imports.names.taken, "net", "weights"}, separator="")
        self.plans: list[ClassPlan] = []
        self.of: dict[int, ClassPlan] = {}
        self.bodies: dict[int, list[tuple[Written, list[str]]]] = {}
        self.top_name = name
        modules = modules_of(parts.top)
        for module in modules:
            if not module.sequential:
                lines = [Body(i, module, parts, imports).lines for i in range(len(module.graphs))]
                self.bodies[id(module)] = list(zip(module.written, lines, strict=True))
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
        bodies = tuple((tuple(parameters_text(w.entries)), tuple(lines)) for w, lines in self.bodies[id(module)])
        return module.value.origin, module is self.parts.top, children, bodies, tuple(module.aliases)

    def _skeleton(self, part: Part) -> Any:
        """Equal for parts that differ in the values of their slots only."""
        if isinstance(part, LayerPart):
            fixes = tuple((path, _fixed(value)) for path, value in part.made.fixes)
            return "layer", part.made.kind, tuple(part.made.arguments), fixes
        if isinstance(part, TensorPart):
            return "tensor", isinstance(part.value, Parameter), flat(literal(part.value.dtype))
        if isinstance(part, ModulePart) and not part.sequential:
            return "class", self.of[id(part)].name
        return type(part).__name__, tuple((n, self._skeleton(c)) for n, c in part.children().items())

    def _slots(self, part: Part) -> Iterator[Slot]:
        if isinstance(part, LayerPart):
            for name, value in part.made.arguments.items():
                yield Slot(name, value, name in part.made.required)
        elif isinstance(part, TensorPart):
            yield Slot("shape", tuple(part.value.spec.shape), True)
        elif isinstance(part, ModulePart) and not part.sequential:
            yield from self.of[id(part)].values[id(part)]
        else:
            for child in part.children().values():
                yield from self._slots(child)

    def _plan(self, members: list[ModulePart]) -> None:
        first = members[0]
        plan = ClassPlan(self.names.give(self._wanted_name(first)), members)
        rows = [[(n, s) for n, c in m.entries.items() for s in self._slots(c)] for m in members]
        known: dict[tuple[str, ...], str] = {}
        names = Names()
        for column in zip(*rows, strict=True):
            texts = tuple(_text(slot, m) for (_, slot), m in zip(column, members, strict=True))
            if len(set(texts)) == 1:
                plan.sources.append(None)
                continue
            if texts not in known:
                attribute, slot = column[0]
                taken = slot.hint in known.values()
                known[texts] = names.give(f"{attribute}_{slot.hint}" if taken else slot.hint)
                plan.parameters.append(Slot(known[texts], slot.value, slot.positional))
                for (_, own), m in zip(column, members, strict=True):
                    plan.values.setdefault(id(m), []).append(Slot(known[texts], own.value, slot.positional))
            plan.sources.append(known[texts])
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

    def make(self, part: Part, sources: Iterator[str | None]) -> Code:
        """The expression that makes a part; what fits in no expression is said by `after`."""
        if isinstance(part, LayerPart):
            return self._make_layer(part, sources)
        if isinstance(part, TensorPart):
            return _zeros(part.value, next(sources))
        if isinstance(part, ModulePart) and not part.sequential:
            plan = self.of[id(part)]
            given = [(s, next(sources)) for s in plan.values[id(part)]]
            return called(plan.name, [_argument(s.hint, s.value, source, s.positional) for s, source in given])
        made = {n: self.make(c, sources) for n, c in part.children().items()}
        if isinstance(part, ModulePart):
            return called("M.Sequential", made.values() if is_numbered(made) else [_mapping(made)])
        assert isinstance(part, HolderPart)
        if part.kind is list:
            return Group("", "[", tuple(made.values()), "]")
        return "M.Module()" if part.kind is not dict else _mapping(made)

    def _make_layer(self, part: LayerPart, sources: Iterator[str | None]) -> Code:
        made, items = part.made, []
        for name, value in made.arguments.items():
            source = next(sources)
            if source is None and name in made.defaults and same_value(value, made.defaults[name]):
                continue
            try:
                items.append(_argument(name, value, source, name in made.required))
            except GraphError as exc:
                raise GraphError(f"{'.'.join(part.path)}: {name}={value!r} of a {made.kind.__name__}: {exc}") from None
        return called(self.imports.kind(made.kind), items)

    def _fix_code(self, value: Any) -> Code:
        if isinstance(value, Tensor):
            return _zeros(value)
        if not isinstance(value, Made):
            return literal(value)
        given = [
            _argument(n, v, self._enumerated(v), n in value.required)
            for n, v in value.arguments.items()
            if not (n in value.defaults and same_value(v, value.defaults[n]))
        ]
        return called(self.imports.kind(value.kind), given)

    def _enumerated(self, value: Any) -> str | None:
        if not isinstance(value, Enum) or not plain(value.name):
            return None
        return f"{self.imports.of(type(value).__module__, type(value).__qualname__)}.{value.name}"

    def after(self, part: Part, target: str, sources: Iterator[str | None]) -> Iterator[list[str]]:
        """Statements behind the one that makes a part: entries of empty modules, attributes of layers."""
        if isinstance(part, LayerPart):
            for _ in part.made.arguments:
                next(sources)
            for path, value in part.made.fixes:
                owner = read(part, target, path[:-1]) if path[:-1] else target
                holder = part.value
                for name in path[:-1]:
                    holder = entries(holder)[name]
                code = self._fix_code(value)
                yield assignment(owner, path[-1], code, items=isinstance(holder, (list, dict)))
        elif isinstance(part, TensorPart):
            next(sources)
        elif isinstance(part, ModulePart) and not part.sequential:
            for _ in self.of[id(part)].values[id(part)]:
                next(sources)
        else:
            for name, child in part.children().items():
                here = list(sources_of(self, child, sources))
                where = part.access(target, name)
                if isinstance(part, HolderPart) and part.kind not in (list, dict):
                    yield wrapped(self.make(child, iter(here)), 2, f"{where} = ")
                yield from self.after(child, where, iter(here))

    # ------------------------------------------------------------ text

    def text(self, plan: ClassPlan) -> list[str]:
        """The lines of a class."""
        module = plan.members[0]
        lines = [f"class {plan.name}(M.Module):", f'{INDENT}"""{_paths(plan.members)}"""', ""]
        head = ["self", *(s.hint for s in plan.parameters)]
        lines += [*wrapped(called("def __init__", head), 1, suffix=":"), f"{INDENT * 2}super().__init__()"]
        sources = iter(plan.sources)
        for name, child in module.entries.items():
            here = list(sources_of(self, child, sources))
            lines += assignment("self", name, self.make(child, iter(here)))
            for more in self.after(child, module.access("self", name), iter(here)):
                lines += more
        for new, first in module.aliases:
            lines += self._alias(module, new, first)
        return lines + self._functions(module)

    def _alias(self, module: ModulePart, new: Path, first: Path) -> list[str]:
        owner = read(module, "self", new[:-1]) if new[:-1] else "self"
        numbered, at = False, module
        for name in new[:-1]:
            child = at.children().get(name) if isinstance(at, Part) else None
            at = child if child is not None else entries(at.value if isinstance(at, Part) else at)[name]
        if isinstance(at, Part):
            numbered = at.access("", new[-1]).startswith("[")
        return assignment(owner, new[-1], read(module, "self", first), items=numbered or isinstance(at, (list, dict)))

    def _functions(self, module: ModulePart) -> list[str]:
        bodies = self.bodies[id(module)]
        if len(bodies) == 1:
            return ["", *_function("forward", parameters_text(bodies[0][0].entries)), *bodies[0][1]]
        written = [w for w, _ in bodies]
        head = parameters_text(written[0].all_entries, defaults=True)
        lines = ["", *_function("forward", head), *dispatch(written)]
        for i, (own, body) in enumerate(bodies):
            lines += ["", *_function(f"_forward_{i}", parameters_text(own.entries)), *body]
        return lines


def sources_of(classes: Classes, part: Part, sources: Iterator[str | None]) -> Iterator[str | None]:
    """The sources of the slots of one part."""
    return (next(sources) for _ in list(classes._slots(part)))


def _function(name: str, parameters: list[str]) -> list[str]:
    return wrapped(called(f"def {name}", ["self", *parameters]), 1, suffix=":")


def assignment(owner: str, name: str, code: Code, *, items: bool = False) -> list[str]:
    """The statement that sets an attribute or an item."""
    if items:
        return wrapped(code, 2, f"{owner}[{int(name) if name.isdigit() else flat(literal(name))}] = ")
    if plain(name):
        return wrapped(code, 2, f"{owner}.{name} = ")
    return wrapped(called("setattr", [owner, quoted(name), code]), 2)


def _argument(name: str, value: Any, source: str | None, positional: bool) -> Code:
    code = literal(value) if source is None else source
    return code if positional else Labelled(f"{name}=", code)


def _mapping(made: dict[str, Code]) -> Group:
    return Group("", "{", tuple(Labelled(f"{quoted(n)}: ", c) for n, c in made.items()), "}")


def _zeros(tensor: Tensor, shape: str | None = None) -> Code:
    """A parameter or buffer of zeros: its value comes from the weights."""
    dtype, kind = tensor.dtype, "Parameter" if isinstance(tensor, Parameter) else "Tensor"
    stored = storage_of(dtype)
    given: list[Code] = [shape or literal(tuple(tensor.spec.shape))]
    zeros = called("F.zeros", given + ([] if stored == FLOAT32 else [Labelled("dtype=", literal(stored))]))
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
    found: dict[int, Part] = {}
    todo = [top]
    while todo:
        at = todo.pop()
        if id(at) not in found:
            found[id(at)] = at
            todo += reversed(at.children().values())
    return [part for part in found.values() if isinstance(part, ModulePart)]


def _by_height(modules: list[ModulePart]) -> list[list[ModulePart]]:
    """Modules by how many levels of modules are below them, in their order: first those that hold none."""
    heights: dict[int, int] = {}

    def height(part: Part) -> int:
        if id(part) not in heights:
            below = max([height(child) for child in part.children().values()], default=0)
            heights[id(part)] = below + isinstance(part, ModulePart)
        return heights[id(part)]

    found: dict[int, list[ModulePart]] = {}
    for module in modules:
        found.setdefault(height(module), []).append(module)
    return [found[level] for level in sorted(found)]


def _paths(members: list[ModulePart]) -> str:
    paths = [".".join(m.path) for m in members]
    if paths == [""]:
        return "The whole module."
    more = f" and {len(paths) - LISTED} more" if len(paths) > LISTED else ""
    return harmless(", ".join(p[:60] for p in paths[:LISTED])) + more + "."
