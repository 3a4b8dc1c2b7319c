"""Functions that torch's exporter lacks, by elementary ones: against torch's own."""

import numpy as np
import pytest

from megengine import plan
from megengine.convert import from_torch

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from megengine.convert.torch_linalg import linalg_decompositions  # noqa: E402
from megengine.convert.torch_special import special_decompositions  # noqa: E402


def same(name, *arguments, tolerance=2e-6, **options):
    op = getattr(torch.ops.aten, name).default
    table = {**linalg_decompositions(torch), **special_decompositions(torch)}
    made, wanted = (f(*arguments, **options) for f in (table[op], op))
    made, wanted = ((v,) if isinstance(v, torch.Tensor) else v for v in (made, wanted))
    for a, b in list(zip(made, wanted, strict=True))[: 2 if "slogdet" in name else 1]:
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def matrices(size, batch=(3,)):
    return torch.from_numpy(np.random.default_rng(size).standard_normal((*batch, size, size)))


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_matrices(size):
    a, b = matrices(size), matrices(size)[..., :2]
    turned = a[:, torch.randperm(size)]
    turned[..., 0, 0] = 0 if size > 1 else 1  # a pivot that is no pivot
    positive = a @ a.mT + torch.eye(size)
    same("linalg_inv_ex", turned)
    same("_linalg_solve_ex", turned, b)
    same("_linalg_solve_ex", turned[0], b[..., 0][0])
    same("_linalg_solve_ex", turned[:1], b)
    same("_linalg_slogdet", a)
    for upper in (False, True):
        same("linalg_cholesky_ex", positive, upper=upper)
        part = positive.triu() if upper else positive.tril()
        same("linalg_solve_triangular", part, b, upper=upper)
        same("linalg_solve_triangular", part, b, upper=upper, unitriangular=True)


def test_what_stays_with_torch():
    table, aten = linalg_decompositions(torch), torch.ops.aten
    large = matrices(17)
    for op in (aten.linalg_inv_ex, aten.linalg_cholesky_ex):
        assert table[op.default](large) is NotImplemented
    assert table[aten._linalg_solve_ex.default](matrices(2), matrices(2), left=False) is NotImplemented
    assert table[aten.linalg_solve_triangular.default](large, large, upper=True) is NotImplemented


def test_special_functions():
    x = torch.cat([torch.linspace(-4.95, 12, 400), torch.tensor([30.0, 100, 1e4, 1, 2, 0.5, 1e-3])])
    same("lgamma", x)
    same("digamma", x)
    share = torch.cat([torch.linspace(-0.9999, 0.9999, 400), torch.tensor([-1.0, 0.0, 1.0, 1.5])])
    same("erfinv", share)
    same("special_ndtri", share.abs())


class Solver(torch.nn.Module):
    def forward(self, a, x):
        positive = a @ a.mT + torch.eye(3)
        lower = torch.linalg.cholesky(positive)
        y = torch.linalg.solve(a, x) + torch.linalg.inv(positive) @ x + torch.cholesky_solve(x, lower)
        picked = torch.zeros_like(x).masked_scatter(x > 0, y)
        signs = torch.signbit(x * 0.0), torch.copysign(y, x * 0.0)
        return y, picked, torch.masked_select(y, x > 0), torch.logdet(positive), torch.special.erfinv(x.tanh()), *signs


@pytest.mark.slow
def test_a_network_that_solves():
    rng = np.random.default_rng(5)
    a, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 3), (2, 3, 4)))
    net, wanted = from_torch(Solver(), a, x), Solver()(torch.as_tensor(a), torch.as_tensor(x))
    for ours, planned, theirs in zip(net(a, x), plan.compile(net)(a, x), wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(planned, theirs.numpy(), rtol=1e-3, atol=1e-4)
