"""The graph: expressions in order over named nodes.

One class serves both levels: at module level a graph belongs to a module (its first input is that module's node) and
holds calls as the user wrote them; at op level it holds only Input, Constant and Apply. Here stand what a graph holds,
what one can ask it, and the methods by which users change it. Every edit checks first and changes then, so a refused
edit leaves the graph as it was; edits are functions of `megengine.traced_module.editing` over the few primitive
changes of `primitives`, and are handed in.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from megengine.core.errors import GraphError
from megengine.core.pytree import TreeDef, unflatten
from megengine.core.spec import TensorSpec
from megengine.core.text import one_line
from megengine.dispatch.refusal import kinds_named
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.ir.assignments import Assignments
from megengine.traced_module.ir.expr import Expr, Input
from megengine.traced_module.ir.filters import ExprFilter, NodeFilter, is_of
from megengine.traced_module.ir.fixed import fixed, listed, refuse_setting
from megengine.traced_module.ir.functions import Arguments
from megengine.traced_module.ir.journal import Journal
from megengine.traced_module.ir.lookup import nearest_node, node_of
from megengine.traced_module.ir.methods import methods
from megengine.traced_module.ir.names import NameSpace
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.ir.order import ExprOrder
from megengine.traced_module.ir.queries import child_graph, visits
from megengine.traced_module.ir.written import formatted, written

_INPUTS = "add_input_node or reset_inputs"
_OUTPUTS = "add_output_node or reset_outputs"
alive: weakref.WeakSet[InternalGraph] = weakref.WeakSet()  # every graph


def _return(graph: Any, nodes: list[Any]) -> None:
    """Return these nodes, nested as the results are."""
    nested = nodes if graph.out_def is None else unflatten(graph.out_def, nodes)
    methods.reset_outputs(graph, nested[0] if graph.out_def is None and len(nodes) == 1 else nested)


class InternalGraph:
    """Expressions in execution order over named nodes.

    `metadata` holds texts about the model, as ONNX files do: how its inputs are prepared, who made it. They go with
    copies of the graph and with its `.mgt` and `.onnx` files.
    """

    def __init__(self, name: str = "graph", qualname: str | None = None, *, owner: Module | None = None) -> None:
        self.name = name
        self.qualname = name if qualname is None else qualname
        self._owner = owner
        self._order = ExprOrder()
        self._inputs: tuple[Any, ...] = ()
        self._outputs: tuple[TensorNode, ...] = ()
        self._inputs_shown: Any = None
        self._outputs_shown: Any = None
        self._names = NameSpace()
        self._journal = Journal()
        self._top: InternalGraph = self
        self._inserting: Any = None
        self.assignments = Assignments()
        self._entered_otherwise: bool | None = None  # of the top; None: nobody has looked (`infer_entries`)
        self.arguments: Arguments | None = None  # how a call's arguments become the inputs after `self`
        self.out_def: TreeDef | None = None
        self.metadata: dict[str, str] = {}
        alive.add(self)

    inputs = listed("_inputs", list[Any], "Input nodes; at module level the first is the module's own.", _INPUTS)

    names = fixed("_names", NameSpace, "Names of the nodes.")

    journal = fixed("_journal", Journal, "Edits, which all graphs of the model share.")

    @property
    def owner(self) -> Any:
        """The module that the graph belongs to; None for a graph of ops."""
        return self._owner

    @property
    def top(self) -> InternalGraph:
        """The outermost graph of the model."""
        return self._top

    @property
    def first_call(self) -> Expr | None:
        """The first expression that is no input."""
        return self._order.body

    @property
    def of_calls(self) -> bool:
        """True for a graph of calls, False for one of ops."""
        return bool(self._inputs) and isinstance(self._inputs[0], ModuleNode)

    outputs = listed("_outputs", list[TensorNode], "Output values.", _OUTPUTS, _return)

    @property
    def top_graph(self) -> InternalGraph | None:
        """The graph with the first call that enters this one; None for that of the outermost module."""
        return next((expr._graph for expr in self._top.exprs() if child_graph(expr) is self), None)

    def exprs(self, recursive: bool = True) -> ExprFilter:
        """Expressions in execution order (inputs of the graph too).

        With `recursive`, here and below, graphs of submodules are included, each after the call that enters it.
        """
        return ExprFilter(self._walk(recursive))

    def nodes(self, recursive: bool = True) -> NodeFilter:
        """Every node, in the order in which they are made."""
        return NodeFilter(n for e in self._walk(recursive) for n in e.outputs)

    def _walk(self, recursive: bool) -> Iterator[Expr]:
        return (expr for expr, _ in visits(self, recursive)) if recursive else iter(self._order)

    def get_function_by_type(self, func: Callable[..., Any] | None = None, recursive: bool = True) -> ExprFilter:
        """Calls of a function. Raises GraphError for what cannot be called."""
        return self.exprs(recursive).call_function(func)

    def get_method_by_type(self, method: str | None = None, recursive: bool = True) -> ExprFilter:
        """Calls of a method of tensors, or of modules for "__call__"."""
        return self.exprs(recursive).call_method(method)

    def get_module_by_type(self, module_cls: type, recursive: bool = True) -> NodeFilter:
        """Nodes of modules of a class. Raises GraphError for anything else."""
        found = self.nodes(recursive).type(module_cls)  # a graph's own module counts by its class alone
        return found._keep(
            lambda n: isinstance(n, ModuleNode) and (isinstance(n.owner, module_cls) or not isinstance(n.expr, Input)),
            found._hint,
        )

    def get_calls_of(self, module_cls: type, recursive: bool = True) -> ExprFilter:
        """Calls of modules of a class. Raises GraphError for anything else."""
        fits = is_of("get_calls_of", module_cls)
        return ExprFilter(expr for expr, module in visits(self, recursive) if module is not None and fits(module))

    @kinds_named
    def get_node_by_id(self, node_id: int | Sequence[int] | None = None, recursive: bool = True) -> NodeFilter:
        """Nodes with one of these ids."""
        nodes = self.nodes(recursive)
        return nodes if node_id is None else nodes.node_id(node_id)

    @kinds_named
    def get_node_by_name(self, name: str | None = None, ignorecase: bool = True, recursive: bool = True) -> NodeFilter:
        """Nodes whose name matches a pattern: `*` stands for anything (`conv*_out`), `?` for one character.

        A pattern with a `.` is one of paths and qualnames (`layer1.*.relu_out`, `*.[func_relu]`).
        """
        nodes = self.nodes(recursive)
        return nodes if name is None else nodes.name(name, ignorecase)

    @kinds_named
    def get_expr_by_id(self, expr_id: int | Sequence[int] | None = None, recursive: bool = True) -> ExprFilter:
        """Expressions with one of these ids."""
        exprs = self.exprs(recursive)
        return exprs if expr_id is None else exprs.expr_id(expr_id)

    def get_dep_exprs(self, nodes: Node | Sequence[Node]) -> list[Expr]:
        """Expressions that the nodes depend on, inputs of the graph among them; users stand before what they use.

        MegEngine's order: the last operand of an expression comes first.
        """
        todo = list(nodes) if isinstance(nodes, Sequence) and not isinstance(nodes, str) else [nodes]
        for node in todo:
            if not isinstance(node, Node):
                hint = f"; graph.node(path) gives one{nearest_node(self, node)}" if isinstance(node, str) else ""
                raise GraphError(f"get_dep_exprs: got {node!r}, a {type(node).__name__}; expected nodes{hint}")
        needed: dict[int, Expr] = {}
        waiting = {id(node) for node in todo}
        while todo:
            node = todo.pop()
            waiting.discard(id(node))
            if id(node.expr) not in needed:
                needed[id(node.expr)] = node.expr
                more = [n for n in node.expr.inputs if id(n) not in waiting]
                waiting.update(map(id, more))
                todo.extend(more)
        return list(needed.values())

    def node(self, name: str) -> Any:
        """The node of a name in this graph, or of a path or qualname in the graphs of its submodules too.

        Example:
            >>> graph.node("layer2.1.relu_out")  # doctest: +SKIP

        Raises:
            GraphError: there is none, and the nearest one is given; or there are several, and their paths are.
        """
        return node_of(self, name)

    def lint(self) -> None:
        """Check ownership, order, uses both ways, names, shapes and dtypes. Raises GraphError at the first fault."""
        methods.lint(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What `pickle` and `copy.deepcopy` take of a graph of ops: all but the history of edits."""
        return super().__reduce_ex__(protocol) if self.of_calls else methods.reduced(self)

    def __repr__(self) -> str:
        head = f"{one_line(self.name)}.Graph ({', '.join(map(written, self._inputs))}) {{"
        body = [f"\t{e!r}" for e in self._exprs]
        return "\n".join([head, *(body or ["\t"]), f"\treturn {', '.join(map(written, self._outputs))}", "}"])

    def __format__(self, spec: str) -> str:
        """The text with ids ("i") and with paths ("p") at the names of nodes: `f"{graph:ip}"`."""
        return formatted(self, spec)

    @property
    def _exprs(self) -> list[Expr]:
        """Expressions without the inputs: MegEngine's name."""
        return [e for e in self._order if not isinstance(e, Input)]

    @property
    def _total_ids(self) -> tuple[int, int]:
        """The ids that the next node and the next expression get: MegEngine's name."""
        return self._journal.counts

    @property
    def _namespace(self) -> NameSpace:
        """The names of the graph: MegEngine's name."""
        return self._names

    def interpret(self, *inputs: Any) -> list[Tensor]:
        """Run the graph on tensors for its inputs (the module itself may come first); returns its outputs."""
        return methods.interpret(self, [x for x in inputs if not isinstance(x, Module)])

    eval = interpret

    def to_graphviz(self, *, depth: int | None = None) -> Any:
        """The graph as a `graphviz.Digraph`: see `megengine.traced_module.pictures.dot.to_graphviz`."""
        return methods.to_graphviz(self, depth=depth)

    def _repr_svg_(self) -> str | None:
        return methods.notebook_svg([self])

    def _repr_html_(self) -> str | None:
        return methods.notebook_html([self])

    def clone(self) -> InternalGraph:
        """An independent copy with the same names and ids.

        A copy of a module-level graph belongs to the same module.
        """
        return methods.cloned(self)

    def transaction(self, what: str = "transaction") -> AbstractContextManager[None]:
        """Edits in the body are undone together; if the body raises, none of them is left.

        Shapes may be wrong in between (a stage is dropped, then the head is replaced): they are checked at the end.
        Calls that are impossible then are removed if no result needs them; else the error names the first edit that
        none of the others repairs, and nothing is left. `what` is its name in the edit log.
        """
        return self._journal.transaction(what, deferring=True)

    def undo(self) -> bool:
        """Take back the last edit (or transaction) of the traced module; False if there is none.

        Raises:
            GraphError: in the body of a transaction or insertion.
        """
        return self._journal.undo()

    def redo(self) -> bool:
        """Do again what was undone last; False if there is nothing. Raises as `undo`."""
        return self._journal.redo()

    def keep_edits(self) -> None:
        """From now on edits can be undone, and stand in `edit_log`.

        Modules that were traced or read do so from the beginning. Graphs of ops do not, as what a pass replaces would
        stay in memory.
        """
        self._journal.recording = True

    @property
    def edit_log(self) -> Any:
        """The edits of the whole traced module so far, as an `EditLog`; undone ones are not in it."""
        return methods.log_of(self._journal)

    def constant(
        self,
        value: Any,
        name: str = "const_tensor",
        *,
        before: Expr | None = None,
        after: Expr | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> TensorNode:
        """Add a constant from a tensor or an array (kept in its own dtype)."""
        return methods.constant(self, value, name, before=before, after=after, meta=meta)

    def apply(
        self,
        op: str,
        *inputs: TensorNode,
        attrs: Mapping[str, Any] | None = None,
        name: str = "",
        before: Expr | None = None,
        after: Expr | None = None,
        meta: Mapping[str, Any] | None = None,
        qualname: str = "",
    ) -> Any:
        """Add an op; specs are inferred, so an impossible call is refused here. Returns its node or nodes.

        `before` / `after` place it; by default it comes last.
        """
        return methods.apply(
            self, op, inputs, attrs, name=name, before=before, after=after, meta=meta, qualname=qualname
        )

    def insert_exprs(self, expr: Expr | None = None) -> AbstractContextManager[None]:
        """In the body, functions, methods and modules called on nodes add expressions to the graph.

        They go right behind `expr`; without it, or if they use values made later, behind the last expression that
        they use. If the body raises, the graph is as it was. Without `replace_node` nothing uses what was added.

        Example:
            >>> with graph.insert_exprs():  # doctest: +SKIP
            ...     graph.replace_node({node: F.relu(node)})
        """
        return methods.insertion(self, expr)

    def inserting_after(self, place: Expr | Node) -> AbstractContextManager[None]:
        """As `insert_exprs`: new expressions go right behind this one, or behind what makes this node."""
        return methods.insertion(self, place._expr if isinstance(place, Node) else place)

    def inserting_before(self, place: Expr | Node) -> AbstractContextManager[None]:
        """As `insert_exprs`: new expressions go in front of this one, or in front of what makes this node."""
        return methods.insertion(self, place._expr if isinstance(place, Node) else place, before=True)

    def rename(self, node: Node, new: str) -> None:
        """Give a node another name. Raises NameInUseError if another node has it."""
        methods.rename(self, node, new)

    def erase(self, expr: Expr) -> None:
        """Remove an expression whose values nobody uses; an input only of a graph of ops, which nobody calls."""
        methods.erase(self, expr)

    def replace_node(self, repl_dict: Mapping[Any, Any]) -> None:
        """Let the users of each old node (and the graph's outputs) use its new node instead.

        Users that stand before the new node, those that it depends on among them, keep the old one: new nodes for
        all users are made right behind the old node. Shapes and dtypes behind may change; they are inferred again,
        and an edit that makes a call impossible is refused.

        Raises:
            GraphError: a node is of another graph or kind, or every user of the old node stands before the new one.
            ShapeError, DTypeError, ...: what the call that becomes impossible raises.
        """
        methods.replace_node(self, repl_dict)

    def replace_module(self, node: ModuleNode, module: Any) -> None:
        """Put another module in the place of the one that a node reads, under the same name.

        A module that is no layer, and is not traced, is traced for the calls of the one that goes. Every call is
        inferred again; one that becomes impossible is refused.
        """
        methods.replace_module(self, node, module)

    def compile(self) -> None:
        """Remove expressions, here and in graphs that calls enter, that no result needs; then what no graph reads."""
        methods.compile(self)

    def add_input_node(self, shape: Sequence[int], dtype: Any = "float32", name: str = "args") -> TensorNode:
        """Append an input of the traced module; it becomes the last positional argument of a call.

        In the graph of a submodule, every call of it gets the value of an input that the graph around it gets.
        """
        return methods.add_input_node(self, shape, dtype, name)

    def reset_inputs(self, *args: Any, **kwargs: Any) -> list[TensorNode]:
        """Give the graph new inputs for these example tensors. Returns their nodes.

        What uses a former input waits for `replace_node({former: value of new inputs})`; until then the graph neither
        runs nor is written. In the graph of a submodule, calls of it get the values of inputs that the graphs around
        it get.
        """
        return methods.reset_inputs(self, args, kwargs)

    def add_output_node(self, node: TensorNode | str, *, through: Expr | None = None) -> None:
        """Return one more value: the module's result becomes (what it was, the value).

        The value may be one of a submodule, or its path, as for `value_of`. In the graph of a submodule, every call
        of it gets the result.
        """
        methods.add_output_node(self, node, through=through)

    def reset_outputs(self, outputs: Any) -> None:
        """Return these nodes, nested in tuples, lists and dicts as the result is to be.

        They may be values of submodules, or paths, as for `value_of`. In the graph of a submodule, every call of it
        gives these results; one that is used there has to stay.
        """
        methods.reset_outputs(self, outputs)

    def value_of(self, node: TensorNode | str, *, through: Expr | None = None) -> TensorNode:
        """The node of this graph that has the value of a submodule's node.

        Where there is none yet, the graphs between return one more result, (what it was, the value), and every call
        of them gives it. Of a submodule that is called several times it is the value of the first call; or that of
        the call `through`, or of the first along a path that is given in place of the node.

        Example:
            >>> graph.value_of("layer2.1.relu_out")  # doctest: +SKIP

        Raises:
            GraphError: this graph does not compute the value.
        """
        return methods.value_of(self, node, through=through)

    def _make_node(self, expr: Expr, spec: TensorSpec | None, name: str, qualname: str) -> Any:
        ident = self._journal.next_node
        self._journal.next_node = ident + 1
        if spec is None:
            return ModuleNode.made(self, ident, name, qualname, expr)
        return TensorNode(self, ident, name, qualname, expr, spec)

    def _attach_outputs(self, expr: Expr, specs: Sequence[TensorSpec | None], name: str, qualname: str) -> None:
        nodes = []
        for spec in specs:
            unique = self._names.unique(name)
            self._names.take(unique, None)  # so that the next result of the same expression gets another one
            nodes.append(self._make_node(expr, spec, unique, qualname or f"{self.qualname}.[{unique}]"))
        expr._outputs = tuple(nodes)

    def _anchor(self, before: Expr | None, after: Expr | None) -> Expr | None:
        """The expression in front of which a new one goes; None for the end."""
        return before if before is not None else after._next if after is not None else None


refuse_setting(
    InternalGraph,
    {
        "top_graph": "insert_exprs: a module that is set and called becomes a part",
        "edit_log": "EditLog.replay on another copy",
    },
)
