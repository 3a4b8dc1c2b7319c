"""Nodes: the values of a graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from megengine.core import hooks
from megengine.core.errors import GraphError
from megengine.core.spec import TensorSpec
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.ir.containers import keys_of_parts, part_count, part_name, part_names
from megengine.traced_module.ir.expr import Expr, GetAttr
from megengine.traced_module.ir.fixed import fixed, refuse_setting
from megengine.traced_module.ir.methods import methods
from megengine.traced_module.ir.owner import GraphOwner
from megengine.traced_module.ir.written import formatted, written

_REWIRE = "graph.replace_node, replace_all_uses_with or insert_exprs"
_PLACE = "insert_exprs in the graph that it is to be in"
_SPEC = "insert_exprs and graph.replace_node: shapes and dtypes follow from what makes the value"
_RENAME = "graph.rename, which gives another name"


class Node:
    """A value: made by one expression, used by others. Its structure is changed through its graph only.

    `name` is unique in the graph; `qualname` is the path by which users know the value; `meta` carries provenance:
    "module" (module path), "source" (file:line), "passes" (names of passes that changed it).
    """

    __slots__ = ("_expr", "_graph", "_id", "_name", "_qualname", "_users")

    def __init__(self, graph: Any, ident: int, name: str, qualname: str, expr: Expr) -> None:
        self._graph = graph
        self._id = ident
        self._name = name
        self._qualname = qualname
        self._expr = expr
        self._users: dict[Expr, int] = {}  # how often each uses it

    id = fixed("_id", int, "Number of the node, unique in its graph and in the graphs of its submodules.")

    @property
    def name(self) -> str:
        """Unique name in the graph. What is set is made an identifier as in MegEngine: `a.b c` becomes `a_b_c`."""
        return self._name

    @name.setter
    def name(self, new: str) -> None:
        methods.rename(self._graph, self, new, written=True)

    qualname = fixed("_qualname", str, "Path of the value: module path and how it was made.", _RENAME)

    graph: Any = fixed("_graph", object, "The InternalGraph that the node belongs to.", _PLACE)

    top_graph: Any = fixed("_graph", object, "The same by MegEngine's name.")

    expr = fixed("_expr", Expr, "The expression that makes the value.", _REWIRE)

    @property
    def meta(self) -> dict[str, Any]:
        """Provenance: that of the expression."""
        return self._expr.meta

    @property
    def users(self) -> list[Expr]:
        """Expressions that use the value, each once, in the order in which they began to."""
        return list(self._users)

    def replace_all_uses_with(self, new: Node) -> list[Expr]:
        """Let all users of this node, and the outputs of the graph, use another one; returns those users.

        Users that stand before the new node keep this one. Raises as `graph.replace_node`.
        """
        users = self.users
        self._graph.replace_node({self: new})
        return [user for user in users if self not in user.inputs]

    def _copy(self, graph: Any, expr: Expr) -> Node:
        """The node with its name and id, made by an expression of another graph."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return written(self)

    def __format__(self, spec: str) -> str:
        return formatted(self, spec)


class TensorNode(Node):
    """A tensor value, known by its spec.

    Inside `with graph.insert_exprs():` it takes part in calls like a tensor: `node + 1`, `F.relu(node)`,
    `node.reshape(1, -1)` add expressions to the graph and give their nodes.
    """

    __slots__ = ("_spec", "qparams")
    value = None  # a graph holds no values: those of a run are in `watch_node_value` of the traced module

    def __init__(self, graph: Any, ident: int, name: str, qualname: str, expr: Expr, spec: TensorSpec) -> None:
        self._graph = graph  # all here: a call of the base takes as long again
        self._id = ident
        self._name = name
        self._qualname = qualname
        self._expr = expr
        self._users = {}
        self._spec = spec
        self.qparams: Any = None  # of the fake quantization that made the value, when it was traced

    spec = fixed("_spec", TensorSpec, "Shape, dtype and device.", _SPEC)

    @property
    def shape(self) -> Any:
        """Lengths of the axes; while expressions are inserted, a node that holds them, as in traced code."""
        return self._graph._inserting.shape(self) if self._is_computed else self._spec.shape

    dtype: Any = fixed("_spec.dtype", object, "Element type.", _SPEC)

    device = fixed("_spec.device", str, "Name of the device.", _SPEC)

    def _copy(self, graph: Any, expr: Expr) -> TensorNode:
        new = TensorNode(graph, self._id, self._name, self._qualname, expr, self._spec)
        new.qparams = self.qparams
        return new

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        inserting = self._graph._inserting
        if inserting is None:
            raise GraphError(
                f"node {self._name!r} is part of a graph and has no value; expected {method} inside "
                "`with graph.insert_exprs():`"
            )
        return inserting.method(self, method, args, kwargs)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._spec.shape)

    @property
    def size(self) -> Any:
        """Number of elements; as `shape`, a node while expressions are inserted."""
        return self.shape.prod() if self._is_computed else math.prod(self._spec.shape)

    T = Tensor.T  # the axes in reverse order; inside `with graph.insert_exprs():`

    @property
    def _is_computed(self) -> bool:
        """True where what is asked of the node becomes an expression."""
        inserting = self._graph._inserting
        return inserting is not None and hooks.active.get() is inserting

    def __eq__(self, other: object) -> Any:
        """Of a number, array or tensor a node, while expressions are inserted; two nodes are equal if they are one."""
        known = isinstance(other, (int, float, np.generic, np.ndarray, Tensor))
        return self._call("__eq__", other) if known and self._is_computed else NotImplemented

    def __ne__(self, other: object) -> Any:
        """As `==`."""
        known = isinstance(other, (int, float, np.generic, np.ndarray, Tensor))
        return self._call("__ne__", other) if known and self._is_computed else NotImplemented

    __hash__ = Node.__hash__
    __array_ufunc__ = None  # `array * node` is the node's __rmul__

    def __bool__(self) -> bool:
        """True, also of a node that was looked for; Python cannot branch on the values that a graph will have."""
        if self._spec.dtype == np.bool_ and self._is_computed:
            raise self._without_value("bool(node)")
        return True

    def __len__(self) -> int:
        if not self._spec.shape:
            raise TypeError(f"node {self._name!r} has no axes, and no length")
        return self._spec.shape[0]

    def __int__(self) -> int:
        raise self._without_value("int(node)")

    def __float__(self) -> float:
        raise self._without_value("float(node)")

    def numpy(self) -> np.ndarray:
        """Refused: values exist while the graph runs.

        Raises:
            GraphError: always.
        """
        raise self._without_value("node.numpy()")

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise self._without_value("an array of a node")

    item = tolist = numpy

    def _without_value(self, asked: str) -> GraphError:
        return GraphError(
            f"{asked}: node {self._name!r} is part of a graph and has no value; compute with it inside "
            "`with graph.insert_exprs():` (F.where chooses, node.spec.shape has numbers), or run the graph: "
            "set_watch_points keeps values"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not callable(getattr(Tensor, name, None)):
            raise AttributeError(f"a TensorNode has no attribute {name!r}")
        return lambda *args, **kwargs: self._call(name, *args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        if not self._spec.shape:
            raise TypeError(f"node {self._name!r} has no axes to iterate over")
        return (self[i] for i in range(self._spec.shape[0]))  # type: ignore[index]  # OPERATORS sets it


OPERATORS = (
    "add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv floordiv rfloordiv ifloordiv mod rmod imod "
    "pow rpow ipow matmul rmatmul imatmul lshift rlshift ilshift rshift rrshift irshift and rand iand or ror ior "
    "xor rxor ixor neg pos abs invert lt le gt ge getitem setitem"
)


def _operator(name: str) -> Any:
    def call(self: TensorNode, *args: Any) -> Any:
        return self._call(name, *args)

    call.__name__ = name
    return call


for _name in OPERATORS.split():
    setattr(TensorNode, f"__{_name}__", _operator(f"__{_name}__"))


class ModuleNode(Node):
    """A module: made by reading an attribute of another one, or the module that a graph belongs to.

    Inside `with graph.insert_exprs():` its attributes can be read (`self_node.conv`), set to new modules and
    tensors, and called; each adds to the graph.
    """

    __slots__ = ()

    @classmethod
    def made(cls, graph: Any, ident: int, name: str, qualname: str, expr: Expr) -> ModuleNode:
        """A new node."""
        node = Node(graph, ident, name, qualname, expr)  # of the base at first: setting attributes here runs Python
        node.__class__ = cls
        return cast(ModuleNode, node)

    def _copy(self, graph: Any, expr: Expr) -> ModuleNode:
        return ModuleNode.made(graph, self._id, self._name, self._qualname, expr)

    @property
    def owner(self) -> Any:
        """The module itself."""
        return module_of(self)

    @property
    def module_type(self) -> type:
        """Class of the module; plain `Module` for a module that is itself a graph."""
        kind = type(module_of(self))
        return Module if issubclass(kind, GraphOwner) else kind

    @property
    def _class_name(self) -> str:
        """Name of the class, as graphs print it: that which a traced module keeps, or Module."""
        module = module_of(self)
        if not issubclass(type(module), GraphOwner):
            return type(module).__name__
        kept = module._kept_class
        return kept.rpartition(".")[2] if isinstance(kept, str) else Module.__name__

    def __getattr__(self, name: str) -> Any:
        inserting = None if name.startswith("__") else self._graph._inserting
        if inserting is None:
            raise AttributeError(
                f"a ModuleNode has no attribute {name!r}; attributes of the module are read inside "
                "`with graph.insert_exprs():`, or through node.owner"
            )
        return inserting.attribute_of(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _NODE_ATTRIBUTES:
            object.__setattr__(self, name, value)
            return
        methods.set_attribute(self, name, value)

    def __getitem__(self, index: Any) -> Any:
        """A part of a list, dict or Sequential of modules; a slice gives a list. Raises as that of `TracedModule`."""
        name = part_name(self.owner, index) if isinstance(self.owner, GraphOwner) else str(index)
        return [self.__getattr__(one) for one in name] if isinstance(name, list) else self.__getattr__(name)

    def __len__(self) -> int:
        return part_count(self.owner)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        keys = keys_of_parts(self.owner) if isinstance(self.owner, GraphOwner) else None
        return iter([self.__getattr__(name) for name in part_names(self.owner)]) if keys is None else keys

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inserting = self._graph._inserting
        if inserting is None:
            raise GraphError(f"node {self._name!r} is called outside of `with graph.insert_exprs():`; call it inside")
        return inserting.call_module(self, args, kwargs)


refuse_setting(Node, {"users": _REWIRE, "top_graph": _PLACE})
refuse_setting(TensorNode, {"shape": _SPEC})
refuse_setting(ModuleNode, dict.fromkeys(("owner", "module_type"), "graph.replace_module"))
_NODE_ATTRIBUTES = frozenset(
    (*Node.__slots__, "name", "expr", "users", "graph", "top_graph", "qualname", "owner", "module_type")
)


def module_of(node: Any) -> Any:
    """The module (or tensor) that a node made by reading attributes stands for."""
    expr = node._expr
    owner = node._graph._owner
    if not isinstance(expr, GetAttr):
        return owner
    holder, path = expr._inputs[0], expr._path
    module = module_of(holder) if isinstance(holder._expr, GetAttr) else owner
    at = module
    for part in path.split("."):  # mostly of modules in modules, and asked very often
        own: dict[str, Any] = object.__getattribute__(at, "__dict__") if issubclass(type(at), Module) else {}
        if part not in own:
            break
        at = own[part]
    else:
        return at
    with hooks.unheard():  # to look at a graph reads nothing
        return get_subattr(module, path)


def get_subattr(module: Any, path: str) -> Any:
    """The attribute at a dotted path; entries of lists and dicts count as attributes.

    Raises GraphError naming the part that is missing.
    """
    at, watcher = module, hooks.active.get()
    if watcher is None and "." not in path and issubclass(type(at), Module):  # the usual case
        own = object.__getattribute__(at, "__dict__")
        if path in own:
            return own[path]
    for part in path.split("."):
        try:
            if isinstance(at, Module):
                value = object.__getattribute__(at, "__dict__")[part]  # never a method, a class or a module's globals
                at = value if watcher is None else watcher.attribute(at, part, value)
            elif isinstance(at, (list, tuple)):
                at = at[int(part)]
            elif isinstance(at, Mapping):
                at = at[part]
            elif part in object.__getattribute__(at, "__dict__"):
                at = getattr(at, part)
            else:
                raise AttributeError(part)  # noqa: TRY301
        except (AttributeError, IndexError, KeyError, ValueError):
            raise GraphError(f"{type(module).__name__} has no attribute {path!r}: {part!r} is missing") from None
    return at
