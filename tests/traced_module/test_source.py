"""Generated Python: it says what the model says, and gives the same numbers."""

import ast

import numpy as np
import pytest
import source_nets
from megengine_graphs import DATA, NETS, inputs_of, leaves, traced
from quant_nets import concat_net, residual_net
from written_source import One, check, formatted, written, x

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError
from megengine.quantization.pipeline.quantize import quantize_model
from megengine.tensor import Tensor
from megengine.traced_module import TracedModule, lower, trace_module
from megengine.traced_module.passes import optimize
from megengine.traced_module.source import save_source, source_state, to_source

OURS = {"megengine", "megengine.functional", "megengine.module"}


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
