"""Traced modules of what a tracer has seen."""

from __future__ import annotations

from typing import Any

from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.ir.functions import forward_signature
from megengine.traced_module.reserved import check_names
from megengine.traced_module.traced import STATE_NAMES, TracedModule
from megengine.traced_module.tracing.calls import is_leaf_module
from megengine.traced_module.tracing.capture import ModuleTracer


class Assembly:
    """Builds traced modules from what a tracer has seen: layers and tensors are shared, other modules become graphs."""

    def __init__(self, tracer: ModuleTracer) -> None:
        self.tracer = tracer
        self.made: dict[int, Any] = {}
        self.kept: list[Any] = []

    def module(self, module: Any, path: str) -> Any:
        """The counterpart of a module, a tensor, or a container of them."""
        if isinstance(module, Tensor) or (isinstance(module, Module) and is_leaf_module(module)):
            return module
        return self.graph_module(module, path)

    def graph_module(self, module: Any, path: str = "") -> TracedModule:
        """The counterpart of a module that has graphs, or of a container."""
        if id(module) in self.made:
            return self.made[id(module)]
        new = self.made[id(module)] = TracedModule()
        self.kept.append(module)
        if isinstance(module, Module):
            new.name, new.training, new.quantize_disabled = module.name, module.training, module.quantize_disabled
            new.forward_signature = forward_signature(module, with_self=True)
            new.origin = module.origin if isinstance(module, TracedModule) else type(module).__name__
            entries = object.__getattribute__(module, "__dict__").items()
            for graph in self.tracer.children.get(id(module), (module, {}))[1].values():
                graph._owner = new
                new._add_graph(graph)
                if isinstance(module, TracedModule):
                    graph.metadata = {key: text for old in module.graphs for key, text in old.metadata.items()}
        else:
            entries = module.items() if isinstance(module, dict) else enumerate(module)
        held = {str(name): value for name, value in entries if _holds(value)}
        if isinstance(module, TracedModule):
            held = {name: value for name, value in held.items() if name not in STATE_NAMES}
        kind = type(module).__name__
        check_names(held, STATE_NAMES, f"{path} ({kind})" if path else kind)
        for name, value in held.items():
            object.__setattr__(new, name, self.module(value, f"{path}.{name}" if path else name))
        return new


def _holds(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return any(_holds(v) for v in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, (Module, Tensor))
