"""Convolutions whose weights are computed: plans of every kind against torch's, and no step of Python."""

import numpy as np
import pytest

import megengine.functional as F
from megengine import plan
from megengine.dispatch import apply, registry
from megengine.kernels import isa, onednn
from megengine.kernels.computed import OF_COMPUTED_WEIGHTS
from megengine.kernels.kernel import StepKernel
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.tensor import tensor
from megengine.traced_module import record

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")

PLAIN, HALF = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}, {"output_padding": (1, 0)}
WIDE = {"stride": (2, 1), "padding": ((2, 2), (0, 0)), "dilation": (2, 1)}
CUBE = {"stride": (1, 2, 1), "padding": ((1, 1),) * 3, "dilation": (1, 1, 1)}
CASES = [
    ("conv2d", (1, 6, 9, 8), (5, 6, 3, 3), {**PLAIN, "groups": 1}),
    ("conv2d", (2, 8, 9, 8), (12, 4, 3, 2), {**WIDE, "groups": 2}),
    ("conv2d", (1, 40, 7, 5), (24, 20, 3, 3), {**PLAIN, "groups": 2}),
    ("conv2d", (1, 16, 7, 5), (16, 1, 3, 3), {**PLAIN, "groups": 16}),
    ("conv2d", (3, 6, 7, 1), (4, 6, 3, 1), {**PLAIN, "padding": ((1, 1), (0, 0)), "groups": 1}),
    ("conv_transpose2d", (1, 6, 5, 4), (6, 3, 3, 2), {**WIDE, **HALF, "groups": 2}),
    ("conv_transpose2d", (2, 8, 5, 4), (8, 1, 3, 3), {**WIDE, **HALF, "groups": 8}),
    ("conv3d", (1, 4, 3, 6, 5), (16, 4, 3, 3, 3), {**CUBE, "groups": 1}),
    ("conv3d", (1, 4, 3, 6, 5), (8, 2, 3, 3, 3), {**CUBE, "groups": 2}),
    ("conv_transpose3d", (1, 4, 3, 6, 5), (4, 5, 3, 3, 3), {**CUBE, "output_padding": (0, 0, 0), "groups": 1}),
]


def of_torch(op, x, w, b, attrs):
    named = {"stride": attrs["stride"], "dilation": attrs["dilation"], "groups": attrs["groups"]}
    named["padding"] = [start for start, _ in attrs["padding"]]
    if "output_padding" in attrs:
        named["output_padding"] = attrs["output_padding"]
    return getattr(torch.nn.functional, op)(torch.tensor(x), torch.tensor(w), torch.tensor(b), **named).numpy()


@pytest.mark.parametrize("moving", [1, 2], ids=["weights", "weights-and-bias"])
@pytest.mark.parametrize(("op", "shape", "kernel", "attrs"), CASES)
def test_plans_read_weights_when_they_run(op, shape, kernel, attrs, moving):
    rng = np.random.default_rng(0)
    channels = kernel[1] * attrs["groups"] if "transpose" in op else kernel[0]
    x, w, b = (rng.standard_normal(s).astype("f4") for s in (shape, kernel, (channels,)))
    given = [tensor(a) for a in (x, w, b)[: 1 + moving]]

    def layer(*values):
        values = (*values, tensor(b))[:3]
        return F.relu(apply(registry[op], values[0], values[1] * 2.0, values[2], **attrs))

    graph = record(layer, [v.spec for v in given])
    made = plan.compile(graph)
    assert next(i.kernel for i in made.steps if i.op == op) in [k.name for k in OF_COMPUTED_WEIGHTS]
    for _ in range(2):  # weights of one run are not those of the next
        (got,) = made(*given)
        wanted = np.maximum(of_torch(op, x, 2 * given[1].numpy(), b, attrs), 0)
        np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-5, atol=1e-4)
        given[1] = given[1] - 1.0


def test_constant_weights_are_packed_once():
    x, w = np.ones((1, 3, 8, 8), "f4"), np.ones((4, 3, 3, 3), "f4")
    made = plan.compile(record(lambda v: F.conv2d(v, tensor(w)), [tensor(x).spec]))
    assert not {i.kernel for i in made.steps} & {k.name for k in OF_COMPUTED_WEIGHTS}


def problems():
    for op, shape, kernel, attrs in CASES:
        x, w = (tensor(np.ones(s, "f4")) for s in (shape, kernel))
        yield Problem(op, [x.spec, w.spec], [apply(registry[op], x, w, **attrs).spec], attrs)


@pytest.mark.parametrize("problem", list(problems()), ids=lambda p: p.op)
def test_sums_in_an_order_of_their_own_are_free(problem):
    """One of the two takes a problem: the free one where the kernel of eager calls is one of this package."""
    packing = [k for k in family(problem.op).candidates(problem) if isinstance(k, StepKernel)]
    (kernel,) = (k for k in OF_COMPUTED_WEIGHTS if family(problem.op).reason(k, problem, step=True) is None)
    assert kernel.free == packing[0].name.startswith("own_")


@pytest.mark.skipif(not isa.has("bf16"), reason="needs AVX512-BF16")
def test_weights_of_bfloat16_are_read():
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype("f4") for s in ((1, 16, 9, 8), (32, 16, 3, 3), (32,)))
    given = [tensor(a).astype("bfloat16") for a in (x, w, b)]
    made = plan.compile(record(lambda x, w, b: F.conv2d(x, w, b).astype("float32"), [v.spec for v in given]))
    assert [i.kernel for i in made.steps if i.op == "conv2d"] == ["onednn_computed_windows"]
    wanted = of_torch(
        "conv2d", *(v.astype("float32").numpy() for v in given), {**PLAIN, "padding": ((0, 0),) * 2, "groups": 1}
    )
    np.testing.assert_allclose(np.asarray(made(*given)[0]), wanted, atol=0.01 * np.abs(wanted).max())


def test_constant_weights_need_a_bias():
    weights, shapes = np.zeros((4, 3, 3, 3), np.float32), [[1, 3, 8, 8], [1, 4, 6, 6], [3, 3]]
    geometry = [[1, 1], [1, 1], [0, 0], [0, 0]]
    with pytest.raises(ValueError, match="window_step: a bias beside weights expected"):
        onednn._module.window_step(shapes, 1, geometry, "float32", weights, None, False)
