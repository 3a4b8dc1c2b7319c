"""Names and texts in generated Python: none of them does anything, and what cannot be written is refused."""

import ast

import pytest
import source_nets
from hypothesis import given, settings
from hypothesis import strategies as st
from written_source import One, changed, check, x

import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, OptionError
from megengine.core.pytree import TreeDef
from megengine.tensor import Tensor
from megengine.traced_module import TracedModule, trace_module
from megengine.traced_module.ir.primitives import assign, give_name
from megengine.traced_module.source import save_source, source_state, to_source
from megengine.traced_module.source.text import literal, quoted


def kinds(text):
    """The syntax of a text without its names and literals."""
    return [type(node).__name__ for node in ast.walk(ast.parse(text))]


LIGATURE = "ﬁ"  # Python reads it as fi in a name
PAYLOADS = [
    'x"""\nimport os\nos.pwned = 1\n"""',
    "a'); import os; os.pwned = 1; ('",
    "coding: utf-7\n+AAo-import os",
    "\\",
    "\\\\'",
    "a\rb\x00\x1b[2J\u202e\u2028",
    "</script>",
    "ﬁ",
    "{os.pwned}",
    "%s",
    "None",
    "self",
    "F",
    "load",
    "__class__",
    "",
]


class Hostile(M.Module):
    """Its class, attributes, keys, arguments and results are called as someone else likes."""

    def __init__(self, text):
        super().__init__()
        self.table = {text + "!": M.Linear(3, 3), "b": M.ReLU()}

    def forward(self, x, text):
        y = self.table[next(iter(self.table))](x)
        return {text: self.table["b"](y), "n": (y, text)}


def check_hostile(text):
    kind = type(text.replace("\x00", "") or "Empty", (Hostile,), {})
    text = text.replace("\ud800", "").replace(".", "")  # a dot is where MegEngine splits paths
    module = trace_module(kind(text), x(2, 3), text)
    module.graph.name = module.name = text
    module.origin = text
    source = to_source(module)
    spaces = {}
    exec(compile(source, "generated.py", "exec"), spaces)
    (made,) = [v for v in spaces.values() if isinstance(v, type) and v is not Tensor and v.__module__ == "builtins"]
    net = made()
    net.load_state_dict(source_state(module))
    got = net(x(2, 3))
    assert list(got) == list(dict.fromkeys([text, "n"]))
    assert got["n"][1] == text
    return source


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_hostile_texts_are_only_texts(payload):
    source = check_hostile(payload)
    assert kinds(source) == kinds(check_hostile("harmless"))
    assert all(c == "\n" or c.isprintable() for c in source)
    assert "coding" not in "".join(source.splitlines()[:2])


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=12))
def test_any_text_is_only_a_text(text):
    check_hostile(text)


@given(st.text())
def test_string_literals_read_back(text):
    code = quoted(text)
    assert ast.literal_eval(code) == text
    assert code.isprintable()


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(slice, inner, inner, inner)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_literals_read_back(value):
    from megengine.traced_module.source.text import flat, wrapped

    assert eval(flat(literal(value))) == value
    assert eval("\n".join(wrapped(literal(value), 0, "(", ")"))) == value


def test_node_and_attribute_names_of_any_kind(tmp_path):
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            setattr(self, "a b;c", M.Linear(3, 3))
            setattr(self, LIGATURE, M.Linear(3, 3))
            self.卷积 = M.Linear(3, 3)

        def forward(self, x):
            return self.卷积(getattr(self, LIGATURE)(getattr(self, "a b;c")(x))) + x

    module = trace_module(Net(), x(2, 3))
    nodes = [n for n in module.graph.nodes() if hasattr(n, "spec")]
    for name, node in zip(["class", "F", "os\n", "ﬁ", "__dunder"], nodes, strict=True):
        give_name(module.graph, node, name)  # as a file could have it
    net = check(module, tmp_path / "net.py", x(2, 3))
    assert "return _dunder" in (tmp_path / "net.py").read_text()
    assert list(net.state_dict()) == list(module.state_dict())


@pytest.mark.parametrize("function", ["megengine.functional.nn.relu", "source_nets.swish"])
def test_names_of_arguments_that_are_no_names_are_refused(function):
    class Net(M.Module):
        def forward(self, x):
            return F.relu(x) + source_nets.swish(x)

    module = trace_module(Net(), x(2, 3))
    (expr,) = [e for e in module.graph.exprs() if getattr(e, "qualified", "") == function]
    args, kwargs = expr.arg_def.children
    hostile = TreeDef(dict, ("a=1); import os; (b",), (TreeDef(None),))
    expr._arg_def = TreeDef(tuple, None, (TreeDef(tuple, None, (TreeDef(None),)), hostile))
    expr._const_val = ((1, 3),)
    with pytest.raises(GraphError, match=r"an argument is called 'a=1\); import os; \(b', which is no name"):
        to_source(module)
    expr._arg_def = TreeDef(tuple, None, (args, kwargs))


def test_methods_that_are_none_are_refused():
    class Net(M.Module):
        def forward(self, x):
            return x.sum()

    module = trace_module(Net(), x(2, 3))
    module.graph._exprs[0]._method = "sum(); import os; x.sum"
    with pytest.raises(GraphError, match="tensors have no method 'sum\\(\\); import os; x.sum'"):
        to_source(module)


def test_names_of_modules_are_kept_free():
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.inner = One(M.Linear(3, 3))

        def forward(self, x):
            return self.inner(x)

    module = trace_module(Net(), x(2, 3))
    inner = module.inner
    for name in ("forward", "state_dict", "training"):
        object.__setattr__(inner, name, M.Linear(3, 3))
        read = inner.graph._exprs[0]
        assign(inner.graph, read, "_path", name)
        with pytest.raises(GraphError, match=rf"inner has an attribute '{name}', which modules use themselves; rename"):
            to_source(module)


# ---------------------------------------------------------------- wrong use


def test_wrong_use(tmp_path):
    module = trace_module(One(M.ReLU()), x(2))
    with pytest.raises(OptionError, match=r"'net.txt' does not end in .py"):
        save_source(module, tmp_path / "net.txt")
    with pytest.raises(OptionError, match="'a b' is no name for a class"):
        to_source(module, name="a b")
    with pytest.raises(GraphError, match="expected a traced module with a graph, got Linear"):
        to_source(M.Linear(2, 2))
    with pytest.raises(GraphError, match="expected a traced module with a graph, got TracedModule"):
        to_source(TracedModule())


def test_values_without_a_literal_are_named():
    with pytest.raises(GraphError, match=r"builtins\.object cannot be written as Python source"):
        literal(object())
    layer = changed(M.LeakyReLU(), negative_slope=Fraction())
    with pytest.raises(GraphError, match=r"the module: negative_slope=Fraction: a .*Fraction cannot be written"):
        to_source(trace_module(One(layer), x(2)))


class Fraction(float):
    def __repr__(self):
        return "Fraction"
