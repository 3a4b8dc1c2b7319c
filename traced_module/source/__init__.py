"""A traced module as readable Python: classes, layers with their arguments, operators.

The file imports MegEngine only, and the modules of functions and layers of the user. Names from graphs become
identifiers, texts become escaped literals.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megengine.core.errors import GraphError, OptionError
from megengine.logger import get_logger
from megengine.module import Module
from megengine.serialization import save, write_atomically
from megengine.traced_module.ir.expr import CallFunction
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import END_NAMES
from megengine.traced_module.nesting import nests
from megengine.traced_module.source.arguments import entries_of_graph
from megengine.traced_module.source.body import Imports
from megengine.traced_module.source.classes import Classes, modules_of
from megengine.traced_module.source.parts import HolderPart, LayerPart, ModulePart, Part, Parts, TensorPart, read
from megengine.traced_module.source.text import INDENT, Names, harmless
from megengine.traced_module.traced import TracedModule

__all__ = ["save_source", "source_state", "to_source"]

WEIGHTS = ".pkl"
_USED = {  # names of MegEngine in a generated file -> the line that imports them
    "mge": "import megengine as mge",
    "F": "import megengine.functional as F",
    "M": "import megengine.module as M",
    "Parameter": "from megengine import Parameter",
    "Tensor": "from megengine import Tensor",
    "np": "import numpy as np",
    "quantized": "from megengine.core.dtype import quantized",
    "apply": "from megengine.dispatch import apply",
}


@nests()
def to_source(traced: TracedModule | InternalGraph, name: str | None = None) -> str:
    """The Python source of a traced module, or of a graph of ops.

    The outermost class has the name of the traced module, or `name`. Constructing it gives a module with new weights;
    `load()` of a file written by `save_source` gives the same module. Arguments of the trace without a tensor are
    fixed and are not parameters of the generated `forward`, unless the module has several graphs. Equal graphs give
    equal text.

    Raises:
        GraphError: something cannot be written as Python: a layer whose constructor arguments are not known, a
            wrapped function that cannot be imported (defined inside of a function, or in `__main__`), a value without
            a literal. The message names it and the path of its module.

    Example:
        >>> print(to_source(trace_module(net, x)))  # doctest: +SKIP
    """
    return _File(traced, name).text


def source_state(traced: TracedModule | InternalGraph) -> OrderedDict[str, Any]:
    """The state dict for the class of `to_source`: that of the module, and the constants of its graphs."""
    return _File(traced, None).state


@nests()
def save_source(traced: TracedModule | InternalGraph, path: str | os.PathLike[str], name: str | None = None) -> None:
    """Write the source to a `.py` file and the weights beside it, under the same name with `.pkl`.

    `load()` of the imported file gives the module again, in the same mode. Each file is replaced in one step, the
    weights first; nothing is written if the module cannot be written as Python. Texts about the model
    (`graph.metadata`) are left out, with a warning.

    Raises:
        GraphError: as `to_source`.
        OptionError: the path does not end in `.py`.

    Example:
        >>> save_source(traced, "net.py")  # doctest: +SKIP
    """
    path = Path(path)
    if path.suffix != ".py":
        raise OptionError(f"save_source: {path.name!r} does not end in .py; it is a file to import")
    file = _File(traced, name)
    if lost := sorted({key for graph in file.top.graphs for key in graph.metadata if key != END_NAMES}):
        get_logger(__name__).warning(
            f"save_source: Python source holds no metadata: {', '.join(map(repr, lost))} of the graph is not written; "
            "keep a .mgt, .tm or .onnx file too"
        )
    save(file.state, path.with_suffix(WEIGHTS))
    write_atomically(path, file.text.encode())


class _File:
    def __init__(self, traced: TracedModule | InternalGraph, name: str | None) -> None:
        if isinstance(traced, InternalGraph):
            traced = traced.owner if isinstance(traced.owner, TracedModule) else TracedModule.from_graph(traced)
        if not isinstance(traced, TracedModule) or not traced.graphs:
            raise GraphError(f"to_source: expected a traced module with a graph, got {type(traced).__name__}")
        if name is not None and not name.isidentifier():
            raise OptionError(f"to_source: {name!r} is no name for a class")
        parts = Parts(traced)
        self.top = parts.top
        self.top.sequential = False
        imports = Imports()
        modules = list(modules_of(parts.top))
        for module in modules:
            self._name_parameters(module, imports)
        for module in modules:
            self._import_functions(module, imports)
        classes = Classes(parts, imports, name)
        blocks = [classes.text(plan) for plan in classes.plans]
        blocks.append(self._load(classes.of[id(parts.top)].name))
        body = "\n\n\n".join("\n".join(block) for block in blocks)
        used = set(re.findall(r"(?<![\w.\"'])([A-Za-z]\w*)(?=[.(,)])", body))
        ours = [line for name, line in _USED.items() if name in used]
        for line in ours:
            if line.startswith("from "):
                _, home, _, imported = line.split(" ")
                imports.of(home, imported)
        lines = [line for line in ours if line.startswith("import ")] + imports.lines()
        self.text = "\n".join([self._head(), *lines, "", "", body, ""])
        try:
            compile(self.text, "<source>", "exec", dont_inherit=True)
        except (SyntaxError, RecursionError, MemoryError) as exc:  # nested deeper than Python reads
            raise GraphError(f"to_source: the graph cannot be written as Python ({exc})") from exc

    def _import_functions(self, module: ModulePart, imports: Imports) -> None:
        """Choose the names of functions, before any statement is written."""
        for graph in module.graphs:
            for expr in graph.exprs(recursive=False):
                if isinstance(expr, CallFunction):
                    try:
                        imports.function(expr.qualified)
                    except GraphError as exc:
                        exc.add_note(f"in {expr!r} of {graph.qualname}")
                        raise

    def _name_parameters(self, module: ModulePart, imports: Imports) -> None:
        module.written = [entries_of_graph(g, module.value.forward_signature) for g in module.graphs]
        if len(set(map(len, module.written))) > 1:
            raise GraphError(
                f"{'.'.join(module.path) or 'the module'} has graphs for different numbers of arguments, and no "
                "signature that names them"
            )
        imports.scopes.append(Names(entry.name for entries in module.written for entry in entries))

    # ------------------------------------------------------------ parts of the file

    def _head(self) -> str:
        inputs = [n for g in self.top.graphs for n in g.inputs if hasattr(n, "spec")]
        listed = ", ".join(f"{n.name}: {n.spec.dtype}{list(n.spec.shape)}" for n in inputs)
        text = f"with inputs {harmless(listed)}"
        notes = textwrap.wrap(text, 111, break_long_words=False, break_on_hyphens=False)
        lines = [
            '"""A network, written as Python by megengine.traced_module.source from its graph.',
            "",
            "load() gives it with its weights, which lie beside this file.",
            '"""',
            "",
            f"# Made from the graph of {harmless(self.top.graphs[0].name)[:80]}",
            *(f"# {line}" for line in notes),
            "",
        ]
        return "\n".join(lines)

    def _load(self, name: str) -> list[str]:
        layers = list(self._layers(self.top, ()))
        modes = [layer.training for _, layer in layers] or [self.top.value.training]
        self.training = modes.count(True) * 2 > len(modes)
        whole = [] if self.training else ["net.eval()"]
        return [
            "def load(weights=None):",
            f'{INDENT}"""The network with its weights: from a file or, by default, from the one beside this file."""',
            f"{INDENT}net = {name}()",
            f'{INDENT}net.load_state_dict(mge.load(weights or __file__.removesuffix(".py") + "{WEIGHTS}"))',
            *(f"{INDENT}{line}" for line in [*whole, *self._exceptions(layers)]),
            f"{INDENT}return net",
        ]

    def _layers(self, part: Part, path: tuple[str, ...]) -> Iterator[tuple[str, Module]]:
        """(text that reads it, layer) of every layer, those inside of layers included."""
        for name, child in part.entries.items():
            here = (*path, name)
            if isinstance(child, LayerPart):
                for inner, layer in child.value.named_modules():
                    yield read(self.top, "net", (*here, *(inner.split(".") if inner else ()))), layer
            yield from self._layers(child, here)

    def _exceptions(self, layers: list[tuple[str, Module]]) -> Iterator[str]:
        """Statements for layers in another mode than most, and for those that are not quantized."""
        for place, layer in layers:
            if layer.training != self.training:
                yield f"{place}.train({layer.training}, recursive=False)"
            if layer.quantize_disabled:
                yield f"{place}.quantize_disabled = True"

    @property
    def state(self) -> OrderedDict[str, Any]:
        entries: OrderedDict[str, Any] = OrderedDict()
        _collect(self.top, "", entries)
        return entries


def _collect(part: Part, prefix: str, entries: OrderedDict[str, Any]) -> None:
    """Add the entries of `Module.state_dict` of the generated object; a tensor that a module holds twice has one."""
    for name, child in _held(part, prefix, set()):
        if isinstance(child, TensorPart):
            entries[name] = Module()._saved(child.value)
        elif isinstance(child, LayerPart):
            child.value.state_dict(entries, f"{name}.")
        else:
            _collect(child, f"{name}.", entries)


def _held(part: Part, prefix: str, seen: set[int]) -> Iterator[tuple[str, Part]]:
    """Modules and tensors of a module and of its containers, each once, under its first name."""
    numbered = isinstance(part, HolderPart) and part.kind is list
    for name, child in part.entries.items() if numbered else sorted(part.entries.items()):
        if isinstance(child, HolderPart) and child.kind is not Module:
            yield from _held(child, f"{prefix}{name}.", seen)
        elif id(child.value) not in seen:
            seen.add(id(child.value))
            yield prefix + name, child
