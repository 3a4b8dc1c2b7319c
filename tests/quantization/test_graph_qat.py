import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from quant_nets import concat_net, drawn_net, gated_net, residual_net, transposed_net

import megengine.functional as F
from megengine.autodiff import GradManager
from megengine.core.errors import CalibrationError, OptionError, QuantizationError
from megengine.models import mobilenet_v2, resnet18
from megengine.module import BatchNorm2d, Conv2d, Linear, Module
from megengine.optimizer import SGD
from megengine.quantization import PROFILES
from megengine.quantization.pipeline import graph_qat
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.quantize import quantize_model
from megengine.quantization.pipeline.selection import PRECISIONS
from megengine.quantization.pipeline.trained_scales import METHODS
from megengine.quantization.ranges.methods import RangeMethod
from megengine.tensor import Tensor
from megengine.traced_module import trace_module

NETS = [residual_net, concat_net, gated_net, transposed_net]
MINMAX = QuantConfig(weights="per_tensor", activations=RangeMethod("minmax"), bias_correction=False)


def config_of(profile="x86", weights="per_channel"):
    return graph_qat.TRAINING.changed(profile=profile, weights=weights)


def prepared(net=residual_net, config=graph_qat.TRAINING, method="ste"):
    b, graph = net()
    return b, graph, graph_qat.prepare_qat(graph, config=config, method=method, calibration=b.data())


def arrays(outputs):
    return [y.numpy() for y in (outputs if isinstance(outputs, tuple) else (outputs,))]


def step(module, x, rate=0.01):
    """One step of training; the results of its forward pass."""
    parameters = list(module.parameters())
    manager, optimizer = GradManager().attach(parameters), SGD(parameters, lr=rate)
    with manager:
        outputs = module(x)
        loss = sum((y * y).mean() for y in (outputs if isinstance(outputs, tuple) else (outputs,)))
        manager.backward(F.log(loss + 1e-3))
    assert all(p.grad is None or np.isfinite(p.grad.numpy()).all() for p in parameters)
    optimizer.step().clear_grad()
    return outputs


def check_exact(module, x):
    """Equal values in training, in evaluation after a step, and for a batch of another size."""
    module.train()
    before = module.convert()
    for ours, theirs in zip(arrays(step(module, x)), arrays(before(x)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    after = module.eval().convert()
    for ours, theirs in zip(arrays(module(x)), arrays(after(x)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("net", NETS)
def test_training_computes_what_the_integer_network_computes(net, profile, method):
    weights = "per_tensor" if method == "pact" else "per_channel"
    b, _, module = prepared(net, config_of(profile, weights), method)
    check_exact(module, Tensor(b.data(1, seed=4)[0]))


@pytest.mark.parametrize("method", ["ste", "lsq"])
@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name != "float"])
def test_other_precisions(precision, method):
    for net in (residual_net, gated_net):
        b, _, module = prepared(net, config_of().changed(precision=precision), method)
        check_exact(module, Tensor(b.data(1, seed=4)[0]))


def check_drawn(seed, profile=None):
    method = METHODS[seed // 4 % len(METHODS)]
    profile = profile or [*PROFILES][seed % len(PROFILES)]
    weights = ("per_channel", "per_tensor")[seed // 2 % 2]
    b, _, module = prepared(lambda: drawn_net(seed), config_of(profile, weights), method)
    check_exact(module, Tensor(b.data(1, seed=4)[0]))


@pytest.mark.parametrize("seed", range(8))
def test_random_networks(seed):
    check_drawn(seed)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("part", range(3))
def test_many_random_networks(part, profile):
    """Each profile has networks of its own."""
    first = 50 * (3 * [*PROFILES].index(profile) + part)
    for seed in range(first, first + 50):
        check_drawn(seed, profile)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("network", [resnet18, mobilenet_v2, lambda: RepVGG(A0)], ids=["resnet", "mobilenet", "repvgg"])
def test_published_networks_at_any_batch_size(network, profile):
    rng = np.random.default_rng(0)
    pictures = [rng.standard_normal((n, 3, 64, 64)).astype(np.float32) for n in (2, 3)]
    net = network()
    module = graph_qat.prepare_qat(net, Tensor(pictures[0]), config=config_of(profile), calibration=pictures[:1])
    assert len(module.norms) > 19
    for x in pictures:
        check_exact(module, Tensor(x))


def test_same_network_as_post_training_quantization():
    b, graph = residual_net()
    wanted = quantize_model(graph, b.data(), MINMAX)
    x = Tensor(b.data(1, seed=4)[0])
    calibrated = graph_qat.prepare_qat(graph, config=MINMAX, calibration=b.data())
    seen = graph_qat.prepare_qat(graph, config=MINMAX)
    seen.fake_quantizing = False
    for batch in b.data():
        seen(Tensor(batch))
    for module in (calibrated, seen):
        np.testing.assert_array_equal(module.convert()(x).numpy(), wanted(x).numpy())


@pytest.mark.parametrize("calibrated", [True, False])
def test_ranges_of_least_error_follow_what_training_sees(calibrated):
    b, graph = residual_net()
    data = b.data()
    module = graph_qat.prepare_qat(graph, config=QuantConfig(), calibration=data if calibrated else None).train()
    module(Tensor(data[0]))
    before = module.edges["x"].range.numpy()
    module(Tensor(100 * data[0]))
    after = module.edges["x"].range.numpy()
    assert before[0] > -10 and before[1] < 10
    assert after[0] < before[0] and after[1] > before[1]


@pytest.mark.parametrize("method", METHODS)
def test_training_helps(method):
    b, _, module = prepared(method=method)
    x = Tensor(b.data(1, seed=4)[0])
    losses = [float((step(module, x, 0.03) ** 2).mean().item()) for _ in range(12)]
    assert losses[-1] < 0.7 * losses[0]


def test_gradients_are_those_of_the_float_network_at_rounded_values():
    """With 8 bits they are near those of float training."""
    b, _, module = prepared()
    x, parameters = Tensor(b.data(1, seed=4)[0]), list(module.parameters())
    grads = []
    for module.fake_quantizing in (True, False):
        with GradManager().attach(parameters) as manager:
            manager.backward((module(x) ** 2).mean())
        grads.append(np.concatenate([p.grad.numpy().reshape(-1) for p in parameters]))
        for p in parameters:
            p.grad = None
    ours, exact = grads
    assert ours @ exact > 0.98 * np.linalg.norm(ours) * np.linalg.norm(exact)


@pytest.mark.parametrize("method", ["lsq", "tqt", "pact"])
def test_scales_are_learnt(method):
    b, _, module = prepared(method=method)
    before = [p.numpy().copy() for p in module.scale_parameters]
    step(module, Tensor(b.data(1, seed=4)[0]), 0.5)
    after = [p.numpy() for p in module.scale_parameters]
    assert len(before) > (5 if method != "pact" else 3)
    assert sum(not np.array_equal(a, b) for a, b in zip(before, after, strict=True)) >= len(before) / 2


def test_ranges_stand_still_in_evaluation_and_when_told():
    b, _, module = prepared()
    x = Tensor(b.data(1, seed=5)[0] * 3)

    def moved():
        before = {name: edge.range.numpy().copy() for name, edge in module.edges.items()}
        module(x)
        return any(not np.array_equal(before[name], edge.range.numpy()) for name, edge in module.edges.items())

    module.eval()
    assert not moved()
    module.train()
    module.observing = False
    assert not moved()
    module.observing = True
    assert moved()


def test_an_edge_that_saw_nothing():
    _, graph = residual_net()
    with pytest.raises(CalibrationError, match="no value reached 'x'; give prepare_qat calibration data"):
        graph_qat.prepare_qat(graph).convert()


# ---------------------------------------------------------------- batch norms


class Net(Module):
    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(0)
        self.conv, self.norm, self.last = Conv2d(3, 4, 3, bias=False), BatchNorm2d(4), Linear(4, 2)
        self.norm.running_var._reset(Tensor(rng.random((1, 4, 1, 1)).astype(np.float32) + 0.5))

    def forward(self, x):
        return self.last(F.relu(self.norm(self.conv(x))).mean(axis=(2, 3)))


def pictures(count=4, seed=0):
    return Tensor(np.random.default_rng(seed).normal(0.5, 2, (count, 3, 6, 6)).astype(np.float32))


def test_a_module_is_captured_with_its_batch_norms_and_keeps_its_mode():
    net = Net()
    net.conv.eval()
    module = graph_qat.prepare_qat(net, pictures(), calibration=[pictures().numpy()])
    assert net.training
    assert net.norm.training
    assert not net.conv.training
    assert len(module.norms) == 1
    assert {name.rpartition(".")[2] for name, _ in module.named_parameters()} >= {"gain", "shift", "weight"}
    for size in (4, 3, 1):
        check_exact(module, pictures(size))
    assert module.eval().convert()(pictures(5)).shape == (5, 2)


def test_statistics_follow_the_batches_until_they_are_frozen():
    net, x = Net(), pictures(64)
    module = graph_qat.prepare_qat(net, x, calibration=[x.numpy()])
    (norm,) = module.norms.values()
    z = net.conv(x).numpy()
    for _ in range(60):
        module(x)
    np.testing.assert_allclose(norm.mean.numpy(), z.mean((0, 2, 3)), atol=0.05)
    np.testing.assert_allclose(norm.variance.numpy(), z.var((0, 2, 3)), rtol=0.05)
    before = norm.mean.numpy().copy()
    module.norms_moving = False
    module(pictures(8, seed=1))
    np.testing.assert_array_equal(norm.mean.numpy(), before)
    module.reestimate_norms([pictures(32, seed=2).numpy(), pictures(32, seed=3).numpy()])
    both = np.concatenate([net.conv(pictures(32, seed=s)).numpy() for s in (2, 3)])
    np.testing.assert_allclose(norm.mean.numpy(), both.mean((0, 2, 3)), atol=0.05)
    assert module.training


class PreActivation(Module):
    """A batch norm that no convolution stands in front of, with a negative and a zero scale."""

    def __init__(self):
        super().__init__()
        self.norm, self.conv = BatchNorm2d(3), Conv2d(3, 4, 3)
        self.norm.weight._reset(Tensor(np.array([1.5, -0.7, 0.0], np.float32)))
        self.norm.bias._reset(Tensor(np.array([0.1, 0.4, 0.6], np.float32)))
        self.norm.running_mean._reset(Tensor(np.array([0.2, -0.3, 0.1], np.float32).reshape(1, 3, 1, 1)))
        self.norm.running_var._reset(Tensor(np.array([0.5, 2.0, 1.0], np.float32).reshape(1, 3, 1, 1)))

    def forward(self, x):
        return self.conv(F.relu(self.norm(x)))


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_norm_that_stands_alone(method):
    x = pictures()
    module = graph_qat.prepare_qat(PreActivation(), x, method=method, calibration=[x.numpy()])
    check_exact(module, x)


def test_a_factor_of_zero_says_nothing_of_the_statistics():
    net, x = Net(), pictures(8)
    net.norm.weight._reset(Tensor(np.array([1, 0, 1, 1], np.float32).reshape(1, 4, 1, 1)))
    module = graph_qat.prepare_qat(net, x, calibration=[x.numpy()])
    for _ in range(3):
        check_exact(module, x)
    (norm,) = module.norms.values()
    assert np.isfinite(norm.variance.numpy()).all()


@pytest.mark.parametrize("method", ["ste", "lsq"])
def test_weights_in_groups_are_refused(method):
    config = graph_qat.TRAINING.changed(precision="w4", group=4)
    with pytest.raises(OptionError, match=r"weights of .* \(4 weights\).* share scales in groups.*quantize_model"):
        graph_qat.prepare_qat(residual_net()[1], config=config, method=method)


class Branches(Module):
    """A block in the form that is trained: two or three branches, each with its batch norm, then the sum's ReLU."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.wide = Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.narrow = Conv2d(inputs, outputs, 1, stride, bias=False)
        self.norms = [BatchNorm2d(outputs) for _ in range(2 + (inputs == outputs and stride == 1))]

    def forward(self, x):
        ways = [self.wide(x), self.narrow(x), x]
        return F.relu(sum(norm(way) for norm, way in zip(self.norms, ways, strict=False)))


A0 = (48, *(48,) * 2, *(96,) * 4, *(192,) * 14, 1280)  # widths of RepVGG-A0 (Ding et al. 2021), by block


class RepVGG(Module):
    """Blocks of the given widths; one that is wider than the block before halves the picture, and so does the first."""

    def __init__(self, widths):
        super().__init__()
        before = (3, *widths[:-1])
        strides = [1 if i and a == b else 2 for i, (a, b) in enumerate(zip(before, widths, strict=True))]
        self.blocks = [Branches(a, b, s) for a, b, s in zip(before, widths, strides, strict=True)]
        self.head = Linear(widths[-1], 5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(F.mean(x, axis=(2, 3)))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("method", METHODS)
def test_branches_that_are_merged_later(profile, method):
    rng = np.random.default_rng(5)
    x = Tensor(rng.standard_normal((4, 3, 10, 10)).astype(np.float32))
    net = RepVGG((8, 8))
    net.train()
    for _ in range(3):
        net(x)
    module = graph_qat.prepare_qat(net, x, config=config_of(profile), method=method, calibration=[x.numpy()])
    for _ in range(2):
        check_exact(module, x)


def test_a_network_traced_in_training_mode_is_refused():
    traced = trace_module(Net().train(), pictures())
    with pytest.raises(QuantizationError, match=r"was traced in training mode; call eval\(\) before trace_module"):
        graph_qat.prepare_qat(traced)


# ---------------------------------------------------------------- keeping and resuming


@pytest.mark.parametrize("method", METHODS)
def test_the_state_is_all_that_training_needs(method):
    x = pictures()
    first = graph_qat.prepare_qat(Net(), x, method=method)
    for _ in range(3):
        step(first, x)
    again = graph_qat.prepare_qat(Net(), x, method=method)
    again.load_state_dict(first.state_dict())
    copied = pickle.loads(pickle.dumps(copy.deepcopy(first)))
    for _ in range(2):
        results = [step(module, x).numpy() for module in (first, again, copied)]
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])
    for name, value in first.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name], value, err_msg=name)


@pytest.mark.slow
def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "quantization.md").read_text()
    (example,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "prepare_qat" in text]
    exec(example, {"__name__": "example"})


class CountsItsSamples(Module):
    def __init__(self, mixes):
        super().__init__()
        self.mixes = mixes
        self.conv, self.head = Conv2d(3, 4, 3), Linear(4 * 36, 3)

    def forward(self, x):
        y = self.head(F.relu(self.conv(x)).reshape(2, -1))
        return y * F.sigmoid(y.mean(axis=0, keepdims=True)) if self.mixes else y


@pytest.mark.parametrize("mixes", [False, True])
def test_a_network_for_one_number_of_samples(mixes):
    """It is opened for any number, unless its samples depend on each other."""
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    module = graph_qat.prepare_qat(CountsItsSamples(mixes), Tensor(x), calibration=[x])
    assert module.batch_size == (2 if mixes else None)
    check_exact(module, Tensor(x))


# ---------------------------------------------------------------- wrong calls


def test_sample_inputs_are_asked_for():
    with pytest.raises(OptionError, match="pass sample inputs"):
        graph_qat.prepare_qat(Net())


@pytest.mark.parametrize("method", ["lsq", "tqt", "pact"])
def test_training_that_diverged(method):
    b, _, module = prepared(method=method)
    name, edge = next((n, e) for n, e in module.edges.items() if e.method == method)
    next(edge.parameters())._reset(Tensor(np.float32(np.inf)))
    with pytest.raises(
        QuantizationError, match=f"{name}: the scale that was learnt is inf; .* lower the learning rate"
    ):
        module(Tensor(b.data(1)[0]))


def test_methods_are_known():
    with pytest.raises(OptionError, match="method: expected one of ste, tqt, lsq, pact, got 'lsg'; did you mean"):
        graph_qat.prepare_qat(Net(), pictures(), method="lsg")


class Styled(Module):
    """A style multiplies channels; the code writes the one sample of the trace as a number."""

    def __init__(self):
        super().__init__()
        self.conv, self.style = Conv2d(4, 5, 3), Linear(6, 4)

    def forward(self, x, z):
        return self.conv(x * F.sigmoid(self.style(z)).reshape(1, 4, 1, 1))


def test_a_number_that_suits_one_sample_only_is_no_open_batch():
    """The sizes of the trace suit it, so that the network passed for one of any batch until it was trained."""
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal((3, *shape)).astype(np.float32) for shape in ((4, 8, 8), (6,)))
    traced = trace_module(Styled().eval(), Tensor(x[:1]), Tensor(z[:1]))
    module = graph_qat.prepare_qat(traced, calibration=[(x, z)])
    assert module.batch_size is None
    y = module.eval()(Tensor(x), Tensor(z)).numpy()
    alone = [module(Tensor(x[i : i + 1]), Tensor(z[i : i + 1])).numpy() for i in range(3)]
    np.testing.assert_array_equal(y, np.concatenate(alone))
