"""TracedModule: a model as an editable graph."""

from megengine.traced_module.expr import Apply, Constant, Expr, Input
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.interpret import interpret
from megengine.traced_module.node import Node, TensorNode
from megengine.traced_module.record import record
from megengine.traced_module.traced import TracedModule, lower, trace_module

__all__ = [
    "Apply",
    "Constant",
    "Expr",
    "Input",
    "InternalGraph",
    "Node",
    "TensorNode",
    "TracedModule",
    "interpret",
    "lower",
    "record",
    "trace_module",
]

if __name__ != "megengine.traced_module":
    raise ImportError("import megengine.traced_module, not traced_module: a second copy has classes of its own")
