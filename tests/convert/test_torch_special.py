"""Special functions, orders and samples of volumes that torch's exporter lacks: against torch's own."""

import itertools
import math

import numpy as np
import pytest
from onnx_runtime import answers, session_of

from megengine import plan
from megengine.convert import from_torch
from megengine.convert.onnx import export
from megengine.traced_module import open_batch
from megengine.traced_module.formats import native as files

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch_functions import Function  # noqa: E402

from megengine.convert.torch_missing import _decompositions  # noqa: E402

ATEN = torch.ops.aten


def made(op, *arguments, **options):
    return _decompositions(torch)[op](*arguments, **options)


def close(got, wanted, tolerance=2e-6):
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def numbers(*shape):
    return torch.from_numpy(np.random.default_rng(shape[-1]).standard_normal(shape).astype(np.float32))


def test_bessel_and_gamma_functions():
    x = torch.cat([torch.linspace(-30, 60, 901), torch.tensor([0.0, 1e-6, 19.99, 20.0, 20.01])])
    for name in ("i0", "special_i0e", "special_i1", "special_i1e"):
        op = getattr(ATEN, name).default
        close(made(op, x), op(x))
    positive = torch.cat([torch.linspace(0.05, 20, 300), torch.tensor([50.0, 1e3, 1.0, 2.0])])
    for order in (0, 1, 2, 3, 5):
        close(made(ATEN.polygamma.default, order, positive), torch.polygamma(order, positive), 1e-5)
    negative = torch.linspace(-4.9, 0, 50, dtype=torch.float64)[:-1] + 0.03
    close(made(ATEN.polygamma.default, 1, negative), torch.polygamma(1, negative), 1e-8)
    s, q = torch.linspace(1.1, 8, 200), torch.linspace(0.1, 20, 200)
    close(made(ATEN.special_zeta.default, s, q), torch.special.zeta(s, q))


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
def test_common_divisors(kind):
    rng = np.random.default_rng(3)
    a, b = (torch.from_numpy(rng.integers(0 if kind == "uint8" else -90, 90, 300).astype(kind)) for _ in range(2))
    assert torch.equal(made(ATEN.gcd.default, a, b), torch.gcd(a, b))
    assert torch.equal(made(ATEN.lcm.default, a, b), torch.lcm(a, b))


class Between(torch.nn.Module):
    def forward(self, x, i):
        wide = x.double().clamp(0, 0.5)
        return x.clamp(min=0, max=0.5), x.clamp(-1, math.inf), wide, i.clamp(0.5, 3), i.clamp(1, 2.5), 1.0 - i


def test_numbers_of_another_type_than_the_tensor():
    x, i = numbers(30), torch.arange(30)
    net = from_torch(Between(), x, i)
    for got, wanted in zip(net(x.numpy(), i.numpy()), Between()(x, i), strict=True):
        assert got.numpy().dtype == wanted.numpy().dtype
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())


def test_the_longest_division():
    """Neighbours of Fibonacci's sequence need the most steps."""
    a, b = torch.tensor([7540113804746346429]), torch.tensor([4660046610375530309])
    assert made(ATEN.gcd.default, a, b).item() == 1
    a, b = torch.tensor([1836311903], dtype=torch.int32), torch.tensor([1134903170], dtype=torch.int32)
    assert made(ATEN.gcd.default, a, b).item() == 1


def test_mantissas_and_exponents():
    x = torch.cat([
        numbers(999) * torch.exp2(torch.linspace(-140, 120, 999)),
        2.0 ** torch.arange(-149, 128).float(),
        torch.tensor([0.0, math.inf, -math.inf, math.nan]),
    ])  # fmt: skip
    for got, wanted in zip(made(ATEN.frexp.Tensor, x), torch.frexp(x), strict=True):
        close(got, wanted, 0)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("shape", "dim"), [((7,), 0), ((5, 6), 1), ((5, 6), 0), ((3, 4, 5), 1)])
def test_orders(shape, dim, keepdim):
    rng = np.random.default_rng(dim)
    x = torch.from_numpy(rng.integers(0, 4, shape))
    for value in (x, x.float()):
        for got, wanted in zip(
            made(ATEN.mode.default, value, dim, keepdim), torch.mode(value, dim, keepdim), strict=True
        ):
            assert torch.equal(got, wanted)
    y = torch.where(torch.from_numpy(rng.random(shape) < 0.4), math.nan, numbers(*shape))
    close(made(ATEN.nanmedian.dim, y, dim, keepdim)[0], torch.nanmedian(y, dim, keepdim)[0])
    close(made(ATEN.nanmedian.default, y), torch.nanmedian(y))
    got = made(ATEN.sort.stable, x, stable=True, dim=dim, descending=keepdim)
    assert torch.equal(got[0], torch.sort(x, dim, keepdim)[0])


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("mode", "padding"), [*itertools.product((0, 1), (0, 1, 2))])
def test_samples_of_volumes(mode, padding, corners):
    x, at = numbers(2, 3, 4, 5, 6), numbers(2, 3, 2, 4, 3) * 1.3
    op = ATEN.grid_sampler_3d.default
    close(made(op, x, at, mode, padding, corners), op(x, at, mode, padding, corners), 1e-5)


def every_way(function, folder, *inputs, captured=2, tolerance=1e-5):
    """A network of a function of torch, captured with so many samples, gives torch's results for all of them."""
    net = open_batch(from_torch(Function(function), *(v[:captured] for v in inputs)))
    wanted = function(*map(torch.as_tensor, inputs))
    wanted = [v.numpy() for v in (wanted if isinstance(wanted, (tuple, list)) else (wanted,))]
    export(net, folder / "net.onnx")
    files.save(net, folder / "net.mgt")
    eager, stored, planned = net(*inputs), files.load(folder / "net.mgt")(*inputs), plan.compile(net)(*inputs)
    arrays = [v if isinstance(v, (tuple, list)) else (v,) for v in (eager, stored, planned)]
    arrays = [[np.asarray(v if isinstance(v, np.ndarray) else v.numpy()) for v in made] for made in arrays]
    for ours in (*arrays, answers(session_of(str(folder / "net.onnx")), inputs)):
        for a, b in zip(ours, wanted, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def orders(x):
    steps = torch.round(x)
    numbers = torch.where(x > 0, x, math.nan)
    ordered = torch.sort(steps, stable=True, dim=1, descending=True)
    return torch.mode(steps, 1)[0], torch.nanmedian(numbers, 1)[0], *ordered, torch.argsort(steps, stable=True, dim=1)


def special(x):
    positive = x.abs() + 0.3
    return torch.special.i0e(x), torch.special.i1(x), torch.polygamma(1, positive), torch.polygamma(2, positive)


@pytest.mark.slow
@pytest.mark.parametrize("captured", [1, 2])
@pytest.mark.parametrize("function", [orders, special, torch.frexp])
def test_networks_of_such_functions_take_any_batch(function, captured, tmp_path):
    every_way(function, tmp_path, numbers(5, 9).numpy(), captured=captured)


@pytest.mark.slow
def test_a_network_of_common_divisors(tmp_path):
    a, b = (np.random.default_rng(k).integers(-90, 90, (5, 4), np.int32) for k in range(2))
    every_way(lambda a, b: (torch.gcd(a, b), torch.lcm(a, b)), tmp_path, a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"align_corners": True}, {"mode": "nearest", "padding_mode": "border", "align_corners": False}]
)
def test_a_network_that_samples_volumes(options, tmp_path):
    x, at = numbers(5, 2, 3, 4, 5).numpy(), numbers(5, 2, 2, 3, 3).numpy()
    every_way(lambda x, at: torch.nn.functional.grid_sample(x, at, **options), tmp_path, x, at, captured=1)


def test_planes_are_sampled_by_torchs_exporter():
    x, at = numbers(1, 2, 4, 5), numbers(1, 3, 3, 2)
    assert made(ATEN.grid_sampler.default, x, at, 0, 0, True) is NotImplemented


@pytest.mark.parametrize("kind", [None, torch.float32, torch.int64])
@pytest.mark.parametrize("minlength", [0, 9])
def test_frequencies(kind, minlength):
    for x in (torch.tensor([2, 0, 2, 5], dtype=torch.int32), torch.zeros(0, dtype=torch.int64)):
        weights = None if kind is None else torch.arange(1, len(x) + 1).to(kind)
        got = made(ATEN.bincount.default, x, weights, minlength)
        wanted = torch.bincount(x, weights, minlength)
        close(got, wanted if len(x) else wanted.to(got.dtype))  # torch counts nothing in int64, whatever it weighs


@pytest.mark.slow
def test_a_network_with_frequencies():
    class Means(torch.nn.Module):
        def forward(self, x, at):
            count = torch.bincount(at, minlength=3)
            return count, torch.zeros(3).index_add(0, at, x) / count.clamp(min=1)

    net = from_torch(Means(), numbers(7), torch.tensor([0, 1, 1, 2, 0, 0, 1]))
    x, at = numbers(7), torch.tensor([2, 2, 2, 2, 2, 0, 0])
    for run in (net, plan.compile(net)):
        for got, wanted in zip(run(x.numpy(), at.numpy()), Means()(x, at), strict=True):
            np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-6)
