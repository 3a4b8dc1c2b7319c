"""The parts of a generated class: layers, tensors, containers of them, and modules with graphs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.errors import GraphError
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Call, CallMethod, Constant, Expr, GetAttr, is_call_module
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode
from megengine.traced_module.passes.layer_uses import has_hooks
from megengine.traced_module.source.layers import Layers, Made, entries
from megengine.traced_module.source.text import attribute, flat, literal, plain
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.tracing.calls import is_leaf_module

Path = tuple[str, ...]


@dataclass(eq=False)
class Part:
    """Something that is made by a constructor. `path` is the first one under which it was found."""

    path: Path
    value: Any
    entries: dict[str, Part] = field(default_factory=dict)  # attributes or items

    @functools.cached_property
    def numbered(self) -> bool:
        """True for entries named 0, 1, 2, ... in order."""
        return bool(self.entries) and all(name == str(i) for i, name in enumerate(self.entries))

    def access(self, owner: str, name: str) -> str:
        return attribute(owner, name)


@dataclass(eq=False)
class LayerPart(Part):
    """A layer, recorded as one call."""

    made: Made = field(kw_only=True)

    def access(self, owner: str, name: str) -> str:
        return _item_or_attribute(self.value, owner, name)


class TensorPart(Part):
    """A parameter, a buffer or a constant."""


class HolderPart(Part):
    """A container that is never called: a list for names 0, 1, ..., else an empty module or a dict."""

    @functools.cached_property
    def kind(self) -> type:
        """list, dict or Module."""
        return list if self.numbered else Module if all(map(plain, self.entries)) else dict

    def access(self, owner: str, name: str) -> str:
        if self.kind is list:
            return f"{owner}[{int(name)}]"
        return attribute(owner, name) if self.kind is Module else f"{owner}[{flat(literal(name))}]"


@dataclass(eq=False)
class ModulePart(Part):
    """A module whose graphs are entered: a class of its own, or a Sequential."""

    graphs: list[InternalGraph] = field(default_factory=list)
    constants: dict[int, str] = field(default_factory=dict)  # value of a constant -> attribute
    aliases: list[tuple[Path, Path]] = field(default_factory=list)  # (new, first) below this module
    sequential: bool = False
    written: list[Any] = field(default_factory=list)  # parameters of the function of each graph

    def access(self, owner: str, name: str) -> str:
        return f"{owner}[{int(name)}]" if self.sequential and self.numbered else attribute(owner, name)


def _item_or_attribute(value: Any, owner: str, name: str) -> str:
    """The read of an entry inside of a layer."""
    if isinstance(value, (list, tuple)):
        return f"{owner}[{int(name)}]"
    return f"{owner}[{flat(literal(name))}]" if isinstance(value, dict) else attribute(owner, name)


def read(part: Part, owner: str, path: Path) -> str:
    at: Any = part
    for name in path:
        inside = at if isinstance(at, Part) else None
        owner = inside.access(owner, name) if inside else _item_or_attribute(at, owner, name)
        child = inside.entries.get(name) if inside else None
        at = entries(inside.value if inside else at)[name] if child is None else child
    return owner


class Parts:
    """Parts of all modules and tensors that the graphs of a traced module use."""

    def __init__(self, top: TracedModule) -> None:
        self.layers = Layers()
        self.used: dict[int, dict[str, None]] = {}  # module or container -> names read
        self.entered: dict[int, list[InternalGraph]] = {}
        self.made: dict[int, Part] = {}
        self._open: set[int] = set()
        self._first: dict[int, Path] = {}  # module or tensor -> its first path
        for graph in top.graphs:
            self._enter(top, graph)
        part = self.part(top, ())
        assert isinstance(part, ModulePart)
        self.top: ModulePart = part
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
            elif is_call_module(expr) and isinstance(module := expr.inputs[0].owner, TracedModule):
                child = module.graph_of_call(expr)
                if child is None:
                    raise GraphError(f"{expr!r} of {expr.top_graph.qualname} fits no graph of the module that it calls")
                self._enter(module, child)

    def _use(self, owner: Any, names: list[str]) -> None:
        at = owner
        for name in names:
            if not isinstance(at, TracedModule):
                return  # a part of a layer, which is made as a whole
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
        part = self.made[id(value)] = self._part(value, path)
        return part

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
            return LayerPart(path, value, made=self.layers.made(value, where))
        own = object.__getattribute__(value, "__dict__")
        names = self.used.get(id(value), {})
        children = {n: self.part(own[n], (*path, n)) for n in own if n in names}
        graphs = self.entered.get(id(value))
        if graphs is None:
            return HolderPart(path, value, children)
        part = ModulePart(path, value, children, graphs)
        for name in part.entries:
            if hasattr(Module, name) or name in Module().__dict__ or name.startswith(("_forward_", "__")):
                raise GraphError(
                    f"{where} has an attribute {name!r}, which modules use themselves; rename it to write the module "
                    "as Python"
                )
        part.sequential = _is_chain(part, value)
        self._constants(part)
        return part

    def _constants(self, part: ModulePart) -> None:
        """Constants of the graphs become buffers of the module."""
        taken = {*object.__getattribute__(part.value, "__dict__"), *dir(Module)}
        for graph in part.graphs:
            for value, wanted in _constants_of(graph):
                if id(value) in part.constants:
                    continue
                name = base = wanted if plain(wanted) else "constant"
                count = 0
                while name in taken:
                    count += 1
                    name = f"{base}_{count}"
                taken.add(name)
                part.constants[id(value)] = name
                part.entries[name] = TensorPart(
                    (*part.path, name), value if isinstance(value, Tensor) else Tensor(value)
                )

    # ------------------------------------------------------------ what is used in two places

    def _share(self, part: Part, path: Path) -> None:
        """Note each module or tensor with two paths, at the innermost module above both."""
        for name, child in part.entries.items():
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
        at: Part = self.top
        for i, (a, b) in enumerate(zip(first, path, strict=False)):
            if a != b or a not in at.entries:
                break
            at = at.entries[a]
            if isinstance(at, ModulePart) and not at.sequential:
                owner, depth = at, i + 1
        alias = (path[depth:], first[depth:])
        if alias not in owner.aliases:
            owner.aliases.append(alias)
        return True


def _check_hooks(module: Module, where: str) -> None:
    """Raises GraphError for a module or layer with hooks."""
    layers = [module] if isinstance(module, TracedModule) else module.modules()
    if any(has_hooks(layer) for layer in layers):
        raise GraphError(
            f"{where}: a {type(module).__name__} has hooks, which cannot be written as Python; remove them, or let the "
            "forward of a module do what they do"
        )


def _constants_of(graph: InternalGraph) -> Iterator[tuple[Any, str]]:
    """(value, name) of the constants that a graph uses: tensors, and arrays among arguments."""
    for expr in graph.exprs(recursive=False):
        if isinstance(expr, Constant):
            yield expr.value, expr.name
        elif isinstance(expr, Call):
            arrays = (v for _, v in expr.const_val if isinstance(v, (np.ndarray, Tensor)) and v.ndim)
            yield from ((v, f"{expr.name}_array") for v in arrays)


def _is_chain(part: ModulePart, module: TracedModule) -> bool:
    """True for a module that calls its parts one after the other, each once, and does nothing else."""
    if len(part.graphs) != 1 or not part.entries or part.graphs[0].arguments is None:
        return False
    if not part.numbered and module.origin != "Sequential":
        return False
    graph = part.graphs[0]
    at = [n for n in graph.inputs if not isinstance(n, ModuleNode)]
    order = []
    for expr in graph._exprs:
        if isinstance(expr, GetAttr):
            continue
        if not _passes_on(expr, at):
            return False
        order.append(expr.inputs[0].expr.name)
        at = list(expr.outputs)
    single = graph.out_def is None or graph.out_def.kind is None
    return single and order == list(part.entries) and len(at) == 1 and graph.outputs[0] is at[0]


def _passes_on(expr: Expr, at: list[Any]) -> bool:
    """True for the call of a part with one value and no other argument, for one result."""
    if not isinstance(expr, CallMethod) or expr.method != "__call__" or len(expr.outputs) != 1:
        return False
    if not isinstance(expr.inputs[0].expr, GetAttr):
        return False
    single = expr.out_def is None or expr.out_def.kind is None
    return single and len(at) == 1 and len(expr.args) == 2 and not expr.kwargs and expr.args[1] is at[0]
