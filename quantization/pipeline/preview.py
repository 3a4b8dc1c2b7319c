"""preview: which integers the settings give every layer, before any data is read."""

from dataclasses import dataclass

from megengine.core.notebook import html_table
from megengine.core.text import counted
from megengine.dispatch.refusal import kinds_named
from megengine.quantization.pipeline.annotate import annotate
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.canonicalize import canonicalize
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.selection import hits, layers_of
from megengine.quantization.pipeline.spec import Fixed, Plain, Shared
from megengine.traced_module import TracedModule
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.tracing.entry import on_processor


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """What becomes of one op, or input: its weights, its result ("float", a scheme, "as X", "inside"), and why."""

    name: str
    op: str
    module: str
    weights: str
    result: str
    reason: str


@dataclass(frozen=True, slots=True)
class Preview:
    """Every layer in execution order, and the layers that each rule hits.

    `rules` has (option, rule, names of the layers), in the order in which they count.
    """

    layers: tuple[PlannedLayer, ...]
    rules: tuple[tuple[str, str, tuple[str, ...]], ...]

    def _repr_html_(self) -> str:
        rows = [(x.name, x.op, x.module, x.weights, x.result, x.reason) for x in self.layers]
        title = f"{counted(len(rows), 'layer')}, {counted(len(self.rules), 'rule')}"
        return html_table(("layer", "op", "module", "weights", "result", "reason"), rows, numbers=0, title=title)


@kinds_named
def preview(model: TracedModule | InternalGraph, config: QuantConfig | None = None) -> Preview:
    """Which integers the settings give every layer of a float network; reads no data.

    Raises:
        OptionError: a rule selects nothing; the nearest names are given.

    Example:
        >>> preview(network, QuantConfig(rules=("classifier=w4a8",))).rules  # doctest: +SKIP
        (('rule', 'classifier=w4a8', ('classifier_matmul_out', 'classifier_add_out')),)
    """
    config = config or QuantConfig()
    graph = canonicalize(on_processor(model))
    annotation, layers = annotate(graph, config), layers_of(graph)
    asked = [("rule", str(rule), rule.layers) for rule in config.layer_rules]
    asked += [("exclude", rule, rule) for rule in config.exclude] + [("include", rule, rule) for rule in config.include]
    rules = tuple((option, text, tuple(hits(selected, layers, option))) for option, text, selected in asked)
    planned = [
        PlannedLayer(x.name, x.op, x.module, *_integers(x.name, annotation), annotation.explain(x.name)) for x in layers
    ]
    return Preview(tuple(planned), rules)


def _integers(name: str, annotation: Annotation) -> tuple[str, str]:
    weights = annotation.weights[name].reason if name in annotation.weights else ""
    match annotation.edges.get(name):
        case Plain(scheme=scheme):
            return weights, scheme
        case Shared(source=source):
            return weights, f"as {source}"
        case Fixed(dtype=dtype):
            return weights, dtype.name
    return weights, "inside" if name in annotation.inside else "float"
