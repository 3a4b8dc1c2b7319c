"""What users call to trace: modules become traced modules, traced modules graphs of ops."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np

from megengine.core.collecting import collection_paused
from megengine.core.errors import GraphError
from megengine.core.pytree import flatten, unflatten
from megengine.dispatch.public import PublicFunction, watched_function
from megengine.dispatch.refusal import kinds_named
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.ir.functions import wrapped_functions
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import number
from megengine.traced_module.moving import moved
from megengine.traced_module.nesting import nests
from megengine.traced_module.tm_config import SETTINGS
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.tracing.assembly import Assembly
from megengine.traced_module.tracing.calls import builtin_modules
from megengine.traced_module.tracing.capture import capture
from megengine.traced_module.tracing.record import record_graph
from megengine.traced_module.tracing.source_lines import user_line
from megengine.traced_module.untraced import remedy_for


@kinds_named
def trace_module(mod: Module, *args: Any, **kwargs: Any) -> TracedModule:
    """Capture `mod(*args, **kwargs)` as a graph of the calls that its forward makes.

    Only shapes and dtypes of the tensors matter: nothing is computed unless Python asks for a value (`if x.sum() > 0`,
    `int(x.shape[0])`, `x.numpy()`), which specialises the graph with a SpecializationWarning; `specializations` of
    the result lists every case. Parameters and layers are shared with `mod`, which is not changed.

    Args:
        mod: the model, in the mode (training or evaluation) in which it is to be captured.
        args: arguments of its forward: tensors or arrays, constants, nested in any way.
        kwargs: keyword arguments of its forward.

    Raises:
        GraphError: the module returns no tensor, or cannot be captured; the message tells where.
        ArgumentError: the arguments are not those of its forward.

    Example:
        >>> traced = trace_module(net, mge.tensor(np.ones((1, 3, 224, 224), np.float32)))  # doctest: +SKIP
    """
    if not isinstance(mod, Module):
        raise GraphError(f"trace_module: expected a Module, got {type(mod).__name__}; {remedy_for(mod, 'mod')}")
    leaves, structure = flatten((args, kwargs))
    args, kwargs = unflatten(
        structure, [v if isinstance(v, Tensor) or not hasattr(v, "__array__") else Tensor(v) for v in leaves]
    )
    with collection_paused():
        traced = _captured(mod, args, kwargs, user_line())
    if SETTINGS.check:
        want, got = flatten(mod(*args, **kwargs))[0], flatten(traced(*args, **kwargs))[0]
        for i, (a, b) in enumerate(zip(want, got, strict=True)):
            if isinstance(a, Tensor) and not np.allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5):
                raise GraphError(f"trace_module: result {i} of the graph differs from that of {type(mod).__name__}")
    return traced


@nests("trace_module")
def _captured(mod: Module, args: tuple, kwargs: dict, source: str) -> TracedModule:
    tracer, graph = capture(mod, args, kwargs, source)
    traced = Assembly(tracer).graph_module(mod)
    traced.specializations = tuple(tracer.specializations)
    number([graph])
    graph.journal.recording = True
    return traced


@kinds_named
def lower(traced: TracedModule | InternalGraph) -> TracedModule:
    """An independent copy at op level: only Input, Constant and Apply expressions, for the shapes of the trace.

    Every op carries the path of the module that applied it ("module"), its layer's name and the user's source line.
    """
    graph = traced.graph if isinstance(traced, TracedModule) else traced
    if not isinstance(graph, InternalGraph):
        raise GraphError(f"lower: got {type(traced).__name__}; expected a TracedModule; {remedy_for(traced)}")
    return TracedModule(record_graph(graph) if graph.of_calls else graph.clone())


def on_processor(model: TracedModule | InternalGraph) -> InternalGraph:
    """An independent copy at op level whose values lie on the processor, where passes compute with NumPy."""
    return moved(lower(model).graph, "cpu0")


def wrap(func: Any) -> Any:
    """Declare a function of the user's as one that graphs record as a single call.

    The function keeps its name: a file that holds a graph with it can be loaded only where it was wrapped before.
    Called as a statement, `wrap(swish)`, it puts the declared function under the names that the calling Python module
    has for it.

    Example:
        >>> @wrap
        ... def swish(x):
        ...     return x * F.sigmoid(x)
    """
    if not callable(func) or not hasattr(func, "__qualname__"):
        raise GraphError(f"wrap: expected a function, got {func!r}, a {type(func).__name__}")
    record = PublicFunction(func.__module__, func.__qualname__, func, inspect.signature(func))
    watched = wrapped_functions[record.qualified] = watched_function(record)
    names = sys._getframe(1).f_globals
    names.update((name, watched) for name in [name for name, value in names.items() if value is func])
    return watched


def register_as_builtin(mod_cls: type[Module]) -> type[Module]:
    """Declare a class of modules as a layer: graphs record a call of it as one expression and keep the module."""
    if not (isinstance(mod_cls, type) and issubclass(mod_cls, Module)):
        raise GraphError(f"register_as_builtin: expected a subclass of Module, got {mod_cls!r}")
    builtin_modules.add(mod_cls)
    return mod_cls
