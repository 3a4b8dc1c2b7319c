"""An integer network as the text of one C file."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

import megengine
from megengine.convert.c import float_rules, layer_rules, move_rules, row_rules, value_rules, window_rules  # noqa: F401  (fill RULES)
from megengine.convert.c.float_helpers import ORDER
from megengine.convert.c.helpers import HELPERS, in_order
from megengine.convert.c.writing import (
    VIEWS,
    Constants,
    NoFormError,
    Step,
    comment,
    ctype,
    form_of,
    identifier,
    plain_type,
)
from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.errors import GraphError, ShapeError
from megengine.core.files import replacing
from megengine.core.sizes import is_open
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import reference_runner
from megengine.dispatch.refusal import kinds_named
from megengine.kernels.problem import Problem
from megengine.plan.memory import Lifetime, aligned, place
from megengine.quantization.checks import require_integers
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import STAND_INS
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.sizes import specialised
from megengine.traced_module.tracing.entry import on_processor

_LARGEST = 2**31 - 1  # elements of a value: indices are int32_t


@kinds_named
def export(model: Any, path: str | os.PathLike[str], *, name: str | None = None) -> None:
    """Write an integer network as one C99 file that computes the integers of the specification, bit for bit.

    The file needs no library beyond memcpy and allocates nothing; see docs/c-file.md.

    Args:
        model: the result of `quantize_model`, or a graph or traced module that holds an integer network; one that takes
            any number of samples becomes a function of one.
        path: the .c file; an old file is replaced only when the new one is complete.
        name: what the names in the file begin with; the name of the file if not given.

    Raises:
        QuantizationError: the network holds no integers.
        GraphError: nodes have no C form, or the sizes of a value are open; the message names all of them.
        WriteError: the path cannot be written.
    """
    text = to_source(model, name=Path(path).stem if name is None else name)
    with replacing(Path(path)) as file:
        file.write(text.encode("ascii"))


@kinds_named
def to_source(model: Any, *, name: str = "net") -> str:
    """The text of the file that `export` writes, with names that begin with `name`; the same text each time."""
    source: Any = getattr(model, "integer_graph", model)
    graph = for_one_sample(on_processor(source))
    remedies = (
        "mge-quantize ptq MODEL --data DATA -o q.mgt, or quantize_model(network, data)",
        "export the .mgt file that ptq wrote, or the result of quantize_model",
    )
    require_integers(graph, f"C export: network {graph.name!r}", remedies)
    return source_of(graph, name)


def source_of(graph: InternalGraph, name: str) -> str:
    """The text for a graph of ops with fixed sizes, whatever its ops compute in."""
    return _Network(graph, _prefix(name)).text()


def for_one_sample(graph: InternalGraph) -> InternalGraph:
    """The graph with an open batch as 1. Raises GraphError if it does not take one sample."""
    shapes = [(*(1 if is_open(n) else n for n in node.spec.shape[:1]), *node.spec.shape[1:]) for node in graph.inputs]
    if is_open(shapes):
        return graph
    try:
        return specialised(graph, shapes)
    except ShapeError as error:
        raise GraphError(
            f"C export: network {graph.name!r} does not take one sample: {error}; quantize the network with the sizes "
            "that it takes: --input-shape NAME=4,3,224,224"
        ) from error


def _prefix(name: str) -> str:
    made = identifier(name) or "net"
    return made if made[0].isalpha() else f"net_{made}"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value lies: the name of a pointer, or an offset in the arena."""

    base: str
    offset: int = 0

    def text(self, kind: str) -> str:
        """The value as a pointer."""
        return f"({kind} *)(memory + {self.offset})" if self.base == "memory" else self.base


class _Network:
    """The parts of a file, gathered from a graph."""

    def __init__(self, graph: InternalGraph, prefix: str) -> None:
        self.graph, self.name, self.p = graph, prefix, f"{prefix}_"
        self.constants = Constants(self.p)
        self.values: dict[str, np.ndarray] = {}  # constants, and what is computed of them alone
        self.sources: dict[str, TensorNode] = {}  # of views: the value that they show
        self.steps: list[Step] = []
        self._gather()
        self._check_ends()
        self.inputs, self.outputs = self._arguments(graph.inputs, "in"), self._arguments(graph.outputs, "out")
        self.places: dict[str, _Place] = {}
        self.arena, self.sum_of_values = self._plan()

    # ------------------------------------------------------------ steps

    def _gather(self) -> None:
        refused: list[tuple[Apply, str]] = []
        self._check_sizes()
        for expr in self.graph.exprs():
            if isinstance(expr, Constant):
                self.values[expr.outputs[0].name] = expr.value.numpy()
            elif isinstance(expr, Apply):
                try:
                    self._add(expr)
                except NoFormError as error:
                    refused.append((expr, str(error)))
        if refused:
            raise GraphError(self._refusal(refused))

    def _add(self, expr: Apply) -> None:
        if expr.inputs and all(n.name in self.values for n in expr.inputs) and not expr.record.random:
            self._fold(expr)
        elif expr.op in VIEWS:
            self.sources[expr.outputs[0].name] = self._source(expr.inputs[0])
        else:
            made = form_of(expr)
            step = Step(expr, self.constants, self.values)
            for node in (*expr.inputs, *expr.outputs):
                ctype(node)
            made(step)
            self.steps.append(step)

    def _fold(self, expr: Apply) -> None:
        single = len(expr.outputs) == 1
        given, results = (tuple(node.spec for node in nodes) for nodes in (expr.inputs, expr.outputs))
        run = reference_runner(expr.record, Problem(expr.op, given, results, dict(expr.attrs)), single)
        made: Any = run(*[self.values[n.name] for n in expr.inputs])
        for node, value in zip(expr.outputs, (made,) if single else made, strict=True):
            self.values[node.name] = value

    def _check_sizes(self) -> None:
        nodes = [n for n in self.graph.nodes() if isinstance(n, TensorNode)]
        named = [n.name for n in self.graph.inputs if is_open(n.spec.shape)]
        if named or any(is_open(n.spec.shape) for n in nodes):
            raise GraphError(
                f"C export: network {self.graph.name!r} leaves sizes open ({', '.join(named) or 'inside'}); expected "
                "fixed ones: quantize the network with --input-shape NAME=1,3,224,224, without names of axes in it"
            )
        for node in nodes:
            if node.spec.size > _LARGEST:
                raise GraphError(
                    f"C export: {node.name} has {counted(node.spec.size, 'element')}; expected at most {_LARGEST}"
                )

    def _check_ends(self) -> None:
        """Types of results that are constants or views, and of inputs that nothing reads: no step has told of them."""
        remedies = [(n, "result", f"--drop-output {n.name}") for n in self.graph.outputs]
        remedies += [(n, "input", "--prune") for n in self.graph.inputs]
        for node, kind, remedy in remedies:
            try:
                plain_type(node)
            except NoFormError:
                raise GraphError(
                    f"C export: {kind} {node.name!r} of network {self.graph.name!r} is {node.spec.dtype}, which has no "
                    f"C form; remove it with mge-quantize edit MODEL -o part.mgt {remedy}"
                ) from None

    def _refusal(self, refused: Sequence[tuple[Apply, str]]) -> str:
        nodes = "; ".join(f"{expr.outputs[0].name} ({expr.op}: {reason})" for expr, reason in refused)
        return (
            f"C export: {counted(len(refused), 'node')} of network {self.graph.name!r} "
            f"{'has' if len(refused) == 1 else 'have'} no C form: {nodes}; cut the network in front of or behind "
            "them with mge-quantize edit MODEL -o part.mgt --extract FIRST:LAST, and compute them in the program"
        )

    def _source(self, node: TensorNode) -> TensorNode:
        return self.sources.get(node.name, node)

    # ------------------------------------------------------------ places

    def _arguments(self, nodes: Sequence[TensorNode], what: str) -> list[str]:
        names: list[str] = []
        for node in nodes:
            made = identifier(functools.reduce(str.removesuffix, STAND_INS, node.name))
            name = base = f"{'' if made[:1].isalpha() else 'x'}{made}_{what}"
            n = 1
            while name in names:
                name, n = f"{base}{n}", n + 1
            names.append(name)
        return names

    def _plan(self) -> tuple[int, int]:
        """Put values into the arena, those that live at one time apart; the sizes of it and of all values."""
        for node, name in zip(self.graph.inputs, self.inputs, strict=True):
            self.places[node.name] = _Place(name)
        made = {node.name: k for k, step in enumerate(self.steps) for node in step.expr.outputs}
        for node, name in zip(self.graph.outputs, self.outputs, strict=True):
            source = self._source(node)
            if source.name in made and source.name not in self.places:
                self.places[source.name] = _Place(name)
        last = dict(made)
        for k, step in enumerate(self.steps):
            last.update((self._source(node).name, k) for node in step.operands)
        within = [n for step in self.steps for n in step.expr.outputs if n.name not in self.places]
        sizes = {n.name: n.spec.size * storage_of(n.spec.dtype).itemsize for n in within}
        lifetimes = {k: Lifetime(sizes[n.name], made[n.name], last[n.name]) for k, n in enumerate(within)}
        offsets, total = place(lifetimes)
        for k, node in enumerate(within):
            self.places[node.name] = _Place("memory", offsets[k])
        return max(total, 64), sum(aligned(size) for size in sizes.values())

    # ------------------------------------------------------------ text

    def text(self) -> str:
        """The whole file."""
        helpers = {name for step in self.steps for name in step.helpers}
        code = [HELPERS[name].text for name in in_order(helpers)]
        steps = [self._step(k, step) for k, step in enumerate(self.steps)]
        run = self._run()
        parts = (
            self._fill(self._head()),
            ORDER * any(step.floats for step in self.steps),
            *self.constants.texts,
            *(self._fill(text) for text in (*code, *steps, run)),
            f"#endif /* {self.p.upper()}DECLARATIONS */\n",
        )
        return "\n".join(parts)

    def _fill(self, text: str) -> str:
        return Template(text).substitute(p=self.p)

    def _head(self) -> str:
        guard = self.p.upper()
        lines = [
            f"/* {comment(self.graph.name) or 'A network'} in integers, written by megengine {megengine.__version__}.",
            " *",
            *(f" * {line}" for line in self._description()),
            " */",
            f"#ifndef {guard}H",
            f"#define {guard}H",
            "",
            "#include <stdint.h>",
            "",
            *self._macros(guard),
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            f"{self._signature()};",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "",
            f"#endif /* {guard}H */",
            "",
            f"#ifndef {guard}DECLARATIONS",
            "",
            "#include <string.h>",
            "",
            "#if defined(__GNUC__)",
            f"#define {guard}ALIAS __attribute__((__may_alias__))",
            "#else",
            f"#define {guard}ALIAS",
            "#endif",
            *(
                f"typedef {kind} {guard}ALIAS ${{p}}{short};"
                for kind, short in (("int16_t", "i16"), ("int32_t", "i32"), ("int64_t", "i64"), ("float", "f32"))
            ),
            "",
        ]
        return "\n".join(lines)

    def _description(self) -> Iterator[str]:
        yield f"{self._signature()};"
        yield ""
        size = counted(self.arena, "byte")
        yield f"arena: {size} at an address that int64_t may have; nothing of it is kept between calls:"
        yield f"    static int64_t arena[{self.p.upper()}ARENA_SIZE / 8];"
        total, stored = counted(self.sum_of_values, "byte"), counted(self.constants.size, "byte")
        yield f"All values together have {total}, constants {stored}."
        yield "Arrays are in the order of C, the last axis first; inputs, outputs and arena do not overlap."
        for names, nodes in ((self.inputs, self.graph.inputs), (self.outputs, self.graph.outputs)):
            for name, node in zip(names, nodes, strict=True):
                yield f"{name}: {list(node.shape)} of {comment(_described(node.spec))}"
        yield f"With {self.p.upper()}DECLARATIONS defined, the file is only a header."

    def _macros(self, guard: str) -> Iterator[str]:
        yield f"#define {guard}ARENA_SIZE {self.arena}"
        for names, nodes in ((self.inputs, self.graph.inputs), (self.outputs, self.graph.outputs)):
            for name, node in zip(names, nodes, strict=True):
                yield f"#define {guard}{name.upper()}_SIZE {node.spec.size}"
                if isinstance(dtype := node.spec.dtype, QuantizedDType) and dtype.axis is None:
                    yield f"#define {guard}{name.upper()}_SCALE {float(dtype.only_scale)!r}f"
                    yield f"#define {guard}{name.upper()}_ZERO {dtype.zero_point}"

    def _signature(self) -> str:
        arguments = [f"const {plain_type(n)} *{name}" for name, n in zip(self.inputs, self.graph.inputs, strict=True)]
        arguments += [f"{plain_type(n)} *{name}" for name, n in zip(self.outputs, self.graph.outputs, strict=True)]
        return f"void {self.p}run({', '.join(arguments)}, void *arena)"

    def _step(self, k: int, step: Step) -> str:
        arguments = [f"const {ctype(node)} *x{i}" for i, node in enumerate(step.operands)]
        arguments += [f"{ctype(node)} *y{i}" for i, node in enumerate(step.expr.outputs)]
        shapes = ", ".join(f"{list(n.shape)} {n.spec.dtype}" for n in step.inputs if n.name not in self.values)
        results = ", ".join(f"{list(n.shape)} {n.spec.dtype}" for n in step.expr.outputs)
        module = str(step.expr.meta.get("module", "") or step.expr.outputs[0].name)
        empty = [f"(void)y{i};" for i, node in enumerate(step.expr.outputs) if not node.spec.size]
        body = "\n".join([*step.body, *empty])
        return (
            f"/* {comment(module)}: {step.expr.op}: {comment(shapes)} to {comment(results)} */\n"
            f"static void {self._step_name(k)}({', '.join(arguments)})\n{{\n{_indented(body)}\n}}\n"
        )

    def _step_name(self, k: int) -> str:
        what = identifier(self.steps[k].expr.outputs[0].name)[:40].strip("_")
        return f"${{p}}{k}_{what}"

    def _run(self) -> str:
        lines = ["unsigned char *memory = (unsigned char *)arena;", "(void)memory;"]
        used = {self._source(node).name for step in self.steps for node in step.operands}
        used |= {self._source(node).name for node in self.graph.outputs}
        for node, name in zip(self.graph.inputs, self.inputs, strict=True):
            if node.name not in used:
                lines.append(f"(void){name};")
        for k, step in enumerate(self.steps):
            given = [self._at(node, const=True) for node in step.operands]
            given += [self._at(node) for node in step.expr.outputs]
            lines.append(f"{self._step_name(k)}({', '.join(given)});")
        lines += self._last_copies()
        return f"{self._signature()}\n{{\n{_indented(chr(10).join(lines))}\n}}\n"

    def _at(self, node: TensorNode, *, const: bool = False) -> str:
        return self.places[self._source(node).name].text(f"{'const ' * const}{ctype(node)}")

    def _last_copies(self) -> Iterator[str]:
        """Outputs that are inputs, constants, or values that another output holds."""
        for node, name in zip(self.graph.outputs, self.outputs, strict=True):
            size = node.spec.size * storage_of(node.spec.dtype).itemsize
            source = self._source(node)
            if source.name in self.values:
                held = self.constants.add(np.ascontiguousarray(self.values[node.name]).view(np.uint8), "constant")
                yield f"memcpy({name}, {held}, {size});"
            elif (at := self.places[source.name]).base != name:
                yield f"memcpy({name}, {at.text(ctype(node))}, {size});"


def _described(spec: TensorSpec) -> str:
    dtype = spec.dtype
    if isinstance(dtype, QuantizedDType) and dtype.axis is None:
        return f"{dtype.name}, value = (stored - {dtype.zero_point}) * {dtype.only_scale!r}"
    return str(dtype)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
