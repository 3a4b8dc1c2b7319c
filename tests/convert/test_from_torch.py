"""Modules of PyTorch as traced modules: torch's own results, paths of modules, open axes, and errors."""

import warnings

import numpy as np
import pytest
from click.testing import CliRunner

from megengine import plan
from megengine.cli.app import group
from megengine.convert import from_torch
from megengine.core.errors import ArgumentError, UnsupportedError
from megengine.quantization import QuantConfig, quantize_model
from megengine.quantization.checks.verify import verify

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

SOURCE = """
import torch

class Block(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(3), Block(8)])
        self.drop, self.head = torch.nn.Dropout(), torch.nn.Linear(8, 4)

    def forward(self, x, scale=None):
        y = self.blocks[0](x)
        y = (y + self.blocks[1](y)).mean((2, 3))
        out = self.head(self.drop(y))
        return {"scores": out, "rest": (y, out * 2 if scale is None else out * scale)}

class Scores(Net):
    def forward(self, x):
        return super().forward(x)["scores"]

def make():
    torch.manual_seed(0)
    return Scores()

def with_input():
    return make(), torch.zeros(1, 3, 16, 16)
"""


@pytest.fixture(scope="module")
def source():
    names = {"__name__": "net_of_torch"}
    exec(SOURCE, names)
    return names


def picture(batch=1):
    return np.random.default_rng(batch).standard_normal((batch, 3, 16, 16)).astype(np.float32)


def wanted(module, *inputs):
    with torch.no_grad():
        return module(*map(torch.as_tensor, inputs))


def test_outputs_paths_and_modes(source):
    module = source["Net"]()
    module.blocks[1].norm.eval()  # a frozen norm stays what it is
    before = {name: part.training for name, part in module.named_modules()}
    scale = np.full((1, 4), 3, np.float32)
    net = from_torch(module, picture(), kwargs={"scale": scale})
    assert {name: part.training for name, part in module.named_modules()} == before
    assert not before["blocks.1.norm"] and before["blocks.0.norm"]
    expected = wanted(module.eval(), picture(), scale)
    results = net(picture(), scale)
    assert list(results) == list(expected)
    pairs = ((results["scores"], expected["scores"]), *zip(results["rest"], expected["rest"], strict=True))
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)
    paths = [e.meta["module"] for e in net.graph.exprs() if e.meta.get("module")]
    assert paths[0].startswith("blocks.0") and "blocks.1" in paths and paths[-1] == "head"


def test_open_axes_plans_and_integers(source):
    module = source["make"]().eval()
    net = from_torch(module, picture(2), dynamic_shapes=({0: torch.export.Dim("n")},))
    for batch in (1, 3):
        theirs = wanted(module, picture(batch)).numpy()
        np.testing.assert_allclose(net(picture(batch)).numpy(), theirs, rtol=1e-4, atol=1e-5)
        (planned,) = plan.compile(net)(picture(batch))
        np.testing.assert_allclose(planned, theirs, rtol=1e-4, atol=1e-5)
    model = quantize_model(net, [(picture(1),), (picture(3),)], QuantConfig())
    assert verify(model, [(picture(2),)]).exact


class Missing(torch.nn.Module):
    """Functions that torch's exporter does not translate, or writes otherwise."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.mix = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(6, 6, bias=False))
        self.walk = torch.nn.LSTM(6, 5, proj_size=3, batch_first=True)
        self.register_buffer("at", torch.tensor([0, 0, 2, 2, 2]))

    def forward(self, x):
        y = self.mix(x[:, 0])
        planes, at = torch.nn.functional.adaptive_max_pool2d(x, (2, 4), return_indices=True)
        means = torch.zeros_like(y).scatter_reduce(1, self.at[:, None].expand(len(x), 5, 6), y, "mean")
        top, where = y.cummax(1)
        return (
            y @ torch.inverse(self.mix.weight),
            planes,
            at,
            torch.cdist(y, y[:, :2], p=1.0),
            y.kthvalue(2, dim=1)[0],
            y.median(1)[1],
            torch.stack([top, where.float(), torch.sigmoid(y).cumprod(1)]),
            means,
            torch.nn.functional.avg_pool2d(x, (2, 3), divisor_override=5),
            torch.searchsorted(self.at.float(), y, right=True),
            self.walk(y)[0],
            y[self.at[:2, None], self.at.int()],
        )


@pytest.mark.slow
def test_functions_that_torchs_exporter_lacks():
    module = Missing().eval()
    x = np.random.default_rng(3).standard_normal((2, 3, 5, 6)).astype(np.float32)
    net = from_torch(module, x)
    for ours, theirs in zip(net(x), wanted(module, x), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)
    ops = {getattr(e, "op", "") for e in net.graph.exprs()}
    assert not {"matinv", "svd"} & ops  # computed from weights alone


class Spectral(torch.nn.Module):
    """A layer of a Fourier neural operator, and other arithmetic of complex numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.low = torch.nn.Parameter(torch.rand(3, 4, 2, 3, dtype=torch.cfloat))

    def forward(self, x):
        waves = torch.fft.rfft2(x)
        made = torch.zeros(len(x), 4, *waves.shape[2:], dtype=torch.cfloat)
        made[:, :, :2, :3] = torch.einsum("bixy,ioxy->boxy", waves[:, :, :2, :3], self.low)
        made[:, :, -2:, :3] = 2j * made[:, :, :2, :3] - 0.5
        turned = torch.polar(x[:, :1, 0], x[:, 1:2, 0]) / (waves[:, :1, 0, :1] + 3) + waves.conj().exp()[:, :1, 0, :1]
        back = torch.fft.ifft(torch.where(x[:, :1, 0] > 0, turned, turned.square()))
        return torch.fft.irfft2(made, s=x.shape[2:]), back.abs(), back.angle().cos(), torch.view_as_real(back)


def test_complex_numbers_are_pairs_of_real_ones():
    module, x = Spectral().eval(), np.random.default_rng(4).standard_normal((2, 3, 6, 8)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        net = from_torch(module, x)
    for ours, theirs in zip(net(x), wanted(module, x), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_results_unlike_torchs_are_said(monkeypatch):
    monkeypatch.setattr("megengine.convert.torch_missing._decompositions", lambda torch: {})

    class Mean(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.avg_pool2d(x, 2, divisor_override=3)

    with pytest.warns(UserWarning, match=r"results of Mean differ from torch's by 0\.25 of the largest"):
        from_torch(Mean(), picture())


def test_what_the_importer_refuses_is_not_said_of_torch(monkeypatch):
    def refused(model):
        raise UnsupportedError("node 'a': no rule for this operator")

    monkeypatch.setattr("megengine.convert.torch_modules.load", refused)
    with pytest.raises(UnsupportedError, match=r"^node 'a': no rule for this operator$"):
        from_torch(torch.nn.Linear(2, 2), np.ones((1, 2), np.float32))


def test_errors():
    with pytest.raises(ArgumentError, match=r"module is a int; expected a torch\.nn\.Module"):
        from_torch(3)

    class Branch(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(UnsupportedError, match=r"torch cannot export Branch: .*; change what it names.*dynamo=False"):
        from_torch(Branch(), np.ones(3, np.float32))
    with pytest.raises(UnsupportedError, match=r"torch cannot export ReLU: .*call from_torch\(module, \*inputs\)"):
        from_torch(torch.nn.ReLU(), (np.ones(3, np.float32),))


def test_the_command_takes_functions_that_give_modules_of_torch(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(SOURCE)

    def run(*arguments):
        return CliRunner().invoke(group, list(arguments))

    found = run("inspect", f"{path}:make", "--input-shape", "1,3,16,16", "--open-batch")
    assert found.exit_code == 0 and "2 conv2d" in found.output, found.output
    found = run("draw", f"{path}:with_input", "-o", str(tmp_path / "net.svg"))
    assert found.exit_code == 0, found.output


class SmallNumbers(torch.nn.Module):
    """Numbers that the optimiser of torch's exporter takes for 0, beside values of any number of axes."""

    def forward(self, x):
        scale = torch.rsqrt(x.square().mean() + 1e-12)
        return x / (x.sum(-1, keepdim=True) + 1e-15), scale, x - 1e-9, 1e-9 - x, torch.where(x > 0, x, 1e-10 + x)


def test_small_numbers_are_kept():
    x = torch.rand(2, 3, generator=torch.Generator().manual_seed(0)) * 1e-9
    x[0] = 0
    results = from_torch(SmallNumbers(), torch.ones(2, 3))(x.numpy())
    for got, wanted in zip(results, SmallNumbers()(x), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-6)
