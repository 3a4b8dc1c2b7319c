"""Integer networks with layers in float are exact: wherever these stand, at every level, for any threads and batch."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from part_float_nets import CASES

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import random
from megengine.core.errors import QuantizationError
from megengine.kernels import isa
from megengine.ops.ordered import ORDERED
from megengine.plan import compile as compile_plan
from megengine.quantization import QuantConfig, quantize_model, verify
from megengine.quantization.pipeline import graph_qat
from megengine.tensor import Tensor
from megengine.traced_module import trace_module


def quantized(net, data, **settings):
    return quantize_model(trace_module(net.eval(), Tensor(data[0])), data, QuantConfig(**settings))


def check(model, data, path=None):
    """Verified at every level, with the same results at each; what a file gives back has these results at each, too.

    Of a network whose weights alone are integers, float sums are those of the kernels.
    """
    models, results, near = [model], [], 0.0
    if path is not None:
        mge.save(model.traced(), path)
        models.append(mge.load(path))
    for level, one in itertools.product(isa.available(), models):
        with isa.capped(level):
            if one is model or level == isa.available()[-1]:
                verified = verify(one, data, threads=(1, 2), with_float=False)
                assert verified.exact, f"{level}\n{verified}"
                near = 1e-5 if verified.weights else 0.0
            graph = getattr(one, "integer_graph", one)
            results.append([compile_plan(graph)(x)[0] for x in data])
    for one in results[1:]:
        for got, wanted in zip(one, results[0], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=near, atol=near * np.abs(wanted).max())


def left_out(name):
    """One layer each; pairs and all layers but one are for the slow tests."""
    return [(layer,) for layer in CASES[name].layers()]


def more_left_out(name):
    net = CASES[name].make()
    layers = CASES[name].layers()
    alone = [path for path in layers if not isinstance(getattr(net, path), M.ConvTranspose3d)]  # has no integer form
    return [*itertools.combinations(layers, 2), *(tuple(set(layers) - {layer}) for layer in alone)]


def check_case(name, excluded, batch, path):
    random.seed(0)
    case = CASES[name]
    model = quantized(case.make(), case.data(batch, 3), exclude=excluded)
    assert any(getattr(e, "op", "") in {*ORDERED.values(), "recurrent"} for e in model.integer_graph.exprs())
    check(model, case.data(batch, 1, seed=7), path)


@pytest.mark.parametrize(("name", "excluded"), [(name, one) for name in CASES for one in left_out(name)])
def test_every_layer_can_stay_in_float(name, excluded, tmp_path):
    check_case(name, excluded, 1, tmp_path / "net.mgt")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_pairs_of_layers_and_all_but_one_can_stay_in_float_and_each_in_a_batch(name, tmp_path):
    for excluded in more_left_out(name) + left_out(name):
        check_case(name, excluded, 3, tmp_path / "net.mgt")


@pytest.mark.parametrize(
    "rules",
    [("b=w8a16",), ("b=w4,group:4", "c=w8a16"), ("b=w8", "fc=w8"), ("a=w8a16", "b=w8,group:8", "fc=w8a16")],
)
@pytest.mark.parametrize("excluded", [(), ("c",), ("a",)])
def test_beside_weights_alone_and_values_of_16_bits(rules, excluded):
    random.seed(0)
    case = CASES["plain"]
    rules = tuple(rule for rule in rules if rule.split("=")[0] not in excluded)
    model = quantized(case.make(), case.data(3, 3), rules=rules, exclude=excluded)
    check(model, case.data(3, 2, seed=7))


def test_layers_keep_their_kernels_where_weights_alone_are_integers():
    case = CASES["plain"]
    model = quantized(case.make(), case.data(1, 2), precision="w8")
    found = {getattr(e, "op", "") for e in model.integer_graph.exprs()}
    assert {"conv2d", "matmul"} <= found
    assert not found & set(ORDERED.values())
    assert verify(model, case.data(1, 1), threads=(1,)).exact


@pytest.mark.parametrize(("name", "excluded"), [(name, one) for name in CASES for one in left_out(name)])
def test_training_computes_what_the_converted_network_computes(name, excluded):
    random.seed(0)
    case = CASES[name]
    data = case.data(2, 3)
    settings = graph_qat.TRAINING.changed(exclude=excluded)
    module = graph_qat.prepare_qat(case.make(), Tensor(data[0]), config=settings, calibration=data).eval()
    for x in (*data, *case.data(2, 1, seed=7)):
        np.testing.assert_array_equal(module(Tensor(x)).numpy(), module.convert()(Tensor(x)).numpy())


def test_the_report_names_the_plain_op():
    case = CASES["plain"]
    model = quantized(case.make(), case.data(1, 2), exclude=("b",))
    (left,) = [one for one in model.report.floating if one.macs]
    assert left.op == "conv2d"
    assert "ordered" not in left.reason


# ---------------------------------------------------------------- drawn networks


def _window(n):
    return {"stride": 1 + n // 4 % 2, "padding": 1, "dilation": 1}


def _conv(n, channels):
    out = (4, 8, 12, 16)[n % 4]
    return M.Conv2d(channels, out, 3, **_window(n)), out


def _deep(n, channels):
    return M.Conv2d(channels, channels, 3, groups=channels, **_window(n)), channels


def _grouped(n, channels):
    return M.Conv2d(channels, channels * (1 + n % 2), (3, 1), padding=(1, 0), groups=2), channels * (1 + n % 2)


def _dilated(n, channels):
    return M.Conv2d(channels, 8, 3, padding=2, dilation=2), 8


def _up(n, channels):
    return M.ConvTranspose2d(channels, 4 * (1 + n % 2), 2 + n % 3, stride=1 + n % 2), 4 * (1 + n % 2)


def _point(n, channels):
    return M.Conv2d(channels, 4 + 2 * n, 1, bias=n % 2 == 0), 4 + 2 * n


LAYERS = {f.__name__[1:]: f for f in (_conv, _deep, _grouped, _dilated, _up, _point)}
FUNCTIONS = {
    "relu": F.relu,
    "silu": F.silu,
    "sigmoid": F.sigmoid,
    "hswish": F.hswish,
    "gelu": F.gelu,
    "tanh": F.tanh,
    "pool": lambda x: F.max_pool2d(x, 2, 1, 1),
    "average": lambda x: F.avg_pool2d(x, 2, 1, 1),
    "softmax": lambda x: F.softmax(x, 1),
    "twice": lambda x: x + F.relu(x),
    "gate": lambda x: x * F.sigmoid(F.mean(x, (2, 3), keepdims=True)),
    "larger": lambda x: F.nn.interpolate(x, scale_factor=2, mode="nearest"),
    "product": lambda x: F.matmul(x, F.softmax(F.matmul(x, x, transpose_a=True), -1)),
    "cut": lambda x: F.concat([x[:, :2], x], 1)[:, : x.shape[1]],
}


class Drawn(M.Module):
    """Layers and functions one after the other, then a classifier."""

    def __init__(self, steps):
        super().__init__()
        channels, self.steps = 4, steps
        for i, (kind, n) in enumerate(steps):
            if kind in LAYERS:
                layer, channels = LAYERS[kind](n, channels)
                setattr(self, f"layer{i}", layer)
        self.fc = M.Linear(channels, 5)

    def forward(self, x):
        for i, (kind, _) in enumerate(self.steps):
            x = getattr(self, f"layer{i}")(x) if kind in LAYERS else FUNCTIONS[kind](x)
        return self.fc(F.mean(x, axis=(2, 3)))


STEPS = st.lists(st.tuples(st.sampled_from([*LAYERS, *LAYERS, *FUNCTIONS]), st.integers(0, 7)), min_size=2, max_size=6)


@settings(max_examples=12, deadline=None)
@given(STEPS, st.sets(st.integers(0, 6), max_size=4), st.sampled_from([1, 3]), st.sampled_from(["", "w8a16", "w4"]))
@example([("conv", 0), ("conv", 0)], {0, 1}, 1, "w4")
def test_drawn_networks_with_drawn_layers_in_float_are_exact(steps, excluded, batch, precision):
    check_drawn(steps, excluded, batch, precision)


def check_drawn(steps, excluded, batch, precision):
    random.seed(1)
    net, rng = Drawn(steps), np.random.default_rng(2)
    data = [rng.standard_normal((batch, 4, 6, 7)).astype(np.float32) for _ in range(4)]
    layers = [path for path, _ in net.named_children()]
    floats = tuple(name for i, name in enumerate(layers) if i in excluded)
    rest = [name for name in layers if name not in floats]
    rules = (f"{rest[0]}={precision}",) if precision and rest else ()
    try:
        model = quantized(net, data[:3], exclude=floats, rules=rules)
    except QuantizationError as error:
        assert not rest, error
        return
    check(model, data[3:])
