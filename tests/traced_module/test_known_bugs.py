"""Bugs that users of other graph tools report, each as a network: every stage must give what the network gives.

The stages are capture, flattening, every pass, ops, passes on ops, and a compiled plan.
"""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.core.pytree import flatten
from megengine.tensor import Tensor, tensor
from megengine.traced_module import SpecializationWarning, TracedModule, lower, trace_module
from megengine.traced_module.editing.expressions import set_outputs
from megengine.traced_module.passes import Pass, PassManager, optimize, registered_passes, run_passes
from megengine.traced_module.passes.layer_uses import graphs_below
from megengine.traced_module.passes.rewriting import Rule, rewrite
from megengine.traced_module.patterns import any_, call

RNG = np.random.default_rng(0)
IMAGE = RNG.standard_normal((2, 4, 6, 6)).astype(np.float32)
ROWS = RNG.standard_normal((5, 4)).astype(np.float32)


class Pair(M.Module):
    """A layer and a batch norm."""

    def __init__(self, layer=None, norm=None):
        super().__init__()
        self.conv = layer or M.Conv2d(4, 4, 3, padding=1)
        self.norm = norm or M.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.conv(x))


NETS = {}  # name -> (function that makes the network, input, batch norms left by FuseConvBn)


def net(left, given=IMAGE):
    def add(cls):
        NETS[cls.__name__] = (cls, given, left)
        return cls

    return add


# ---------------------------------------------------------------- batch norms


@net(left=0)
class SharedWeight(Pair):
    def __init__(self):
        super().__init__()
        self.other = M.Conv2d(4, 4, 3, padding=1)
        self.other.weight = self.conv.weight

    def forward(self, x):
        return self.norm(self.conv(x)) + self.other(x)


@net(left=0)
class SharedLayerUnderTwoNames(SharedWeight):
    def __init__(self):
        super().__init__()
        self.other = self.conv


@net(left=1)
class LayerCalledTwice(Pair):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.conv(x * 2)


@net(left=1)
class WeightReadElsewhere(Pair):
    def forward(self, x):
        return self.norm(self.conv(x)) + F.conv2d(x, self.conv.weight, padding=1)


@net(left=1)
class SecondConsumer(Pair):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) * F.sigmoid(y)


@net(left=1)
class IntermediateIsAnOutput(Pair):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y), y


@net(left=1)
class StandaloneNorm(Pair):
    def forward(self, x):
        return self.conv(F.relu(self.norm(x)))


@net(left=1)
class NormBeforeABorderOfZeros(Pair):
    def forward(self, x):
        return self.conv(self.norm(x))


@net(left=0)
class GroupedTransposed(Pair):
    def __init__(self):
        super().__init__(M.ConvTranspose2d(4, 6, 3, stride=2, groups=2), M.BatchNorm2d(6))


@net(left=0)
class GammaZeroAndNegative(Pair):
    def __init__(self):
        super().__init__()
        self.gamma = np.array([0, -1, 2, -0.5], np.float32).reshape(1, 4, 1, 1)

    def prepare(self):
        self.norm.weight._reset(tensor(self.gamma))


@net(left=1, given=RNG.standard_normal((2, 4, 5)).astype(np.float32))
class NormOfAnotherAxisThanTheLayers(Pair):
    """The channels of the batch norm are axis 1, and the linear layer has as many features."""

    def __init__(self):
        super().__init__(M.Linear(5, 4), M.BatchNorm1d(4))


@net(left=1)
class NormInTraining(Pair):
    def prepare(self):
        self.norm.train()


class Inner(Pair):
    def forward(self, x, flag=False):
        y = self.norm(self.conv(x))
        return F.relu(y) if flag else y


class Outer(M.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()


@net(left=0)
class ModuleWithTwoGraphs(Outer):
    """Both graphs read one convolution: it may be folded once, and both must lose their batch norm."""

    def forward(self, x):
        return self.inner(x) + self.inner(x, True)


class Sometimes(Pair):
    def forward(self, x, normed=True):
        y = self.conv(x)
        return self.norm(y) if normed else y


@net(left=1)
class OneGraphOfTwoHasTheNorm(M.Module):
    def __init__(self):
        super().__init__()
        self.inner = Sometimes()

    def forward(self, x):
        return self.inner(x) + self.inner(x, False)


@net(left=1)
class OuterGraphReadsTheLayer(Outer):
    def forward(self, x):
        return self.inner(x) + self.inner.conv(x)


@net(left=1)
class OuterGraphReadsTheNorm(Outer):
    def forward(self, x):
        return self.inner(x) + self.inner.norm(x)


@net(left=0)
class ModuleUsedTwice(Outer):
    def forward(self, x):
        return self.inner(self.inner(x))


@net(left=0)
class LayerSharedByTwoModules(M.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Pair(), Pair()
        self.b.conv = self.a.conv

    def forward(self, x):
        return self.b(self.a(x))


@net(left=1)
class HookBetween(Pair):
    def prepare(self):
        self.conv.register_forward_hook(lambda module, given, result: F.relu(result))


@net(left=1)
class HookBehind(Pair):
    def prepare(self):
        self.norm.register_forward_hook(lambda module, given, result: F.relu(result))


# ---------------------------------------------------------------- calls that seem to do nothing


class Hooked(M.Module):
    def __init__(self):
        super().__init__()
        self.same, self.drop = M.Identity(), M.Dropout(0.5)

    def prepare(self):
        self.same.register_forward_hook(lambda module, given, result: F.relu(result))

    def forward(self, x):
        return self.drop(self.same(x)), self.drop(x), x


net(left=0)(Hooked)


@net(left=0)
class NoOpsThatAreNone(M.Module):
    def forward(self, x):
        return (
            *(x[:, ::-1], x[:, :, ::1], x[:, None][:, 0], x[0:1], x[..., :6]),
            *(x.reshape(2, 4, 36, 1), x.reshape(4, 2, 6, 6), x.reshape(2, 4, 6, 6), F.flatten(x, 0, 0)),
            *(x.astype("float16").astype("float32"), x.astype("int32"), x.astype("float32")),
            *(F.broadcast_to(x[:1], x.shape), F.broadcast_to(x, (2, 4, 6, 6)), F.repeat(x[:1], 2, axis=0)),
            *(x.transpose(0, 1, 3, 2), x.transpose(0, 1, 2, 3), F.concat([x]), F.concat([x, x])),
            *(x * 1, x / 1, x**1, x + 0, 1 / x, 1**x, x * -1, x // 1),
        )


@net(left=0)
class SignsOfZero(M.Module):
    def forward(self, x):
        zero, minus = x * 0.0, x * -0.0
        return 1 / (F.abs(x) * 0.0), 1 / (F.abs(x) * -0.0), zero + minus


@net(left=0)
class NumbersOfOtherTypes(M.Module):
    def forward(self, x):
        whole = x.astype("int32")
        return whole * 1, whole * 1.0, whole * True, whole / 1, x * True, (whole > 0) * 1


# ---------------------------------------------------------------- chains of arithmetic


@net(left=0)
class Chains(M.Module):
    def forward(self, x):
        y = x * 2
        return (
            *(x * 2 * 3 + 1 + 2, 2 * x * 3, (x + 1) * 2 + 1, 3 - (2 - x), F.neg(-x), -(x - 1), x / 2 * 2, x / 2 / 3),
            *((x**2) ** 3, (x**2) ** 0.5, y * 3, y + 1, 1 - x - 1 - x, F.sub(1, F.add(x, 2)), F.mul(3, F.neg(x))),
        )


@net(left=0)
class ChainsThatRoundOrOverflow(M.Module):
    def forward(self, x):
        return (
            *(x + 12582912.0 - 12582912.0, x + 1e20 - 1e20, x * 1e30 * 1e30 * 1e-30 * 1e-30),
            *(x * 1e-30 * 1e-30 * 1e30 * 1e30, (x * 1e20) ** 2 / 1e30, x * 0.0 * 3),
        )


@net(left=0)
class ChainsOfIntegers(M.Module):
    def forward(self, x):
        whole, small = x.astype("int32"), (x * 3 + 100).astype("uint8")
        return (
            *(whole * 100000 * 100000, whole + 1 + 2.5, whole * 2 * 0.5, whole // 2 // 3, whole / 2 * 2),
            *(whole + 2147483647 + 5, small + 200 + 100, 3 - (2 - small), F.neg(-whole), 7 - (3 - whole)),
        )


@net(left=1)
class ScalesOverBorders(Pair):
    """Scales that can and that cannot be moved into the weights."""

    def forward(self, x):
        y, z = self.conv(x), self.norm(x)
        return F.max_pool2d(F.relu(y), 2) * 2, z * 3


@net(left=1)
class NegativeScales(Outer):
    def forward(self, x):
        y = self.inner.conv(x)
        return F.max_pool2d(y, 2) * -2, F.relu(self.inner(x)) * -3


@net(left=0)
class ScalesOfSums(M.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (M.Conv2d(4, 4, 1) for _ in range(4))

    def forward(self, x):
        both, one, shifted = self.a(x) + self.b(x), self.c(x) + x, self.d(x) + 1
        return both * 2, one * 2, shifted * 2, F.concat([x, x], 1) * 2


@net(left=0)
class ScaledValueIsUsedTwice(Pair):
    def forward(self, x):
        y = self.norm(self.conv(x))
        return y * 2 + y


@net(left=0, given=ROWS)
class ScalesOfLinearLayers(M.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = M.Linear(4, 3), M.Linear(3, 2, bias=False)

    def forward(self, x):
        return F.leaky_relu(self.b(F.relu(self.a(x)) / 4), 0.1) * 0.5


# ---------------------------------------------------------------- control flow and structure


@net(left=0)
class ModeOfTraining(M.Module):
    def __init__(self):
        super().__init__()
        self.drop = M.Dropout(0.5)

    def forward(self, x):
        return self.drop(x) if self.training else x * 2


@net(left=0)
class NestedOutputsInTheirOrder(Pair):
    def forward(self, x):
        y = self.norm(self.conv(x))
        return {"z": y, "a": {"q": F.relu(y), "b": [x, (y,)]}}


@net(left=0)
class InputsAndTwinsAsOutputs(M.Module):
    def forward(self, x):
        y = F.relu(x)
        return x, y, y, F.relu(x)


def made(name):
    kind, given, _ = NETS[name]
    net = kind().eval()
    rng = np.random.default_rng(1)
    for key, t in net.named_tensors():
        value = rng.standard_normal(t.shape).astype(np.float32)
        t._reset(tensor(np.abs(value) + 0.5 if "var" in key else value))
    if hasattr(net, "prepare"):
        net.prepare()
    return net, tensor(given)


def on_ops(traced: TracedModule) -> TracedModule:
    ops = lower(traced)
    run_passes(ops.graph)
    return ops


STAGES = {
    "traced": lambda t: t,
    "flat": TracedModule.flatten,
    "FuseConvBn": optimize,
    "all": lambda t: optimize(t, "all"),
    "flat all": lambda t: optimize(t.flatten(), "all"),
    "each": lambda t: optimize(t, registered_passes()),
    "ops": lower,
    "passes on ops": on_ops,
    "plan": plan.compile,
}


def assert_same(got, want) -> None:
    for a, b in zip(flatten(got)[0], flatten(want)[0], strict=True):
        a, b = (t.numpy() if isinstance(t, Tensor) else np.asarray(t) for t in (a, b))
        assert a.shape == b.shape and a.dtype == b.dtype
        finite = np.abs(b[np.isfinite(b)]).astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5 * max(finite.max(initial=0), 1e-30))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", NETS)
def test_every_stage_gives_what_the_network_gives(name):
    model, x = made(name)
    want = model(x)
    traced = trace_module(model, x)
    for title, stage in STAGES.items():
        if name == "NormInTraining" and ("ops" in title or title == "plan"):
            continue  # statistics of a batch that is not there yet
        result = stage(traced)
        for graph in getattr(result, "graphs", ()):
            graph.lint()
        assert_same(result(x), want)
    assert_same(model(x), want)  # the layers of the network are not touched


@pytest.mark.parametrize("name", NETS)
def test_batch_norms_that_stay(name):
    model, x = made(name)
    fused = optimize(trace_module(model, x))
    norms = [
        e
        for g in graphs_below(fused.graph)
        for kind in (M.BatchNorm1d, M.BatchNorm2d)
        for e in g.get_calls_of(kind, recursive=False)
    ]
    assert len(norms) == NETS[name][2]


class Chain(M.Module):
    """Layers one after the other in submodules: a flattened copy keeps their graphs, which nothing calls."""

    def __init__(self):
        super().__init__()
        self.blocks = [Inner() for _ in range(4)]

    def forward(self, x):
        for block in self.blocks:
            x = block(x, True)
        return x


def test_graphs_that_nothing_calls_do_not_count():
    model, x = Chain().eval(), tensor(IMAGE)
    flat = trace_module(model, x).flatten()
    fused = optimize(flat)
    assert not fused.graph.get_module_by_type(M.BatchNorm2d, recursive=False)
    fused.graph.lint()
    assert_same(fused(x), model(x))
    assert_same(flat(x), model(x))


def test_nested_outputs_keep_their_order_in_every_stage():
    model, x = made("NestedOutputsInTheirOrder")
    for stage in ("traced", "flat", "all", "flat all"):
        got = STAGES[stage](trace_module(model, x))(x)
        assert list(got) == ["z", "a"] and list(got["a"]) == ["q", "b"] and isinstance(got["a"]["b"][1], tuple)


class LoopOverShape(M.Module):
    def forward(self, x):
        total = x[0]
        for i in range(1, x.shape[0]):
            total = total + x[i]
        return total


def test_a_loop_over_a_shape_is_told():
    x = tensor(IMAGE)
    with pytest.warns(SpecializationWarning, match=r"test_known_bugs.py:\d+"):
        traced = trace_module(LoopOverShape(), x)
    assert_same(traced(x), LoopOverShape()(x))


class Boundary(M.Module):
    """The node at the border of what is replaced has another input, made later than what is inside."""

    def __init__(self):
        super().__init__()
        self.conv = M.Conv2d(4, 4, 1)

    def forward(self, x):
        inside = F.relu(self.conv(x))
        late = F.exp(x) * 2
        return F.sigmoid(inside + late), late + 1


@pytest.mark.parametrize("order", [1, -1])
def test_a_replaced_part_whose_border_has_another_input(order):
    model, x = Boundary(), tensor(IMAGE)
    traced = trace_module(model, x)
    inside, other = any_(), any_()
    operands = (call(F.relu, inside), other)[::order]
    rule = Rule("r", call(".__add__", *operands), lambda m: F.maximum(m[inside], 0) + m[other])
    assert rewrite(traced.graph, [rule]) == 1
    traced.graph.lint()
    assert not traced.graph.get_function_by_type(F.relu)
    assert_same(traced(x), model(x))
    ops = lower(trace_module(model, x))
    rule = Rule("r", call("add", call("relu", inside), other), lambda m: m.apply("add", m[other], m[inside]))
    rewrite(ops.graph, [rule])
    ops.graph.lint()


def test_a_pass_that_forgets_an_output_is_found():
    """A value inside of what is replaced that the graph returns too."""
    model, x = made("IntermediateIsAnOutput")

    def forgetful(graph):
        set_outputs(graph, [graph.outputs[0], graph.outputs[0]])
        return True

    with pytest.raises(Exception, match="pass 'forgetful' changes the result"):
        PassManager([Pass("forgetful", forgetful)], [x]).run(trace_module(model, x).graph)
