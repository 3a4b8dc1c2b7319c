"""Rules: which layers a text selects, and which integers the layers that it selects take."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from megengine.core.errors import OptionError, nearest
from megengine.core.text import counted
from megengine.dispatch.refusal import fields_named, kinds_named
from megengine.traced_module.ir.expr import Apply, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.provenance import replaced_by

PRECISIONS: dict[str, tuple[int | None, int | None]] = {
    "w8a8": (8, 8),
    "w7a8": (7, 8),
    "w4a8": (4, 8),
    "w8a16": (8, 16),
    "w7a16": (7, 16),
    "w4a16": (4, 16),
    "w8": (8, None),
    "w4": (4, None),
    "float": (None, None),
}
"""Bits of the weight and of the result of a layer; without bits of results only weights are integers."""

_WEIGHTS = {8: "weight", 7: "weight7", 4: "weight4"}  # schemes by bits

INPUT = "input"  # what stands as op where a layer is an input of the network
GRANULARITIES = ("per_channel", "per_tensor")


@fields_named
@dataclass(frozen=True, slots=True)
class Precision:
    """The integers of one layer.

    Args:
        name: a name of `PRECISIONS`.
        weights: "per_channel" or "per_tensor" scales.
        group: weights along the sum that share a scale (0: all of a channel or tensor); for weights alone.
        reason: what decided, in words.
    """

    name: str = "w8a8"
    weights: str = "per_channel"
    group: int = 0
    reason: str = ""

    def __post_init__(self) -> None:
        for option, value, allowed in (
            ("precision", self.name, tuple(PRECISIONS)),
            ("weights", self.weights, GRANULARITIES),
        ):
            if value not in allowed:
                raise OptionError(
                    f"{option}: expected one of {', '.join(allowed)}, got {value!r}{nearest(str(value), allowed)}"
                )
        if type(self.group) is not int or self.group < 0:
            raise OptionError(f"group: expected a number of weights from 0 on, got {self.group!r}")
        if self.group and (self.activation_bits or not self.weight_bits):
            raise OptionError(
                f"group: {counted(self.group, 'weight')} of {self.name} share a scale; integer sums take one scale a "
                "channel, so groups are for weights alone: w4 or w8"
            )

    @property
    def weight_bits(self) -> int | None:
        return PRECISIONS[self.name][0]

    def weight_scheme(self, method: str) -> tuple[str, str]:
        """How a weight's range is chosen, and its scheme; few bits take the range of least squared error."""
        return "mse" if self.weight_bits == 4 else method, _WEIGHTS[self.weight_bits or 8]

    @property
    def activation_bits(self) -> int | None:
        return PRECISIONS[self.name][1]


@fields_named
@dataclass(frozen=True, slots=True)
class LayerRule:
    """Other integers for the layers that a text selects; what is "" or None stays as it is.

    Args:
        layers: which layers; see `Layer.matches`, and "first..last" for all between two nodes.
        precision, weights, group: as in `Precision`.

    Example:
        >>> LayerRule.parse("classifier=w4,group:32")
        LayerRule(layers='classifier', precision='w4', weights='', group=32)
    """

    layers: str
    precision: str = ""
    weights: str = ""
    group: int | None = None

    def __post_init__(self) -> None:
        Precision(self.precision or Precision().name, self.weights or Precision().weights)  # refuses unknown words

    @classmethod
    def parse(cls, text: str) -> LayerRule:
        """A rule from LAYERS=WORD[,WORD]: a precision, "per_channel" or "per_tensor", "group:N"."""
        layers, equals, words = text.rpartition("=")
        settings: dict[str, Any] = {}
        for word in words.split(","):
            kind, colon, count = word.partition(":")
            if word in PRECISIONS:
                settings["precision"] = word
            elif word in GRANULARITIES:
                settings["weights"] = word
            elif colon and kind == "group" and count.isdecimal():
                settings["group"] = int(count)
            else:
                known = (*PRECISIONS, *GRANULARITIES, "group:N")
                raise OptionError(
                    f"rule {text!r}: expected LAYERS=WORD[,WORD] with words of {', '.join(known)}, "
                    f"got {word!r}{nearest(word, known)}"
                )
        if not equals or not layers:
            raise OptionError(f"rule {text!r}: expected LAYERS=WORD[,WORD], such as classifier=w4,group:32")
        return cls(layers, **settings)

    def __str__(self) -> str:
        words = (self.precision, self.weights, "" if self.group is None else f"group:{self.group}")
        return f"{self.layers}={','.join(word for word in words if word)}"

    def changed(self, old: Precision) -> Precision:
        """A precision by this rule."""
        return replace(
            old,
            name=self.precision or old.name,
            weights=self.weights or old.weights,
            group=old.group if self.group is None else self.group,
            reason=f"rule {str(self)!r}",
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """What selection rules see of a layer.

    Args:
        name, op, module: of the node that it makes, and the path of the module that it comes from.
        reads: the names of the nodes that it reads.
        replaces: (name, op, module) of what stood in its place in the user's network, and of its further results;
            (name, "", "") of what was folded into it.
    """

    name: str
    op: str
    module: str = ""
    reads: tuple[str, ...] = ()
    replaces: tuple[tuple[str, str, str], ...] = ()

    def matches(self, rule: str) -> bool:
        """Whether a rule selects the layer.

        Rules are a module path ("features.0", with all below it), the name of a node, an op ("op:sigmoid"), a glob
        ("features.*.conv") or a regular expression ("re:.*head.*"), the last two over names and paths. Each is that of
        the layer, or of what the layer replaces; what is folded into a layer selects it by its name.
        """
        kind, _, rest = rule.partition(":")
        every = ((self.name, self.op, self.module), *(part for part in self.replaces if part[1]))
        if kind == "op" and rest:
            return any(op == rest for _, op, _ in every)
        texts = [text for name, _, module in every for text in (name, module) if text]
        if kind == "re" and rest:
            try:
                return any(re.fullmatch(rest, text) for text in texts)
            except re.error as exc:
                raise OptionError(f"{rule!r} is not a regular expression: {exc}") from exc
        if any(sign in rule for sign in "*?["):
            return any(fnmatchcase(text, rule) for text in texts)
        return rule in self.names or rule in texts or any(module.startswith(rule + ".") for _, _, module in every)

    @property
    def names(self) -> set[str]:
        """Its name, and those of what it replaces."""
        return {self.name, *(name for name, _, _ in self.replaces)}


def layers_of(graph: InternalGraph) -> list[Layer]:
    """What rules select from: the inputs and ops of a graph, in execution order."""
    return [_layer(e) for e in graph.exprs() if isinstance(e, Apply | Input)]


def _layer(expr: Apply | Input) -> Layer:
    op, module = expr.op if isinstance(expr, Apply) else INPUT, str(expr.meta.get("module", "") or "")
    (name, *others), reads = (n.name for n in expr.outputs), tuple(n.name for n in expr.inputs)
    replaced = ((name, op, module) for name, op, module in replaced_by(expr))
    return Layer(name, op, module, reads, (*replaced, *((other, op, module) for other in others)))


def hits(rule: str, layers: Sequence[Layer], option: str) -> list[str]:
    """Names of the layers that a rule selects.

    Raises:
        OptionError: the rule is no regular expression, or selects nothing; the nearest names are given.
    """
    first, dots, last = rule.partition("..")
    try:
        found = _between(first, last, layers) if dots else [layer.name for layer in layers if layer.matches(rule)]
    except OptionError as exc:
        raise OptionError(f"{option}: {exc}") from exc
    if not found:
        raise OptionError(f"{option}: {rule!r} selects no layer{_nearest(rule, layers)}")
    return found


def _between(first: str, last: str, layers: Sequence[Layer]) -> list[str]:
    """The layers on all ways from one node to another, both included, in order."""
    makers = {name: layer.name for layer in layers for name in layer.names} | {x.name: x.name for x in layers}
    read = {layer.name: [makers.get(name, name) for name in layer.reads] for layer in layers}
    behind = _reached(first, layers, read)
    readers: dict[str, list[str]] = {}
    for layer, names in read.items():
        for name in names:
            readers.setdefault(name, []).append(layer)
    before = _reached(last, layers, {layer.name: readers.get(layer.name, ()) for layer in reversed(layers)})
    return [layer.name for layer in layers if layer.name in behind and layer.name in before]


def _reached(start: str, layers: Sequence[Layer], neighbours: Mapping[str, Iterable[str]]) -> set[str]:
    """Names from which neighbours lead to `start`, in one sweep: neighbours stand before."""
    starts = {layer.name for layer in layers if start in layer.names}
    found: set[str] = set()
    for name, others in neighbours.items():
        if name in starts or any(one in found for one in others):
            found.add(name)
    return found


@kinds_named
def select(rules: Iterable[str], layers: Iterable[Layer], option: str = "exclude") -> dict[str, str]:
    """Names of the layers that the rules of an option select, each with the first rule that did.

    Raises OptionError as `hits`.

    Example:
        >>> select(["head"], [Layer("conv1", "conv2d", "stem"), Layer("fc", "matmul", "head.fc")])
        {'fc': 'head'}
    """
    layers = list(layers)
    chosen: dict[str, str] = {}
    for rule in rules:
        for name in hits(rule, layers, option):
            chosen.setdefault(name, rule)
    return chosen


def precisions(
    general: Precision, rules: Iterable[LayerRule], exclude: Iterable[str], layers: Sequence[Layer]
) -> dict[str, Precision]:
    """The precision of every layer by name: the general one, changed by each rule that hits, in order.

    Raises OptionError as `hits`.
    """
    result = {layer.name: general for layer in layers}
    for rule in rules:
        for name in hits(rule.layers, layers, "rule"):
            result[name] = rule.changed(result[name])
    for name, rule in select(exclude, [layer for layer in layers if layer.op != INPUT]).items():
        result[name] = Precision("float", reason=f"excluded by {rule!r}")
    return result


def _nearest(rule: str, layers: Sequence[Layer]) -> str:
    prefix, _, text = rule.partition(":") if rule.startswith(("op:", "re:")) else ("", "", rule)
    every = {part for x in layers for part in ((x.name, x.op, x.module), *x.replaces)}
    if prefix == "op":
        words = {f"op:{op}" for _, op, _ in every if op}
    else:
        words = {text for name, _, module in every for text in (name, module) if text}
    close = difflib.get_close_matches(rule if prefix == "op" else text, sorted(words), n=3, cutoff=0.4)
    return f"; nearest: {', '.join(close)}" if close else f"; the model has {counted(len(layers), 'layer')}"
