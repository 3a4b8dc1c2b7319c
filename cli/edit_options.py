"""The edit options of `mge-quantize edit`: the value of each, and the edit that it makes."""

import ast
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megengine.cli.edit_expressions import node_of
from megengine.cli.readers import load_function
from megengine.core.errors import GraphError, MegEngineError, OptionError, listed, nearest
from megengine.core.text import counted
from megengine.traced_module import TracedModule
from megengine.traced_module.editing.edit_log import EditLog
from megengine.traced_module.editing.excluding import exclude
from megengine.traced_module.editing.expressions import set_outputs
from megengine.traced_module.editing.extracting import drop_unused_inputs, extract
from megengine.traced_module.editing.parts import set_attribute
from megengine.traced_module.editing.results import way_along
from megengine.traced_module.ir.expr import Apply, Call, GetAttr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.lookup import node_named
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes import PassManager, passes_named


@dataclass
class Session:
    """A model that is edited, and the graph in which names are looked up first."""

    model: TracedModule
    graph: InternalGraph
    listing: str = ""  # the line that lists the names of the model
    narrowed: bool = False  # fewer results may need less of the model

    @property
    def remedy(self) -> str:
        """How to find the names of nodes."""
        if self.listing:
            return f"`{self.listing}` lists them"
        return (
            f"it has {listed(node.name for node in self.graph.nodes(recursive=False) if isinstance(node, TensorNode))}"
        )

    def node(self, name: str) -> Any:
        """A node by name, path (`layer1.0.relu_out`) or `qualname`. Raises OptionError if there is none, or several."""
        try:
            return node_named(self.model.graphs, name, self.graph)
        except OptionError as error:
            remedy = "" if "give one by its path" in str(error) else f"; {self.remedy}"
            raise OptionError(f"{error}{remedy}") from None

    def tensor(self, name: str) -> TensorNode:
        """A node of a tensor. Raises as `node`."""
        node = self.node(name)
        if not isinstance(node, TensorNode):
            raise OptionError(f"{name!r} is a layer; expected a value, such as {node.name}_out")
        return node

    def value(self, name: str) -> TensorNode | str:
        """A tensor, by its path if that selects one call of a shared submodule. Raises as `node`."""
        node = self.tensor(name)
        return name if node.graph is not self.graph and way_along(self.graph, name, node) else node


def rename(session: Session, text: str) -> None:
    """Give a node another name."""
    old, new = _pair(text, "OLD=NEW")
    node = session.node(old)
    node.graph.rename(node, new)


def replace(session: Session, text: str) -> None:
    """Let the users of a node use another node, or a call of nodes."""
    name, expression = _pair(text, "NODE=EXPR, where EXPR is a node or a call such as F.relu(_)")
    node = session.tensor(name)
    graph = node.graph

    def find(other: str) -> TensorNode:
        value = graph.names.get(other)
        if not isinstance(value, TensorNode):
            names = [n.name for n in graph.nodes(recursive=False) if isinstance(n, TensorNode)]
            raise OptionError(f"{graph.qualname} has no value {other!r}{nearest(other, names)}")
        return value

    if graph.arguments is not None:
        with graph.insert_exprs():
            graph.replace_node({node: node_of(graph, expression, node, find)})
        return
    with graph.transaction("replace"):
        graph.replace_node({node: node_of(graph, expression, node, find)})


def insert(session: Session, text: str) -> None:
    """Put a call behind a node: relu_out='F.clip(_, 0, 6)'; self.NAME(_) calls a layer."""
    _, expression = _pair(text, "NODE=EXPR, where EXPR is a call such as F.relu(_)")
    if not _uses_node(expression):
        raise OptionError("expected a call with _, which stands for the node: NODE=F.relu(_)")
    replace(session, text)


def set_arguments(session: Session, texts: Sequence[str]) -> None:
    """Change an argument of a call, or an attribute of an op. Adjacent ones are one edit and need fit only as such."""
    with session.graph.transaction("set_arguments") if len(texts) > 1 else nullcontext():
        for text in texts:
            _set_argument(session, text)


def _set_argument(session: Session, text: str) -> None:
    where, value = _pair(text, "NODE:ARGUMENT=VALUE")
    name, colon, argument = where.rpartition(":")
    if not colon:
        raise OptionError("expected NODE:ARGUMENT=VALUE, for example relu_out:axis=1")
    expr = session.tensor(name).expr
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        literal = value
    if not isinstance(expr, Apply | Call):
        raise OptionError(f"{name!r} is no result of a call, and has no arguments")
    if isinstance(expr, Apply) and argument not in expr.attrs:
        known = ", ".join(expr.attrs) or "none"
        raise OptionError(f"{expr.op} has no attribute {argument!r}{nearest(argument, expr.attrs)}; it has {known}")
    expr.set_arg(argument, literal)


def replace_module(session: Session, text: str) -> None:
    """Put the layer that a function of yours makes in the place of another."""
    path, source = _pair(text, "LAYER=FILE.py:FUNCTION")
    node = session.node(path)
    if not isinstance(node, ModuleNode) or not isinstance(node.expr, GetAttr):
        raise OptionError(f"{path!r} is no layer; give the name or the path of one")
    node.graph.replace_module(node, _module(source))


def add_module(session: Session, text: str) -> None:
    """Give the model a layer that a function of yours makes, for --insert."""
    name, source = _pair(text, "NAME=FILE.py:FUNCTION")
    if session.graph.arguments is None:
        raise OptionError("graphs of ops have no layers")
    owner = session.graph.inputs[0]
    if name in object.__getattribute__(owner.owner, "__dict__"):
        raise OptionError(f"{owner.qualname} already has an attribute {name!r}; choose another name")
    set_attribute(owner, name, _module(source))


def delete(session: Session, name: str) -> None:
    """Remove a call whose results nothing uses."""
    node = session.node(name)
    node.graph.erase(node.expr)


def add_input(session: Session, text: str) -> None:
    """Append an input."""
    name, rest = _pair(text, "NAME=1,3,224,224 or NAME=1,3,224,224:float32")
    numbers, _, dtype = rest.partition(":")
    try:
        shape = tuple(map(int, numbers.replace("x", ",").split(","))) if numbers else ()
    except ValueError:
        raise OptionError(f"{numbers!r} is no shape; write for example {name}=1,3,224,224") from None
    session.graph.add_input_node(shape, dtype or "float32", name)


def leave_in_float(session: Session, name: str) -> None:
    """Let quantization leave a call in float, all of it if it calls a submodule."""
    node = session.tensor(name)
    exclude(node.graph, [node])


def keep(session: Session, names: Sequence[str]) -> None:
    """Cut the model: it returns this node. Repeat for several."""
    _set_outputs(session, [session.value(name) for name in names], "keep")


def add_output(session: Session, name: str) -> None:
    """Return one more node."""
    _set_outputs(session, [*session.graph.outputs, session.value(name)], "add_output")


def drop_output(session: Session, name: str) -> None:
    """No longer return a node."""
    node, outputs = session.tensor(name), session.graph.outputs
    rest = [output for output in outputs if output is not node]
    if len(rest) == len(outputs):
        names = [output.name for output in outputs]
        raise OptionError(f"{name!r} is no output{nearest(name, names)}; outputs: {', '.join(names)}")
    if not rest:
        raise OptionError(f"{name!r} is the only output; a model has one or more")
    _set_outputs(session, rest, "drop_output")


def cut(session: Session, text: str) -> None:
    """Cut the model at both ends: it takes these values and returns those."""
    sources, colon, results = text.partition(":")
    if not colon or not results:
        raise OptionError("expected IN,...:OUT,..., names of values; nothing before the colon keeps the inputs")
    inputs = [session.value(name.strip()) for name in sources.split(",") if name.strip()]
    outputs = [session.value(name.strip()) for name in results.split(",") if name.strip()]
    extract(session.graph, inputs, outputs)


def prune(session: Session, _: Any) -> None:
    """Remove calls and inputs that nothing uses."""
    with session.graph.transaction("prune"):
        session.graph.compile()
        drop_unused_inputs(session.graph)


def undo(session: Session, text: str) -> None:
    """Undo the last N edits."""
    if not text.isdecimal() or not int(text):
        raise OptionError(f"expected a count of edits, 1 or more, got {text!r}")
    for done in range(int(text)):
        if not session.graph.undo():
            raise OptionError(
                f"only {counted(done, 'edit')} {'was' if done == 1 else 'were'} made, {text} cannot be taken back"
            )


def replay(session: Session, path: str) -> None:
    """Replay a saved log of edits."""
    log = EditLog.load(Path(path))
    try:
        log.replay(session.model)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error


def run_passes(session: Session, text: str) -> None:
    """Run passes, in order; "all" for every one that fits."""
    names = text if text == "all" else [name.strip() for name in text.split(",")]
    PassManager(passes_named(names, "ops" if session.graph.arguments is None else "calls")).run(session.graph)


@dataclass(frozen=True)
class EditOption:
    """A command line option that edits the model.

    `value` is its metavar in the help, "" for a flag; `run` makes the edit, and its docstring is the help; where
    `together` is set, adjacent values make one edit.
    """

    names: tuple[str, ...]
    value: str
    run: Callable[[Session, Any], None]
    together: bool = False


EDIT_OPTIONS = (
    EditOption(("--log",), "FILE", replay),
    EditOption(("--passes", "--optimize"), "PASS,...", run_passes),
    EditOption(("--rename",), "OLD=NEW", rename),
    EditOption(("--insert",), "NODE=EXPR", insert),
    EditOption(("--replace",), "NODE=EXPR", replace),
    EditOption(("--set", "--set-argument"), "NODE:ARGUMENT=VALUE", set_arguments, together=True),
    EditOption(("--replace-module",), "LAYER=FILE.py:FUNCTION", replace_module),
    EditOption(("--add-module",), "NAME=FILE.py:FUNCTION", add_module),
    EditOption(("--delete",), "NODE", delete),
    EditOption(("--exclude",), "NODE", leave_in_float),
    EditOption(("--keep",), "NODE", keep, together=True),
    EditOption(("--extract",), "IN,...:OUT,...", cut),
    EditOption(("--add-input",), "NAME=SHAPE[:DTYPE]", add_input),
    EditOption(("--add-output",), "NODE", add_output),
    EditOption(("--drop-output",), "NODE", drop_output),
    EditOption(("--prune",), "", prune),
    EditOption(("--undo",), "N", undo),
)


def take(session: Session, option: EditOption, value: Any) -> None:
    """Make one edit. Raises MegEngineError, which names the option, if it is refused."""
    values = [value] if isinstance(value, str) else value or ()
    where = " ".join([f"{option.names[0]} {text!r}" for text in values]) or option.names[0]
    try:
        option.run(session, value)
    except MegEngineError as error:
        kind = OptionError if isinstance(error, OptionError) else GraphError
        raise kind(f"{where}: {error}") from error


def _pair(text: str, form: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not (left.strip() and equals and right.strip()):
        raise OptionError(f"expected {form}")
    return left.strip(), right.strip()


def _uses_node(expression: str) -> bool:
    try:
        return any(isinstance(one, ast.Name) and one.id == "_" for one in ast.walk(ast.parse(expression, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True  # the reader of the expression reports the error


def _module(source: str) -> Any:
    try:
        return load_function(source)()
    except MegEngineError:
        raise
    except Exception as error:
        raise OptionError(f"{source!r}: the function raised {type(error).__name__}: {error}") from error


def _set_outputs(session: Session, nodes: Sequence[Node | str], what: str) -> None:
    graph = session.graph
    session.narrowed = True
    with graph.transaction(what):
        if graph.arguments is not None:
            graph.reset_outputs(nodes[0] if len(nodes) == 1 else tuple(nodes))
        else:
            set_outputs(graph, [node for node in nodes if isinstance(node, Node)])  # ops are in one graph
        remove_dead(graph)
