"""What annotate decided about every edge of a graph, and why."""

from dataclasses import dataclass, field
from difflib import get_close_matches

from megengine.core.errors import OptionError
from megengine.quantization.pipeline.selection import Precision
from megengine.quantization.pipeline.spec import QSpec, Shared, Weight


@dataclass(slots=True)
class Annotation:
    """What annotate decided, by node name.

    Args:
        edges: spec of every edge that carries integers.
        weights: spec of every constant weight, by name of the layer's output node.
        biases: the op that adds the bias of such a layer, by the name of its result, and as which operand.
        operands: spec of every other constant that integer ops read, by name of the op's result and place.
        inside: edges inside one integer kernel (a residual summed before rounding, an input of a clamp): why.
        floating: layers left in float: why.
        nodes: names of all nodes of the graph.
        replaced: the layer that stands in the place of a node of the user's network, by the name of that node.
        precision: which integers were asked for, of every layer and input.
        real_results: results of the network that are made in float are not rounded.
    """

    edges: dict[str, QSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    biases: dict[str, tuple[str, int]] = field(default_factory=dict)
    operands: dict[tuple[str, int], QSpec] = field(default_factory=dict)
    inside: dict[str, str] = field(default_factory=dict)
    floating: dict[str, str] = field(default_factory=dict)
    nodes: frozenset[str] = frozenset()
    replaced: dict[str, str] = field(default_factory=dict)
    precision: dict[str, Precision] = field(default_factory=dict)
    real_results: bool = False

    def explain(self, name: str) -> str:
        """Why an edge is as it is: the chain of reasons, in one line. Raises OptionError if no node has that name."""
        if name not in self.nodes and name in self.replaced:
            return f"{name}: computed by {self.explain(self.replaced[name])}"
        if name not in self.nodes:
            close = get_close_matches(str(name)[:100], {*self.nodes, *self.replaced}, n=3)
            hint = f"; nearest: {', '.join(close)}" if close else ""
            raise OptionError(
                f"explain: no node {name!r} among the {len(self.nodes)} of the graph that was annotated{hint}"
            )
        reasons = [self._of_edge(name)]
        if name in self.weights:
            reasons.append(f"weights: {self.weights[name].reason}")
        if name in self.precision and self.precision[name].reason not in reasons[0]:
            reasons.append(self.precision[name].reason)
        return f"{name}: {'; '.join(reasons)}"

    def _of_edge(self, name: str) -> str:
        if name in self.inside:
            return f"no rounding here ({self.inside[name]})"
        if name not in self.edges:
            return f"float ({self.floating.get(name, 'no integer layer reads or makes it')})"
        spec = self.edges[name]
        own = f"{type(spec).__name__.lower()} ({spec.reason})"
        return f"{own}; {spec.source}: {self._of_edge(spec.source)}" if isinstance(spec, Shared) else own
