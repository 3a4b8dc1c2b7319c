"""What a generated class holds: layers, tensors, containers of them, and modules with graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.errors import GraphError
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Call, CallMethod, Constant, Expr, GetAttr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode
from megengine.traced_module.passes.layer_uses import has_hooks
from megengine.traced_module.source.layers import Layers, Made, entries
from megengine.traced_module.source.text import attribute, flat, literal, plain
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.tracing.calls import is_leaf_module

Path = tuple[str, ...]


@dataclass(eq=False, slots=True)
class Part:
    """Something that is made by a constructor. `path` is where it was found first, below the outermost module."""

    path: Path
    value: Any

    def children(self) -> dict[str, Part]:
        """Parts that are set as its attributes or items."""
        return {}

    def access(self, owner: str, name: str) -> str:
        """The read of what is found under a name."""
        return attribute(owner, name)


@dataclass(eq=False, slots=True)
class LayerPart(Part):
    """A layer, recorded as one call."""

    made: Made

    def access(self, owner: str, name: str) -> str:
        return item_or_attribute(self.value, owner, name)


@dataclass(eq=False, slots=True)
class TensorPart(Part):
    """A parameter, a buffer or a constant."""


@dataclass(eq=False, slots=True)
class HolderPart(Part):
    """A container that is never called: a list for names 0, 1, ..., else an empty module or a dict."""

    entries: dict[str, Part] = field(default_factory=dict)
    known: tuple[int, type] = (-1, list)  # with so many entries, which kind

    def children(self) -> dict[str, Part]:
        return self.entries

    @property
    def kind(self) -> type:
        """list, dict or Module."""
        if self.known[0] != len(self.entries):  # asked at every read of an entry, of which there may be thousands
            numbered = is_numbered(self.entries)
            self.known = len(self.entries), list if numbered else Module if all(map(plain, self.entries)) else dict
        return self.known[1]

    def access(self, owner: str, name: str) -> str:
        if self.kind is list:
            return f"{owner}[{int(name)}]"
        return attribute(owner, name) if self.kind is Module else f"{owner}[{flat(literal(name))}]"


@dataclass(eq=False, slots=True)
class ModulePart(Part):
    """A module whose graphs are entered: a class of its own, or a Sequential."""

    entries: dict[str, Part] = field(default_factory=dict)
    graphs: list[InternalGraph] = field(default_factory=list)
    constants: dict[int, str] = field(default_factory=dict)  # value of a constant -> attribute
    aliases: list[tuple[Path, Path]] = field(default_factory=list)  # (new, first) below this module
    sequential: bool = False
    written: list[Any] = field(default_factory=list)  # parameters of the function of each graph
    known: tuple[int, bool] = (-1, False)  # with so many entries, whether they are numbered

    def children(self) -> dict[str, Part]:
        return self.entries

    def access(self, owner: str, name: str) -> str:
        if self.sequential:
            if self.known[0] != len(self.entries):
                self.known = len(self.entries), is_numbered(self.entries)
            if self.known[1]:
                return f"{owner}[{int(name)}]"
        return attribute(owner, name)


def is_numbered(names: Any) -> bool:
    """True for the names 0, 1, 2, ... in order."""
    return bool(names) and all(name == str(i) for i, name in enumerate(names))


def item_or_attribute(value: Any, owner: str, name: str) -> str:
    """The read of an entry inside of a layer."""
    if isinstance(value, (list, tuple)):
        return f"{owner}[{int(name)}]"
    return f"{owner}[{flat(literal(name))}]" if isinstance(value, dict) else attribute(owner, name)


def read(part: Part, owner: str, path: Path) -> str:
    """The read of a path below a part, which `owner` stands for."""
    for i, name in enumerate(path):
        owner = part.access(owner, name)
        child = part.children().get(name)
        if child is None:
            return _read_inside(part.value, owner, path[i:])
        part = child
    return owner


def _read_inside(layer: Any, owner: str, path: Path) -> str:
    value = entries(layer)[path[0]]
    for name in path[1:]:
        owner = item_or_attribute(value, owner, name)
        value = entries(value)[name]
    return owner


class Parts:
    """Parts of everything that the graphs of a traced module use."""

    def __init__(self, top: TracedModule) -> None:
        self.layers = Layers()
        self.used: dict[int, dict[str, None]] = {}  # module or container -> names read
        self.entered: dict[int, list[InternalGraph]] = {}
        self.made: dict[int, Part] = {}
        self._open: set[int] = set()
        self._first: dict[int, Path] = {}  # module or tensor -> where it was seen first
        for graph in top.graphs:
            self._enter(top, graph)
        made = self.part(top, ())
        assert isinstance(made, ModulePart)
        self.top: ModulePart = made
        self._share(self.top, ())

    # ------------------------------------------------------------ what is used

    def _enter(self, owner: TracedModule, graph: InternalGraph) -> None:
        graphs = self.entered.setdefault(id(owner), [])
        if any(graph is g for g in graphs):
            return
        graphs.append(graph)
        for expr in graph.exprs(recursive=False):
            if isinstance(expr, GetAttr):
                self._use(expr.inputs[0].owner, expr.name.split("."))
            elif isinstance(expr, CallMethod) and expr.method == "__call__":
                self._call(expr)

    def _call(self, expr: CallMethod) -> None:
        module = expr.inputs[0].owner
        if isinstance(module, TracedModule):
            graph = module.graph_of_call(expr)
            if graph is None:
                raise GraphError(f"{expr!r} of {expr.top_graph.qualname} fits no graph of the module that it calls")
            self._enter(module, graph)

    def _use(self, owner: Any, names: list[str]) -> None:
        at = owner
        for name in names:
            if not isinstance(at, TracedModule):
                return  # inside of a layer, which is made as a whole
            self.used.setdefault(id(at), {})[name] = None
            at = object.__getattribute__(at, "__dict__").get(name)

    # ------------------------------------------------------------ making parts

    def part(self, value: Any, path: Path) -> Part:
        """The part of a module or tensor; one that is used twice has one part."""
        if id(value) in self.made:
            return self.made[id(value)]
        if id(value) in self._open:
            raise GraphError(f"{'.'.join(path)}: a module that holds itself cannot be written as Python")
        self._open.add(id(value))
        made = self.made[id(value)] = self._part(value, path)
        return made

    def _part(self, value: Any, path: Path) -> Part:
        where = ".".join(path) or "the module"
        if isinstance(value, Tensor):
            return TensorPart(path, value)
        if isinstance(value, Module):
            _check_hooks(value, where)
        if not isinstance(value, TracedModule):
            if not isinstance(value, Module) or not is_leaf_module(value):
                raise GraphError(
                    f"{where}: a {type(value).__name__} is not a layer; trace it, or declare its class with "
                    "register_as_builtin"
                )
            return LayerPart(path, value, self.layers.made(value, where))
        own = object.__getattribute__(value, "__dict__")
        names = self.used.get(id(value), {})
        children = {n: self.part(own[n], (*path, n)) for n in own if n in names}
        graphs = self.entered.get(id(value))
        if graphs is None:
            return HolderPart(path, value, children)
        made = ModulePart(path, value, children, graphs)
        self._check_names(made, where)
        made.sequential = is_chain(made, value)
        self._constants(made)
        return made

    def _check_names(self, part: ModulePart, where: str) -> None:
        for name in part.entries:
            if hasattr(Module, name) or name in Module().__dict__ or name.startswith(("_forward_", "__")):
                raise GraphError(
                    f"{where} has an attribute {name!r}, which modules use themselves; rename it to write the module "
                    "as Python"
                )

    def _constants(self, part: ModulePart) -> None:
        """Constants of the graphs become buffers of the module."""
        taken = {*object.__getattribute__(part.value, "__dict__"), *dir(Module)}
        for graph in part.graphs:
            for value, wanted in constants_of(graph):
                if id(value) in part.constants:
                    continue
                name = base = wanted if plain(wanted) else "constant"
                count = 0
                while name in taken:
                    count += 1
                    name = f"{base}_{count}"
                taken.add(name)
                part.constants[id(value)] = name
                part.entries[name] = TensorPart((*part.path, name), as_tensor(value))

    # ------------------------------------------------------------ what is used in two places

    def _share(self, part: Part, path: Path) -> None:
        """Note, at the module nearest to both, each module or tensor that is found under two paths."""
        for name, child in part.children().items():
            here = (*path, name)
            if not self._again(child.value, here):
                self._share(child, here)
        if isinstance(part, LayerPart):
            for name, value, _ in part.value._entries("", True, set()):
                self._again(value, (*path, *name.split(".")))

    def _again(self, value: Any, path: Path) -> bool:
        first = self._first.setdefault(id(value), path)
        if first is path:
            return False
        owner, depth = self.top, 0
        at: Part | None = self.top
        for i, (a, b) in enumerate(zip(first, path, strict=False)):
            at = at.children().get(a) if a == b and at is not None else None
            if at is None:
                break
            if isinstance(at, ModulePart) and not at.sequential:
                owner, depth = at, i + 1
        found = (path[depth:], first[depth:])
        if found not in owner.aliases:
            owner.aliases.append(found)
        return True


def _check_hooks(module: Module, where: str) -> None:
    """Refuse what a call does besides its forward: no text stands for a hook."""
    layers = [module] if isinstance(module, TracedModule) else module.modules()
    if any(has_hooks(layer) for layer in layers):
        raise GraphError(
            f"{where}: a {type(module).__name__} has hooks, which cannot be written as Python; remove them, or let the "
            "forward of a module do what they do"
        )


def as_tensor(value: Any) -> Tensor:
    """A constant as a tensor."""
    return value if isinstance(value, Tensor) else Tensor(value)


def constants_of(graph: InternalGraph) -> Iterator[tuple[Any, str]]:
    """(value, name) of the constants that a graph uses: tensors, and arrays among arguments."""
    for expr in graph.exprs(recursive=False):
        if isinstance(expr, Constant):
            yield expr.value, expr.name
        elif isinstance(expr, Call):
            arrays = (v for _, v in expr.const_val if isinstance(v, (np.ndarray, Tensor)) and v.ndim)
            yield from ((v, f"{expr.name}_array") for v in arrays)


def is_chain(part: ModulePart, module: TracedModule) -> bool:
    """True for a module that calls its parts one after the other, each once, and nothing else."""
    if len(part.graphs) != 1 or not part.entries or part.graphs[0].arguments is None:
        return False
    if not is_numbered(part.entries) and module.origin != "Sequential":
        return False
    graph = part.graphs[0]
    calls = [e for e in graph._exprs if not isinstance(e, GetAttr)]
    at = [n for n in graph.inputs if not isinstance(n, ModuleNode)]
    order = []
    for expr in calls:
        if not _passes_on(expr, at):
            return False
        order.append(expr.inputs[0].expr.name)
        at = list(expr.outputs)
    single = graph.out_def is None or graph.out_def.kind is None
    return single and order == list(part.entries) and len(at) == 1 and graph.outputs[0] is at[0]


def _passes_on(expr: Expr, at: list[Any]) -> bool:
    """True for the call of a part with one value and nothing else that matters."""
    if not isinstance(expr, CallMethod) or expr.method != "__call__" or len(expr.outputs) != 1:
        return False
    only = expr.out_def is None or expr.out_def.kind is None
    read = expr.inputs[0].expr
    return (
        only
        and isinstance(read, GetAttr)
        and len(at) == 1
        and len(expr.args) == 2
        and not expr.kwargs
        and expr.args[1] is at[0]
    )
