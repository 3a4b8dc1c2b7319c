"""Generated Python: it says what the model says, gives the same numbers, and no name or text in it does anything."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import source_nets
from hypothesis import given, settings
from hypothesis import strategies as st
from megengine_graphs import DATA, NETS, inputs_of, leaves, traced
from quant_nets import concat_net, residual_net

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, OptionError
from megengine.core.pytree import TreeDef
from megengine.quantization.pipeline.quantize import quantize_model
from megengine.tensor import Tensor
from megengine.traced_module import TracedModule, lower, register_as_builtin, trace_module, wrap
from megengine.traced_module.ir.primitives import assign, give_name
from megengine.traced_module.passes import optimize
from megengine.traced_module.source import save_source, source_state, to_source
from megengine.traced_module.source.layers import Layers
from megengine.traced_module.source.text import WIDTH, literal, quoted

LAYERS = json.loads((Path(__file__).parents[1] / "data" / "megengine" / "layers.json").read_text())
OURS = {"megengine", "megengine.functional", "megengine.module"}


def x(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def imported(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(module, path, **options):
    """The network that a generated file gives."""
    save_source(module, path, **options)
    return imported(path).load()


def check(module, path, *args, **kwargs):
    """The generated network gives what the graph gives, exactly; its text is stable, formatted and of our imports."""
    net = written(module, path)
    got, want = leaves(net(*args, **kwargs)), leaves(module(*args, **kwargs))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        assert a.dtype == b.dtype
    text = path.read_text()
    assert text == to_source(module)
    assert max(map(len, text.splitlines())) <= WIDTH
    return net


def formatted(folder):
    """Ruff finds nothing to change."""
    for command in (["format", "--diff"], ["check", "--select", "E,F,I,UP,SIM,PERF,RUF,B", "--ignore", "RET"]):
        tool = [sys.executable, "-m", "ruff", command[0], "--isolated", "--line-length", str(WIDTH), *command[1:]]
        done = subprocess.run([*tool, "."], capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


# ---------------------------------------------------------------- whole networks


@pytest.mark.parametrize("name", [*NETS, "res_fused_qat", "res_fused_q"])
def test_networks_of_both_makers_give_the_same(name, tmp_path):
    inputs = [Tensor(v) for v in inputs_of(name)]
    variants = {"tm": mge.load(DATA / f"{name}.tm"), "tm_flat": mge.load(DATA / f"{name}_flat.tm")}
    if name in NETS:
        module = traced(name)
        variants |= {"own": module, "own_flat": module.flatten(), "optimized": optimize(module)}
    for kind, module in variants.items():
        check(module, tmp_path / f"{name}_{kind}.py", *inputs)
    formatted(tmp_path)


@pytest.mark.parametrize("name", NETS)
def test_graphs_of_ops_give_the_same(name, tmp_path):
    module = lower(traced(name))
    net = check(module, tmp_path / "ops.py", *map(Tensor, inputs_of(name)))
    assert net.state_dict().keys() == dict(module.named_tensors()).keys()
    formatted(tmp_path)


@pytest.mark.parametrize("make", [residual_net, concat_net])
def test_integer_graphs_give_the_same(make, tmp_path):
    builder, graph = make()
    model = quantize_model(graph, builder.data(4))
    for kind in ("float_graph", "qdq_graph", "integer_graph"):
        graph = getattr(model, kind)
        check(TracedModule.from_graph(graph), tmp_path / f"{kind}.py", Tensor(builder.data(1)[0]))
        assert to_source(graph) == (tmp_path / f"{kind}.py").read_text()
    formatted(tmp_path)


def test_traced_again_the_text_stays(tmp_path):
    given = x(2, 3, 6, 6)
    first = written(trace_module(source_nets.Small().eval(), given), tmp_path / "a.py")
    second = written(trace_module(first, given), tmp_path / "b.py")
    third = to_source(trace_module(second, given))
    assert (tmp_path / "b.py").read_text() == third


SMALL = '''

class Block(M.Module):
    """blocks.0, blocks.1, blocks.2."""

    def __init__(self, in_channels, out_channels, stride):
        super().__init__()
        self.conv = M.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn = M.BatchNorm2d(out_channels)

    def forward(self, x):
        conv_out = self.conv(x)
        bn_out = self.bn(conv_out)
        relu_out = F.relu(bn_out)
        return relu_out


class Small(M.Module):
    """The whole module."""

    def __init__(self):
        super().__init__()
        self.stem = M.Conv2d(3, 4, 3, padding=1)
        self.blocks = [Block(4, 4, stride=1), Block(4, 8, stride=2), Block(8, 8, stride=1)]
        self.scale = Parameter(F.zeros((1,)))
        self.head = M.Sequential(M.Linear(8, 6), M.ReLU(), M.Linear(6, 2, bias=False))

    def forward(self, x):
        stem_out = self.stem(x)
        relu6_out = F.relu6(stem_out)
        blocks_0_out = self.blocks[0](relu6_out)
        blocks_1_out = self.blocks[1](blocks_0_out)
        blocks_2_out = self.blocks[2](blocks_1_out)
        mean_out = F.mean(blocks_2_out, axis=(2, 3))
        mul_out = mean_out * self.scale
        getitem_out = mul_out[:, 1]
        rsub_out = 1 - getitem_out
        setitem_out = F.copy(mul_out)
        setitem_out[:, 0] = rsub_out
        head_out = self.head(setitem_out)
        mean_out_1 = setitem_out.mean()
        getitem_out_1 = setitem_out[..., -1:]
        pow_out = getitem_out_1**2
        return head_out, {"mean": mean_out_1, "last": [pow_out]}


def load(weights=None):
'''


def test_it_reads_as_a_person_would_write_it(tmp_path):
    module = trace_module(source_nets.Small().eval(), x(2, 3, 6, 6))
    check(module, tmp_path / "small.py", x(2, 3, 6, 6))
    text = (tmp_path / "small.py").read_text()
    assert SMALL in text
    assert text.splitlines()[5:7] == ["# Made from the graph of Small", "# with inputs x: float32[2, 3, 6, 6]"]
    named = {alias.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for alias in node.names}
    assert named == OURS
    assert "class Other(M.Module):" in to_source(module, name="Other")
    formatted(tmp_path)


# ---------------------------------------------------------------- layers


@pytest.mark.parametrize("call", [call for call in LAYERS if not call.startswith("Sequential")])
def test_a_layer_is_made_with_its_arguments(call):
    layer = eval(f"M.{call}", {"M": M})
    made = Layers().made(layer, "net.layer")
    assert made.fixes == []
    again = made.kind(**made.arguments)
    assert repr(again) == repr(layer)
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in layer.state_dict().items()}


class One(M.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


def half(layer):
    for name in ("weight", "bias"):
        setattr(layer, name, mge.Parameter(getattr(layer, name).astype("float16")))
    return layer


def changed(layer, **attributes):
    for name, value in attributes.items():
        setattr(layer, name, value)
    return layer


CHANGED = {
    "half": (lambda: half(M.Linear(4, 3)), ['self.layer.weight = Parameter(F.zeros((3, 4), dtype="float16"))']),
    "padding": (lambda: changed(M.MaxPool2d(2), padding=(1, 0)), ["M.MaxPool2d(2, stride=2, padding=(1, 0))"]),
    "no bias": (lambda: changed(M.Linear(4, 3), bias=None), ["M.Linear(4, 3, bias=False)"]),
    "lrn": (lambda: M.LocalResponseNorm(3, k=1.5), ["M.LocalResponseNorm(kernel_size=3, k=1.5)"]),
    "norm": (lambda: M.BatchNorm2d(4, freeze=True, eps=1e-3), ["M.BatchNorm2d(4, eps=0.001, freeze=True)"]),
    "recurrent": (
        lambda: M.RNN(4, 5, nonlinearity="relu", bidirectional=True),
        ['M.RNN(4, 5, nonlinearity="relu", bidirectional=True)'],
    ),
    "pad": (lambda: M.Pad(((0, 0), (0, 0), (1, 2), (0, 1)), constant_val=2.0), ["constant_val=2.0"]),
    "no statistics": (
        lambda: changed(M.BatchNorm2d(4), affine=False, weight=None, bias=None, momentum=0.5),
        ["M.BatchNorm2d(4, momentum=0.5, affine=False)"],
    ),
    "mode": (lambda: M.AvgPool2d(2, mode="average"), ['M.AvgPool2d(2, stride=2, mode="average")']),
}
INPUTS = {"half": ((2, 4), "float16"), "recurrent": ((3, 2, 4), "float32"), "no bias": ((2, 4), "float32")}


@pytest.mark.parametrize("kind", CHANGED)
def test_layers_that_were_changed(kind, tmp_path):
    make, expected = CHANGED[kind]
    shape, dtype = INPUTS.get(kind, ((2, 4, 6, 6), "float32"))
    given = x(*shape).astype(dtype)
    module = trace_module(One(make()).eval(), given)
    net = check(module, tmp_path / "net.py", given)
    text = (tmp_path / "net.py").read_text()
    assert all(part in text for part in expected), text
    assert [v.dtype for v in net.parameters()] == [v.dtype for v in module.parameters()]
    formatted(tmp_path)


def test_functions_and_layers_of_the_users(tmp_path):
    given = x(3, 4)
    module = trace_module(source_nets.Containers().eval(), given)
    net = check(module, tmp_path / "net.py", given)
    text = (tmp_path / "net.py").read_text()
    assert "from source_nets import Gain, swish" in text
    assert "self.own = [Gain(4), Gain(4, power=2)]" in text
    assert "swish(own_2_out, beta=2.0)" in text
    assert 'setattr(self, "class", M.Linear(4, 4))' in text and 'getattr(self, "class")(' in text
    assert list(net.state_dict()) == list(module.state_dict())
    assert net(x(5, 4))[0].shape == (10, 2)  # the shape is read again
    formatted(tmp_path)


def test_a_layer_that_forgets_its_arguments_is_refused(tmp_path):
    module = trace_module(One(source_nets.Forgetful(4)), x(2, 4))
    with pytest.raises(GraphError, match=r"layer: a Forgetful .* given for 'channels'; keep it as an attribute"):
        save_source(module, tmp_path / "net.py")
    assert list(tmp_path.iterdir()) == []


def test_functions_that_cannot_be_imported_are_refused():
    @wrap
    def inner(x):
        return x * 2

    class Net(M.Module):
        def forward(self, x):
            return inner(x)

    module = trace_module(Net(), x(2))
    with pytest.raises(GraphError, match=r"<locals>\.inner cannot be imported .* top level") as caught:
        to_source(module)
    assert "Net" in caught.value.__notes__[0]

    @register_as_builtin
    class Layer(M.Module):
        def forward(self, x):
            return x

    with pytest.raises(GraphError, match=r"<locals>\.Layer cannot be imported"):
        to_source(trace_module(One(Layer()), x(2)))


# ---------------------------------------------------------------- structure


def test_a_module_with_several_graphs_chooses(tmp_path):
    given = (x(2, 4), x(2, 4, seed=1))
    module = trace_module(source_nets.Caller(), *given)
    net = check(module, tmp_path / "net.py", *given)
    text = (tmp_path / "net.py").read_text()
    assert "def forward(self, x, mask=None, *, scale=1):" in text
    assert "if isinstance(x, Tensor) and mask is None and scale == 1:" in text
    assert "self.inner([inner_out, inner_1_out], None, scale=3)" in text
    with pytest.raises(ValueError, match="was not traced with these arguments"):
        net.inner(given[0], scale=7)
    formatted(tmp_path)


@pytest.mark.parametrize("kwargs", [{}, {"scale": 2}])
def test_arguments_that_were_constants_are_fixed(kwargs, tmp_path):
    given = x(2, 4)
    net = written(trace_module(source_nets.Modes(), given, **kwargs), tmp_path / "net.py")
    assert "def forward(self, x):" in (tmp_path / "net.py").read_text()
    want = given @ net.fc.weight.numpy().T * kwargs.get("scale", 1)
    np.testing.assert_allclose(net(given).numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError):
        net(given, scale=2)


def test_nested_arguments(tmp_path):
    class Nested(M.Module):
        def forward(self, pairs, *rest, flag, **named):
            total = pairs["a"][0] + pairs["a"][1] * 2 + rest[1]
            return [total if flag else rest[0], (named["left"], named["right"] - 1)]

    given = ({"a": [x(2), x(2, seed=1)], "b": None}, x(2, seed=2), x(2, seed=3))
    named = {"flag": True, "left": x(2, seed=4), "right": x(2, seed=5)}
    module = trace_module(Nested(), *given, **named)
    net = written(module, tmp_path / "net.py")
    assert "def forward(self, pairs, *rest, **named):" in (tmp_path / "net.py").read_text()
    named.pop("flag")
    for a, b in zip(leaves(net(*given, **named)), leaves(module(*given, flag=True, **named)), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    formatted(tmp_path)


def test_what_is_shared_stays_shared(tmp_path):
    given = x(2, 4)
    net = check(trace_module(source_nets.Shared(), given), tmp_path / "net.py", given)
    assert net.two[1] is net.one[0] and net.pair[0] is net.one[0]
    assert net.pair[1].bias is net.one[0].bias and net.pair[1].weight is not net.one[0].weight
    assert len(list(net.parameters())) == 3
    formatted(tmp_path)


class Scale(M.Module):
    def __init__(self):
        super().__init__()
        self.w = mge.Parameter(np.array([1, 2, 3, 4], np.float32))

    def forward(self, x):
        return x * self.w


class SharedParts(M.Module):
    """Modules with graphs, layers and tensors that one module holds twice: a state dict has them once."""

    def __init__(self):
        super().__init__()
        self.z = self.fc = M.Linear(4, 4)
        self.parts = [Scale(), Scale()]
        self.parts.append(self.parts[0])
        self.gain = self.parts[1].w
        self.named = {"again": self.parts[1], "gain": self.gain}

    def forward(self, x):
        for part in self.parts:
            x = part(self.z(x))
        return self.fc(self.named["again"](x)) * self.gain + self.named["gain"]


def test_what_one_module_holds_twice(tmp_path):
    module = trace_module(SharedParts(), x(2, 4))
    net = check(module, tmp_path / "net.py", x(2, 4))
    assert net.parts[2] is net.parts[0] and net.named.again is net.parts[1] and net.fc is net.z
    assert source_state(module).keys() == net.state_dict().keys()
    check(module.flatten(), tmp_path / "flat.py", x(2, 4))


def test_dtypes_by_their_classes(tmp_path):
    class Casts(M.Module):
        def forward(self, x):
            return x.astype(np.float16), x.astype(bool), F.zeros((2,), dtype=np.int8)

    check(trace_module(Casts(), x(2, 4)), tmp_path / "net.py", x(2, 4))


@pytest.mark.parametrize("inside", [False, True])
def test_hooks_are_refused(inside, tmp_path):
    """They would be left out, and the network would compute something else."""
    net = One(One(M.Linear(4, 4)) if inside else M.Linear(4, 4))
    layer = net.layer.layer if inside else net.layer
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    module = trace_module(net, x(2, 4))
    place = "layer.layer" if inside else "layer"
    with pytest.raises(GraphError, match=rf"{place}: a Linear has hooks, which cannot be written.*remove them"):
        save_source(module, tmp_path / "net.py")
    assert list(tmp_path.iterdir()) == []
    layer._forward_hooks.clear()
    module.register_forward_pre_hook(lambda module, inputs: None)
    with pytest.raises(GraphError, match="the module: a TracedModule has hooks"):
        to_source(module)


def test_edited_graphs(tmp_path):
    given = x(2, 3, 6, 6)
    module = trace_module(source_nets.Small().eval(), given).flatten()
    graph = module.graph
    for expr in graph.get_calls_of(M.Conv2d):
        with graph.insert_exprs():
            graph.replace_node({expr.output: F.relu(expr.output) * 0.5})
    extra = graph.add_input_node((2, 2), name="extra")
    with graph.insert_exprs():
        graph.inputs[0].last = M.Linear(2, 2)
        graph.replace_node({graph.outputs[0]: graph.inputs[0].last(graph.outputs[0]) + extra})
    graph.add_output_node(extra)
    check(module, tmp_path / "net.py", given, x(2, 2))
    formatted(tmp_path)


def test_modes_of_layers(tmp_path):
    net = source_nets.Small().eval()
    net.blocks[1].bn.train()
    net.head[0].disable_quantize()
    module = trace_module(net, x(2, 3, 6, 6))
    again = written(module, tmp_path / "net.py")
    modes = {n: (m.training, m.quantize_disabled) for n, m in net.named_modules() if not list(m.children())}
    assert modes == {n: (m.training, m.quantize_disabled) for n, m in again.named_modules() if n in modes}
    assert written(trace_module(source_nets.Small(), x(2, 3, 6, 6)), tmp_path / "b.py").training
    formatted(tmp_path)


def test_constants_and_arrays(tmp_path):
    table = np.arange(6, dtype=np.float32).reshape(2, 3)

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.const_tensor = mge.Parameter([1.0])

        def forward(self, x):
            return x * Tensor([0.5, -1.0, float("inf")]) + table + self.const_tensor

    module = trace_module(Net(), x(2, 3))
    check(module, tmp_path / "net.py", x(2, 3))
    assert source_state(module).keys() >= {"const_tensor", "const_tensor_1"}


def test_writing_draws_no_random_numbers():
    module = trace_module(source_nets.Small().eval(), x(2, 3, 6, 6))
    mge.random.seed(5)
    before = mge.random.uniform(size=(4,)).numpy()
    mge.random.seed(5)
    to_source(module)
    np.testing.assert_array_equal(mge.random.uniform(size=(4,)).numpy(), before)


# ---------------------------------------------------------------- hostile names and texts


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
