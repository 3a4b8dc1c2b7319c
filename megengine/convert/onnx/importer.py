"""ONNX to an editable op-level graph: every node keeps its ONNX name and its place in the exporting program."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from megengine.convert.onnx import (  # noqa: F401  (they fill RULES)
    attention_rules,
    block_rules,
    contrib_rules,
    end_names,
    image_rules,
    index_rules,
    math_rules,
    nn_rules,
    older_forms,
    qonnx_rules,
    quant_rules,
    recurrent_rules,
    reduce_rules,
    resize_rules,
    sequence_rules,
    shape_rules,
    signal_rules,
    vision_rules,
)
from megengine.convert.onnx.around import added_by_round, inputs_of, showing, shown_by, sizes_in
from megengine.convert.onnx.context import MAX_ELEMENTS, Group, OnnxNode, Value
from megengine.convert.onnx.control import CONTROL, Apart
from megengine.convert.onnx.dynamic_lstm import definition
from megengine.convert.onnx.examples import SCALES, Examples, at_usual_sizes
from megengine.convert.onnx.folding import Budget, constant_of, fold
from megengine.convert.onnx.inferred_specs import inferred_specs
from megengine.convert.onnx.inputs import Lengths, has_formula, input_spec, known_input, lengths_of, of_group
from megengine.convert.onnx.older_forms import FIRST, in_modern_form
from megengine.convert.onnx.open_folding import fold_open
from megengine.convert.onnx.open_values import is_open_array
from megengine.convert.onnx.operators import made_of, unknown_operators
from megengine.convert.onnx.reading import (
    initializers,
    label,
    names_read,
    operator_name,
    opset_of,
    read_model,
)
from megengine.convert.onnx.rereading import check_every_size
from megengine.convert.onnx.wide_integers import sign_pairs
from megengine.core.errors import FileFormatError, MegEngineError, OptionError, brief, nearest
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch.refusal import kinds_named
from megengine.traced_module import InternalGraph, TracedModule
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.ir.names import END_NAMES
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.ir.provenance import FLOAT

if TYPE_CHECKING:
    import onnx

LISTED = 20  # reasons of one message
Source: TypeAlias = "str | Path | bytes | onnx.ModelProto"
Shapes = Mapping[str, Sequence[int | str | None]] | Sequence[int | str | None] | None
Sizes = Mapping[str, int] | None
Known = Mapping[str, Any] | None
# a string where a number belongs, and numbers that no memory is large enough for
MALFORMED = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


@kinds_named
def load(
    source: Source,
    input_shapes: Shapes = None,
    input_values: Known = None,
    *,
    example_sizes: Sizes = None,
    dynamic: bool = True,
) -> TracedModule:
    """Read an ONNX model as a module that is called, edited, quantized and compiled like a traced one.

    See `load_graph` for the arguments and errors.

    Example:
        >>> net = load("mobilenet.onnx")  # doctest: +SKIP
    """
    graph = load_graph(source, input_shapes, input_values, example_sizes=example_sizes, dynamic=dynamic)
    return TracedModule.from_graph(graph)


@kinds_named
def load_graph(
    source: Source,
    input_shapes: Shapes = None,
    input_values: Known = None,
    *,
    example_sizes: Sizes = None,
    dynamic: bool = True,
) -> InternalGraph:
    """Read an ONNX model (of any opset up to the newest) as an op-level graph.

    Args:
        source: path of a .onnx file, its bytes, or an `onnx.ModelProto`. External data must lie in the file's folder.
        input_shapes: shape of each input by name, or one shape for a single input, which fixes what the file leaves
            open; None in the place of a length leaves it open, and so does a name: axes of one name are equal.
        input_values: values of inputs that are fixed: numbers that choose a branch, for example; lists for
            sequences, None for an optional value that is not there. The graph does not have these inputs.
        example_sizes: lengths of open axes by name, which stay open: the graph is read for these, and what it draws,
            prints and counts is for these. Otherwise 1 for a batch, and usual sizes of pictures and texts.
        dynamic: False reads what the file quantizes by the range of the values at hand (`quantize_dynamic`) as the real
            values, between layers whose weights keep their steps: a network for `quantize_model`.

    Returns:
        A graph of ops; nodes carry the ONNX names, `meta["module"]` of their exprs the module path. An output that is
        a sequence gives an output for each of its values.

    Raises:
        FileFormatError: the file is damaged, hostile, or uses what is not supported; one message names it.
        ShapeError: `input_shapes` or a value in `input_values` does not fit the file.
        OptionError: `source` is something else; `input_shapes` or `input_values` names no input of the file.

    Example:
        >>> graph = load_graph("mobilenet.onnx", {"input": (1, 3, 224, 224)})  # doctest: +SKIP
    """
    model, folder = read_model(source)
    sign_pairs(model.graph)
    name = model.graph.name or "onnx"
    try:
        stored = list(initializers(model.graph, folder))

        def read(examples: Examples, *, listing: bool = True) -> InternalGraph:
            values = input_values or {}
            return _Importer(model, folder, stored, input_shapes, values, examples, dynamic, listing).run()

        graph, joined = at_usual_sizes(read, example_sizes or {})
        check_every_size(graph, lambda sizes: read(Examples(sizes, SCALES[0], joined), listing=False))
    except FileFormatError as error:
        error.add_note(f"while importing {name!r}")
        raise
    return graph


def _clean(name: str, fallback: str) -> str:
    """A node name from hostile text: word characters and dots; `/features/0/Conv` becomes features_0_Conv."""
    return re.sub(r"[^0-9A-Za-z_]+", "_", name[:200]).strip("_") or fallback


def _module_path(node: onnx.NodeProto) -> str:
    """The exporter's module path: `/features/features.0/conv/Conv` lies in features.0.conv.

    torch names a layer of a Sequential with the Sequential in front (features.0). Its newer exporter writes paths as
    metadata: ['', 'features', 'features.0', 'conv2d'] are module paths from the outside in, and the op.
    """
    for note in node.metadata_props:
        if note.key == "pkg.torch.onnx.name_scopes":
            return ["", *re.findall(r"'([^']*)'", note.value)[:-1]][-1]
    parts = [part for part in node.name.split("/") if part][:-1] if node.name.startswith("/") else []
    return ".".join(a for a, b in zip(parts, [*parts[1:], ""], strict=False) if not b.startswith(f"{a}."))


def _noted(node: onnx.NodeProto) -> dict[str, Any]:
    """Provenance that our exporter wrote as metadata of the node."""
    stored = {p.key.removeprefix("mge."): p.value for p in node.metadata_props if p.key.startswith("mge.")}
    found: dict[str, Any] = {key: stored[key] for key in ("module", "source", "inside") if key in stored}
    if FLOAT in stored:
        found[FLOAT] = True
    return {**found, "passes": stored["passes"].split(", ")} if "passes" in stored else found


@dataclass
class _Importer:
    model: onnx.ModelProto
    folder: Path | None
    stored: Sequence[tuple[str, np.ndarray]]
    shapes: Shapes
    fixed: Mapping[str, Any]
    examples: Examples
    dynamic: bool
    listing: bool = True  # whether what else is refused behind the first node is listed
    # of the graph that is read, then those around it
    values: ChainMap[str, Any] = field(default_factory=lambda: ChainMap({}))
    captured: dict[int, tuple[str, TensorNode, TensorNode]] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)  # the inputs that a call gives
    missing: set[str] = field(default_factory=set)  # results of refused nodes, of which no shape is known

    def run(self) -> InternalGraph:
        source = self.model.graph
        self.opset = opset_of(self.model)
        self.graph = self.top = InternalGraph(name=_clean(source.name, "onnx"))
        self.graph.metadata = {entry.key: entry.value for entry in self.model.metadata_props if entry.key != END_NAMES}
        self.shared: dict[str, dict] = {"constants": {}, "keep": {}, "names": {}}
        self.used = {*names_read(source.node), *(item.name for item in source.output)}
        unknown, refused = unknown_operators(source, max(self.opset, FIRST), self.fixed)
        for name, array in self.stored:
            self._define(name, array)
        self.budget = Budget(self.model.ByteSize() + sum(array.nbytes for _, array in self.stored))
        self._inputs()
        for index, node in enumerate(source.node):
            try:
                if index in unknown:
                    self._stand_in(node)
                elif self.missing.isdisjoint(names_read([node])):
                    self._node(node, index, self.opset)
                else:
                    self.missing.update(node.output)
            except FileFormatError as error:
                if not self.listing or self.budget.left < 0:
                    raise
                refused.append(error)
                self._stand_in(node)
        if refused:
            raise refused[0] if len(refused) == 1 else _together(refused)
        results = [(name, y) for item in source.output for name, y in self._outputs(item.name)]
        set_outputs(self.graph, [y for _, y in results])
        remove_dead(self.graph)
        inputs = [(node.name, name) for name, node in self.asked]
        self.graph.metadata |= end_names.noted(inputs, [(y.name, name) for name, y in results])
        return self.graph

    def _stand_in(self, node: onnx.NodeProto) -> None:
        """Inputs in the place of what a refused node makes: the nodes behind it are looked at too."""
        for name in filter(None, node.output):
            if name in self.values:
                continue
            if (spec := self._inferred.get(name)) is None:
                self.missing.add(name)
            else:
                self._define(name, add_input(self.graph, _clean(name, "value"), spec))

    @cached_property
    def _inferred(self) -> dict[str, TensorSpec]:
        nodes = {name: value for name, value in self.values.items() if isinstance(value, TensorNode)}
        return inferred_specs(self.model, nodes)

    def _define(self, name: str, value: Any) -> None:
        if name in self.values.maps[0]:
            raise FileFormatError(f"the value {name!r} is defined twice; the file is damaged")
        self.values[name] = value
        if isinstance(value, np.ndarray):
            self.shared["names"][id(value)] = _clean(name, "constant")
            self.shared["keep"][id(value)] = value

    def _inputs(self) -> None:
        declared = [item for item in self.model.graph.input if item.name not in self.values]
        if not declared:
            raise FileFormatError("the model has no input; expected at least one")
        _check_names(self.fixed, [item.name for item in declared], "input_values")
        declared = [item for item in declared if not self._fix(item)]
        wanted = self._wanted_shapes([item.name for item in declared])
        specs = {
            item.name: input_spec(item, wanted.get(item.name), self.examples)
            for item in sorted(declared, key=has_formula)  # what formulas follow from has names first
        }
        for item in declared:
            spec = specs[item.name]
            if spec.size > MAX_ELEMENTS:
                raise FileFormatError(
                    f"the input {item.name!r} has the shape {brief(spec.shape)}, larger than any memory"
                )
            self.asked.append((item.name, add_input(self.graph, _clean(item.name, "input"), spec)))
            self._define(*self.asked[-1])
        self.examples.check()

    def _fix(self, item: onnx.ValueInfoProto) -> bool:
        """Whether an input's value is given; it is a constant then."""
        if item.name not in self.fixed:
            return False
        self._define(item.name, known_input(item.name, item.type, self.fixed[item.name]))
        return True

    def _graph(self, opset: int, graph: onnx.GraphProto, inputs: Sequence[Any], where: str) -> list[Any]:
        """The outputs of a graph that a node runs; it sees the values around it."""
        outer = self.values
        self.values = outer.new_child()
        try:
            known = (name for name, value in outer.items() if isinstance(value, np.ndarray))
            for error in unknown_operators(graph, max(opset, FIRST), known)[1]:
                raise error
            for item, value in zip(inputs_of(graph, len(inputs)), inputs, strict=True):
                self._define(item.name, value)
            for name, array in initializers(graph, self.folder):
                self._define(name, array)
            for index, node in enumerate(graph.node):
                self._node(node, index, opset)
            return [self._made_value(item.name) for item in graph.output]
        except FileFormatError as error:
            error.add_note(f"in {where} of {graph.name!r}")
            raise
        finally:
            self.values = outer

    def _apart(self, opset: int, graph: onnx.GraphProto, specs: Sequence[TensorSpec | Group], where: str) -> Apart:
        """A graph that a node runs as a graph of its own, with inputs of these specs.

        Sequences are no inputs; the one value that a round adds to each of them is an output behind the others.
        """
        around = self.graph, self.shared, self.captured
        self.graph = made = InternalGraph(name=_clean(graph.name, "body"))
        self.shared, self.captured = {**{name: {} for name in self.shared}, "names": self.shared["names"]}, {}
        try:
            pairs = zip(inputs_of(graph, len(specs)), specs, strict=True)
            inputs = [
                spec if isinstance(spec, Group) else add_input(made, _clean(item.name, "input"), spec)
                for item, spec in pairs
            ]
            self._show(specs)
            named = [(i.name, v) for i, v in zip(graph.output, self._graph(opset, graph, inputs, where), strict=True)]
            named.sort(key=lambda one: isinstance(one[1], Group))
            set_outputs(made, [self._output(name, added_by_round(name, v)) for name, v in named])
            remove_dead(made)
            captured = list(self.captured.values())
        finally:
            self.graph, self.shared, self.captured = around
        return Apart(made, [(self._reached(name, value), inner) for name, value, inner in captured])

    def _reached(self, name: str, value: Any) -> Any:
        """A value in the graph that is read now: one of a graph around it is an input."""
        if isinstance(value, Group):
            rows = None if value.rows is None else self._reached(name, value.rows)
            return replace(value, values=[self._reached(name, item) for item in value.values], rows=rows)
        if not isinstance(value, TensorNode):
            self._show([value])
        if not isinstance(value, TensorNode) or value.graph is self.graph:
            return value
        if id(value) not in self.captured:
            self.captured[id(value)] = name, value, add_input(self.graph, _clean(name, "value"), value.spec)
            self._show([value])
        return self.captured[id(value)][2]

    def _show(self, values: Sequence[Any]) -> None:
        """Give a graph that a node runs the values around it that have the open sizes in these as axes."""
        if self.graph is self.top:
            return
        for name in sorted({name for value in values for name in sizes_in(value)} - shown_by(self.graph)):
            found = showing(name, (*self.asked, *self.values.items()))
            if found is not None and found[1].graph is not self.graph:
                self._reached(*found)

    def _wanted_shapes(self, names: list[str]) -> dict[str, Lengths]:
        if self.shapes is None:
            return {}
        if not isinstance(self.shapes, Mapping):
            if len(names) != 1:
                raise OptionError(f"input_shapes: the model has inputs {names}; give a shape for each by name")
            return {names[0]: lengths_of(self.shapes)}
        _check_names(self.shapes, names, "input_shapes")
        return {name: lengths_of(shape) for name, shape in self.shapes.items()}

    def _node(self, node: onnx.NodeProto, index: int, opset: int) -> None:
        if node.op_type == "Constant":
            for name in filter(None, node.output):
                self._define(name, constant_of(node, self.folder))
            return
        inputs = [self._input(name, node) for name in node.input]
        made = self._made(node, inputs, index, opset)
        if made is None:
            return
        if any(name in self.used for name in node.output[len(made) :]):
            raise FileFormatError(f"{label(node)}: {counted(len(node.output), 'output')} are not supported")
        for name, value in zip(node.output, made, strict=False):
            if name:
                self._define(name, value)

    def _made(self, node: onnx.NodeProto, inputs: list[Value | None], index: int, opset: int) -> Sequence[Value] | None:
        """The outputs of a node; None where other nodes define them."""
        onnx_node = self._onnx_node(node, inputs, index, opset)
        try:
            if opset < FIRST:
                onnx_node, node, opset = *in_modern_form(onnx_node, node), FIRST
                inputs = onnx_node.inputs
            if node.op_type in CONTROL:
                made = CONTROL[node.op_type](onnx_node, partial(self._graph, opset), partial(self._apart, opset))
                return made if isinstance(made, (list, tuple)) else (made,)
            known = [value for value in inputs if value is None or isinstance(value, np.ndarray)]
            is_open = any(map(is_open_array, known))
            if len(known) == len(inputs) and not is_open and (folded := fold(node, onnx_node)) is not None:
                self.budget.spend(node, folded)
                return folded
            if len(known) == len(inputs) and is_open and (folded := fold_open(onnx_node)) is not None:
                return folded
            if (body := definition(onnx_node, node, opset)) is not None:
                self._body(node, *body)
                return None
            made = made_of(onnx_node)
        except FileFormatError:
            raise
        except MegEngineError as error:
            raise onnx_node.fail(str(error)) from error
        except MemoryError as error:
            raise onnx_node.fail(f"there is not enough memory for it ({error})") from error
        except MALFORMED as error:
            raise onnx_node.fail(f"its inputs or attributes are malformed ({type(error).__name__}: {error})") from error
        return made if isinstance(made, tuple) else (made,)

    def _body(self, node: onnx.NodeProto, nodes: list[onnx.NodeProto], opset: int) -> None:
        """The nodes that the standard defines an operator by, in its place."""
        self.used.update(names_read(nodes))
        try:
            for index, inner in enumerate(nodes):
                self._node(inner, index, opset)
        except FileFormatError as error:
            error.add_note(f"while importing the definition of the {label(node)}")
            raise

    def _onnx_node(self, node: onnx.NodeProto, inputs: list[Value | None], index: int, opset: int) -> OnnxNode:
        name = _clean(node.name or (node.output[0] if node.output else ""), f"{node.op_type}_{index}")
        return OnnxNode(
            graph=self.graph,
            op_type=operator_name(node),
            name=name,
            inputs=inputs,
            attrs=_attributes(node),
            opset=opset,
            outputs=tuple(name if name in self.used else "" for name in node.output),
            dynamic=self.dynamic,
            producer=self.model.producer_name,
            meta={"module": _module_path(node), "onnx": node.name or name, **_noted(node)},
            **self.shared,
        )

    def _input(self, name: str, node: onnx.NodeProto) -> Value | None:
        if not name:
            return None
        if name not in self.values:
            raise FileFormatError(f"{label(node)}: reads {name!r}, which no earlier node makes; the file is damaged")
        return self._reached(name, self.values[name])

    def _made_value(self, name: str) -> Any:
        if name not in self.values:
            raise FileFormatError(f"the output {name!r} is made by no node; the file is damaged")
        return self._reached(name, self.values[name])

    def _outputs(self, name: str) -> list[tuple[str, Any]]:
        """An output of the model with its name; each value of a sequence is one."""
        value = self._made_value(name)
        if not isinstance(value, Group) or not value.values:
            return [(name, self._output(name, value))]
        named = ((f"{name}_{place}", one) for place, one in enumerate(value.values))
        return [(label, self._output(label, one)) for label, one in named]

    def _output(self, name: str, value: Any) -> Any:
        if isinstance(value, Group):
            raise FileFormatError(f"the output {name!r} is {of_group(value)}; expected a tensor")
        import onnx

        if is_open_array(value):
            return self._onnx_node(onnx.NodeProto(name=name), [], 0, self.opset).as_node(value)
        return self.graph.constant(value, name=_clean(name, "output")) if isinstance(value, np.ndarray) else value


def _check_names(given: Mapping[str, Any], names: list[str], argument: str) -> None:
    for name in given:
        if name not in names:
            raise OptionError(f"{argument}: no input {name!r}{nearest(name, names)}; the model has {names}")


def _together(refused: Sequence[FileFormatError]) -> FileFormatError:
    more = [f"and {len(refused) - LISTED} more"] if len(refused) > LISTED else []
    listed = "; ".join([*map(str, refused[:LISTED]), *more])
    together = FileFormatError(f"{counted(len(refused), 'part')} of the model cannot be imported: {listed}")
    together.__notes__ = list(dict.fromkeys(note for error in refused for note in getattr(error, "__notes__", ())))
    return together


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    import onnx

    values: dict[str, Any] = {}
    for attribute in node.attribute:
        try:
            value = onnx.helper.get_attribute_value(attribute)
        except ValueError as error:
            raise FileFormatError(f"{label(node)}: attribute {attribute.name!r}: {error}") from None
        values[attribute.name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return values
