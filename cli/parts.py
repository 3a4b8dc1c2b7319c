"""The part of a model at a module path: the graphs of a submodule, or the calls of a flat graph."""

from fnmatch import fnmatchcase

from megengine.core.errors import OptionError, nearest
from megengine.core.text import counted
from megengine.traced_module import InternalGraph
from megengine.traced_module.editing.extracting import extract
from megengine.traced_module.editing.flattening import flattened
from megengine.traced_module.ir.expr import Constant, GetAttr, Input
from megengine.traced_module.ir.lookup import graphs_at, known_as, node_path
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.provenance import module_path


def part_at(graph: InternalGraph, path: str, listing: str) -> InternalGraph:
    """The graph of the submodule at a path; or the graph itself, cut down to the calls made there.

    The path may be a pattern such as `layer*.0.conv1`, or the name or path of a value, for the call that makes it.

    Raises:
        OptionError: no submodule, call or value stands there; the nearest is given, and the line that lists them.
    """
    graphs = graphs_at(graph, path)
    if len(graphs) > 1:
        raise OptionError(
            f"--module {path!r}: it has {counted(len(graphs), 'graph')}; "
            f"give one of {path}[0] to {path}[{len(graphs) - 1}]"
        )
    if graphs:
        return graphs[0]
    pattern = path.replace("[", "[[]")  # only * and ? are wildcards
    if {*"*?"} & {*path} and any(expr.graph is not graph for expr in graph.exprs()):
        graph = flattened(graph.owner, graph).graph
    exprs = [expr for expr in graph.exprs() if not isinstance(expr, Constant | GetAttr | Input)]
    below = [expr for expr in exprs if any(fnmatchcase(prefix, pattern) for prefix in _prefixes(module_path(expr)))]
    own = graph.names.get(path)
    below = below or [e for e in exprs if any(n is own if own else path in known_as(n) for n in e.outputs)]
    if not below:
        known = [prefix for expr in exprs for prefix in _prefixes(module_path(expr))]
        known += [name for expr in exprs for node in expr.outputs for name in (node.name, node_path(node))]
        raise OptionError(
            f"--module {path!r}: {graph.name} has no module and no value there{nearest(path, dict.fromkeys(known))}; "
            f"`{listing}` lists them"
        )
    # the nodes that these expressions take from others, and those that others or the caller take from them
    here = {id(expr) for expr in below}
    taken = [node for expr in below for node in expr.inputs if id(node.expr) not in here]
    inputs = [node for node in taken if isinstance(node, TensorNode) and not isinstance(node.expr, Constant | GetAttr)]
    results = [node for expr in below for node in expr.outputs if isinstance(node, TensorNode)]
    returned = {id(node) for expr in below for node in expr.top_graph.outputs}
    outputs = [n for n in results if id(n) in returned or any(id(user) not in here for user in n.users)]
    extract(graph, list({id(node): node for node in inputs}.values()), outputs)
    return graph


def _prefixes(path: str) -> list[str]:
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
