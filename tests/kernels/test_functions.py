"""Native functions of one value: near float64, the same bits at every instruction set, in eager calls and in layers."""

import math

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.core.dtype import bfloat16
from megengine.core.spec import TensorSpec
from megengine.dispatch import apply, get_op, infer
from megengine.kernels import _core, isa, lists
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.ops.fused import ACTIVATIONS
from megengine.quantization import to_half
from megengine.tensor import tensor
from megengine.traced_module import trace_module

F32 = np.float32
LAYERS_OF_HALVES = {
    "conv2d": (lambda: M.Conv2d(3, 17, 3), (2, 3, 9, 8)),
    "conv3d": (lambda: M.Conv3d(3, 17, 3), (1, 3, 5, 6, 7)),
    "conv_transpose2d": (lambda: M.ConvTranspose2d(4, 6, 3, stride=2), (1, 4, 5, 6)),
    "linear": (lambda: M.Linear(11, 1030), (3, 11)),
}
erf = np.vectorize(math.erf, otypes=[float])


def _sigmoid(x):
    return np.where(
        x < 0, np.exp(np.minimum(x, 0)) / (1 + np.exp(np.minimum(x, 0))), 1 / (1 + np.exp(-np.maximum(x, 0)))
    )


# op -> (the function in float64, largest error in units of the last place of the result or of `scale(x)`)
FUNCTIONS = {
    "sigmoid": (_sigmoid, 6, 0),
    "silu": (lambda x: x * _sigmoid(x), 6, 0),
    "hsigmoid": (lambda x: np.clip(x + 3, 0, 6) / 6, 3, 0),
    "hswish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, 3, 0),
    "tanh": (np.tanh, 6, 0),
    "gelu": (lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))), 4, 1),  # 1 + erf loses digits below zero, as its formula
    "erf": (erf, 6, 0),
    "softplus": (lambda x: np.logaddexp(x, 0), 6, 0),
    "leaky_relu": (lambda x: np.where(x > 0, x, x * np.float64(F32(0.1))), 1, 0),
    "exp": (np.exp, 4, 0),
    "log": (lambda x: np.log(np.abs(x)), 6, 0),
    "sqrt": (lambda x: np.sqrt(np.abs(x)), 1, 0),
    "rsqrt": (lambda x: 1 / np.sqrt(np.abs(x)), 2, 0),
    "square": (np.square, 1, 0),
    "abs": (np.abs, 0, 0),
    "neg": (np.negative, 0, 0),
    **{name: (getattr(np, name), 0.501, 0) for name in ("expm1", "log1p", "sin", "cos", "tan", "sinh", "cosh")},
    **{name: (getattr(np, f"arc{name[1:]}"), 0.501, 0) for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
}
POSITIVE = ("log", "sqrt", "rsqrt")
INSIDE = {"log1p": (-0.999, 90), "asin": (-1, 1), "acos": (-1, 1), "atanh": (-0.999, 0.999), "acosh": (1, 90)}
ATTRS = {"leaky_relu": {"slope": 0.1}}


def run(op, x, threads=1):
    spec = TensorSpec(x.shape, x.dtype)
    problem = Problem(op, [spec], [infer(op, [spec], ATTRS.get(op, {}))], ATTRS.get(op, {}))
    kernel = family(op).select(problem, {}, step=True)
    assert kernel is not None and kernel.name in ("own_function", "own_elementwise")
    buffer = np.full(x.size + 32, 77, F32)
    _core.run_step(kernel.make_step(problem, {}, threads), [x, buffer[: x.size]])
    assert (buffer[x.size :] == 77).all()
    return buffer[: x.size]


@pytest.mark.parametrize("op", FUNCTIONS)
def test_every_level_is_near_float64_and_gives_the_same_bits(op):
    function, ulps, absolute = FUNCTIONS[op]
    rng = np.random.default_rng(7)
    x = np.concatenate([rng.standard_normal(5003) * s for s in (1e-4, 0.1, 1, 4, 20)]).astype(F32)
    x = np.abs(x) if op in POSITIVE else np.clip(x, *INSIDE.get(op, (-np.inf, np.inf)))
    results = []
    for level in isa.available():
        with isa.capped(level):
            results += [run(op, x), run(op, x, threads=3)]
    want = function(x.astype(np.float64))
    unit = np.spacing(np.maximum(np.abs(want), np.abs(x) if absolute else 0).astype(F32)).astype(np.float64)
    assert np.max(np.abs(results[0] - want) / np.maximum(unit, 1e-38)) <= ulps
    for other in (*results[1:], get_op(op).reference(x, **ATTRS.get(op, {}))):
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 17, 33])
def test_sizes_around_the_vectors(size):
    x = np.linspace(-3, 3, size, dtype=F32)
    whole = np.concatenate([x, np.zeros(64, F32)])
    for op in ("gelu", "softplus", "log"):
        np.testing.assert_array_equal(run(op, x) if size else x, run(op, whole)[:size])


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("op", "given", "expected"),
    [
        ("sigmoid", [-INF, -200, -89, 0, 88.5, INF, NAN], [0, 0, 0, 0.5, 1, 1, NAN]),
        ("silu", [-200, -1e-20, 0, 200, INF, NAN], [0, -5e-21, 0, 200, INF, NAN]),
        ("tanh", [-INF, -200, -1e-20, 0, 1e-20, 200, NAN], [-1, -1, -1e-20, 0, 1e-20, 1, NAN]),
        ("hsigmoid", [-INF, -3, 0, 3, INF, NAN], [0, 0, 0.5, 1, 1, NAN]),
        ("exp", [-INF, -105, -87.3, 0, 88.7, 89, INF, NAN], [0, 0, 1.2192433e-38, 1, 3.325977e38, INF, INF, NAN]),
        ("log", [-1, -0.0, 0, 1, INF, NAN], [NAN, -INF, -INF, 0, INF, NAN]),
        ("erf", [-INF, -9, -0.0, 4, INF, NAN], [-1, -1, 0, 1, 1, NAN]),
        ("gelu", [-INF, -9, 0, 9, INF, NAN], [NAN, 0, 0, 9, INF, NAN]),
        ("softplus", [-INF, -200, 200, INF, NAN], [0, 0, 200, INF, NAN]),
        ("leaky_relu", [-INF, -10, 10, INF, NAN], [-INF, -1, 10, INF, NAN]),
        ("sqrt", [-1, 0, 4, INF, NAN], [NAN, 0, 2, INF, NAN]),
        ("rsqrt", [0, 4, INF, NAN], [INF, 0.5, 0, NAN]),
        ("hswish", [-INF, -3, 3, INF, NAN], [NAN, 0, 3, INF, NAN]),
        ("expm1", [-INF, -200, -1e-20, 89, INF, NAN], [-1, -1, -1e-20, INF, INF, NAN]),
        ("log1p", [-2, -1, 1e-20, INF, NAN], [NAN, -INF, 1e-20, INF, NAN]),
        ("sin", [-INF, 1e-30, INF, NAN], [NAN, 1e-30, NAN, NAN]),
        ("asin", [-2, -1, 1, 2, NAN], [NAN, -np.pi / 2, np.pi / 2, NAN, NAN]),
        ("acos", [-2, -1, 1, 2, NAN], [NAN, np.pi, 0, NAN, NAN]),
        ("atan", [-INF, -1, 1, INF, NAN], [-np.pi / 2, -np.pi / 4, np.pi / 4, np.pi / 2, NAN]),
        ("sinh", [-INF, -95, 1e-30, 95, NAN], [-INF, -INF, 1e-30, INF, NAN]),
        ("cosh", [-INF, -95, 0, NAN], [INF, INF, 1, NAN]),
        ("asinh", [-INF, -3e38, 3e38, INF, NAN], [-INF, np.arcsinh(-3e38), np.arcsinh(3e38), INF, NAN]),
        ("acosh", [-3e38, -3, 0.5, 1, 3e38, INF, NAN], [NAN, NAN, NAN, 0, np.arccosh(3e38), INF, NAN]),
        ("atanh", [-2, -1, 1, 2, NAN], [NAN, -INF, INF, NAN, NAN]),
    ],
)
def test_far_values(op, given, expected):
    x = np.array(given, F32)
    np.testing.assert_allclose(run(op, x), np.array(expected, F32), rtol=1e-6)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(get_op(op).reference(x, **ATTRS.get(op, {})), run(op, x))


@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
def test_angles_of_any_size(op):
    rng = np.random.default_rng(11)
    sizes = rng.integers(0x48000000, 0x7F800000, 4000, dtype=np.uint32).view(F32)  # from 2^17 to the largest float32
    near = np.round(np.arange(1, 2000) * (np.pi / 2)).astype(F32)
    x = np.concatenate([sizes, -sizes, near, [524287.97, 524288, 3.4028235e38]]).astype(F32)
    want = getattr(np, op)(x.astype(np.float64))
    for level in isa.available():
        with isa.capped(level):
            assert np.max(np.abs(run(op, x) - want) / np.spacing(np.abs(want).astype(F32))) < 0.501
    np.testing.assert_array_equal(get_op(op).reference(x), run(op, x))


@pytest.mark.parametrize("op", ["sin", "tan", "asin", "atan", "sinh", "asinh", "atanh", "expm1", "log1p"])
def test_zeros_keep_their_signs(op):
    assert np.signbit(run(op, np.array([0.0, -0.0, 1e-45, -1e-45], F32))).tolist() == [False, True, False, True]


def test_exponentials_that_are_subnormal_numbers():
    x = np.array([-87.5, -90, -100, -103], F32)
    np.testing.assert_allclose(run("exp", x), np.exp(x.astype(np.float64)), atol=1.5e-45)


def test_logarithms_of_subnormal_numbers():
    x = np.array([1e-45, 1e-40, 1.1754942e-38, 1.1754944e-38, 3e38], F32)
    np.testing.assert_allclose(run("log", x), np.log(x.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("op", sorted(op for op in FUNCTIONS if lists.LISTS[op][0].run is not None))
@pytest.mark.parametrize("form", ["dense", "large", "channels last", "strided", "empty", "no axes"])
def test_eager_calls_run_it_whatever_the_layout(op, form):
    x = np.random.default_rng(3).standard_normal((2, 5, 6, 7)).astype(F32)
    x = {
        "dense": x,
        "large": np.tile(x, (9, 9, 1, 1)),
        "channels last": np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
        "strided": x[:, ::2, 1:, ::-1],
        "empty": x[:0],
        "no axes": x[0, 0, 0, 0],
    }[form]
    got = apply(op, tensor(x), **ATTRS.get(op, {})).numpy()
    assert got.shape == x.shape and got.dtype == F32
    np.testing.assert_array_equal(got, get_op(op).reference(x, **ATTRS.get(op, {})))


@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a != "none"])
@pytest.mark.parametrize("threads", [1, 2])
def test_layers_apply_every_activation_while_the_values_are_near(activation, threads):
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.deep = M.Conv2d(3, 17, 3, padding=1), M.Conv2d(17, 17, 3, stride=2, groups=17)
            self.line = M.Linear(17, 9)

        def forward(self, x):
            act = getattr(F, activation)
            x = act(self.conv(x))
            x = act(self.deep(x) + self.deep(x * 2))
            return act(self.line(F.mean(x, (2, 3))))

    x = np.random.default_rng(5).standard_normal((2, 3, 12, 11)).astype(F32)
    net = Net().eval()
    compiled = plan.compile(trace_module(net, tensor(x)), threads=threads)
    assert "reference" not in compiled.describe() and f" {activation} " not in compiled.describe()
    np.testing.assert_allclose(compiled(x)[0], net(tensor(x)).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not isa.has("bf16"), reason="no instructions for bfloat16")
@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a != "none"])
@pytest.mark.parametrize("layer", ["conv2d", "conv3d", "conv_transpose2d", "linear"])
def test_layers_of_bfloat16_round_as_the_two_ops_by_themselves(layer, activation):
    class Net(M.Module):
        def __init__(self, act):
            super().__init__()
            self.act, self.layer = act, LAYERS_OF_HALVES[layer][0]()

        def forward(self, x):
            return self.act(self.layer(x))

    x = np.random.default_rng(5).standard_normal(LAYERS_OF_HALVES[layer][1]).astype(F32) * 4
    whole, alone = Net(getattr(F, activation)).eval(), Net(lambda x: x).eval()
    alone.load_state_dict(whole.state_dict())
    nets = [to_half(trace_module(net, tensor(x)), "bf16") for net in (whole, alone)]
    fused, plain = (plan.compile(net, threads=1) for net in nets)
    assert f" {activation} " not in fused.describe(), fused.describe()
    before = plain(x)[0]
    expected = apply(activation, tensor(before.astype(bfloat16))).numpy()
    once = activation in ("hsigmoid", "hswish")  # computed by the library before it rounds
    np.testing.assert_allclose(fused(x)[0], expected.astype(F32), 0, once * 2**-8 * np.abs(before).max())


def test_a_function_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no function wave"):
        _core.function_step(4, "wave", 0.0, 1)


def test_exponentials_of_numbers_whose_power_is_zero():
    """Around the number from which on nothing is computed: zeros, and the smallest subnormal numbers before it."""
    edge = np.float32(-104)
    x = np.concatenate([np.nextafter(edge, np.float32([0, -np.inf])), np.linspace(-104.2, -86, 401, dtype=np.float32)])
    x = np.concatenate([x, np.float32([-104, -1e4, -np.inf, np.nan])])
    with np.errstate(all="ignore"):
        want = get_op("exp").reference(x)
        exact = np.exp(x.astype(np.float64))
    assert np.abs(want[:-1] - exact[:-1]).max() <= 2.0**-149 + exact[:-1].max() * 2.0**-22
    for level in isa.available():
        with isa.capped(level):
            np.testing.assert_array_equal(F.exp(tensor(x)).numpy(), want)
            assert F.exp(tensor(np.float32([-104, -1e4, -np.inf]))).numpy().tolist() == [0, 0, 0]
