"""QR factors and exponentials of matrices, which torch's exporter lacks: against torch's own."""

import numpy as np
import pytest

from megengine import plan
from megengine.convert import from_torch
from megengine.traced_module import open_batch

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from megengine.convert.torch_factors import factor_decompositions  # noqa: E402

ATEN = torch.ops.aten


def made(op, *arguments, **options):
    return factor_decompositions(torch)[op](*arguments, **options)


def close(got, wanted, tolerance=2e-6):
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def numbers(*shape):
    return torch.from_numpy(np.random.default_rng(shape[-1]).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("shape", [(3, 1, 1), (3, 2, 2), (2, 1, 3), (2, 5, 3), (2, 3, 5), (16, 16), (7, 16)])
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_factors(shape, mode):
    a = numbers(*shape)
    for got, wanted in zip(made(ATEN.linalg_qr.default, a, mode), torch.linalg.qr(a, mode), strict=True):
        close(got, wanted)


@pytest.mark.parametrize("size", [1, 3, 5, 16])
@pytest.mark.parametrize("factor", [0.0, 0.01, 1.0, 4.0])
def test_exponentials(size, factor):
    a = numbers(2, size, size) * factor
    wanted = torch.linalg.matrix_exp(a.double())
    error = (made(ATEN.linalg_matrix_exp.default, a) - wanted).abs().max() / wanted.abs().max()
    assert error < 1e-6


def test_larger_matrices_stay_with_torch():
    for op in (ATEN.linalg_qr.default, ATEN.linalg_matrix_exp.default):
        assert made(op, numbers(17, 17)) is NotImplemented
        assert made(op, torch.zeros(2, 2, dtype=torch.complex64)) is NotImplemented


def listed(results):
    return results if isinstance(results, (list, tuple)) else [results]


@pytest.mark.slow
@pytest.mark.parametrize("captured", [1, 2])
@pytest.mark.parametrize("name", ["qr", "matrix_exp"])
def test_networks_take_any_batch(name, captured):
    class Net(torch.nn.Module):
        def forward(self, x):
            return getattr(torch.linalg, name)(x)

    x = numbers(5, 3, 3).numpy()
    net, wanted = open_batch(from_torch(Net(), x[:captured])), listed(Net()(torch.as_tensor(x)))
    for run in (net, plan.compile(net)):
        for ours, theirs in zip(listed(run(x)), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(ours), theirs.numpy(), rtol=1e-5, atol=1e-6)
