"""Models: parameter counts, SAME padding, names of published weights; outputs against torch where it is installed."""

import numpy as np
import pytest

from megengine import models
from megengine.core.errors import ArgumentError, FileFormatError, OptionError
from megengine.models.efficientnet import SameConv2d
from megengine.tensor import tensor
from megengine.traced_module import trace_module

PARAMETERS = {  # as published
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "efficientnet_lite0": 4_652_008,
    "squeezenet1_1": 1_235_496,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count_and_output(name):
    net = getattr(models, name)().eval()
    assert sum(p.size for p in net.parameters()) == PARAMETERS[name]
    assert net(tensor(np.zeros((1, 3, 64, 64), np.float32))).shape == (1, 1000)


@pytest.mark.parametrize("name", PARAMETERS)
def test_captured_as_a_graph_it_gives_the_same(name):
    net = getattr(models, name)().eval()
    x = tensor(np.random.default_rng(0).standard_normal((1, 3, 65, 65)).astype(np.float32))
    wanted = net(x).numpy()
    assert np.ptp(wanted) > 0
    np.testing.assert_allclose(trace_module(net, x)(x).numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [(8, 3, 2), (7, 3, 2), (9, 5, 2), (8, 5, 1), (10, 5, 3), (5, 1, 1)]
)
def test_same_padding_as_tensorflow_defines_it(size, kernel, stride):
    conv = SameConv2d(1, 1, kernel, stride, bias=False)
    x = np.random.default_rng(0).standard_normal((1, 1, size, size)).astype(np.float32)
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    padded = np.pad(x[0, 0], (total // 2, total - total // 2)).astype(np.float64)
    w = conv.weight.numpy()[0, 0]
    expected = [
        [(padded[i * stride :, j * stride :][:kernel, :kernel] * w).sum() for j in range(out)] for i in range(out)
    ]
    np.testing.assert_allclose(conv(tensor(x)).numpy()[0, 0], expected, rtol=1e-5, atol=1e-5)


def torch_names(name, net):
    """The published form of a model's own weights: names, flat vectors, 4-d convolutions, batch counters."""
    state = {}
    for key, value in net.state_dict().items():
        if value.ndim == 5:
            value = value.reshape(-1, *value.shape[2:])
        if value.ndim == 4 and value.shape[0] == 1 and value.shape[2:] == (1, 1) and "weight" not in key[-6:]:
            value = value.reshape(-1)
        state[key] = value
    return state


def test_names_shapes_and_errors():
    net = models.mobilenet_v2(10)
    state = torch_names("mobilenet_v2", net)
    state["features.0.1.num_batches_tracked"] = np.int64(3)
    state["features.0.1.weight"] = state["features.0.1.weight"].reshape(-1)
    adapted = models.adapt(net, state)
    assert adapted["features.1.conv.0.0.weight"].shape == (32, 1, 1, 3, 3)
    net.load_state_dict(adapted)
    with pytest.raises(
        FileFormatError, match=r"'classifier.2.weight' has no place.*did you mean 'classifier.1.weight'"
    ):
        models.adapt(net, {"classifier.2.weight": np.zeros(1)})
    with pytest.raises(FileFormatError, match=r"'classifier.1.bias' is \(1000,\); the model needs \(10,\)"):
        models.adapt(net, {"classifier.1.bias": np.zeros(1000, np.float32)})
    with pytest.raises(FileFormatError, match="is it a file of another model"):
        models.adapt(net, {"conv9.weight": np.zeros(1)}, models.PRETRAINED["efficientnet_lite0"].rules)
    with pytest.raises(OptionError, match="did you mean 'mobilenet_v2'"):
        models.load_pretrained("mobilenet_v3", "x.pth")


@pytest.mark.parametrize("call", [dict(pretrained=True), dict(weights="DEFAULT"), dict(num_classes=True), (True,)])
@pytest.mark.parametrize("name", sorted(models.PRETRAINED))
def test_calls_that_ask_for_published_weights_are_told_where_they_are(name, call):
    args, kwargs = ((), call) if isinstance(call, dict) else (call, {})
    message = rf"{name}: builds a network with random weights; .*load_pretrained\('{name}', FILE\)"
    with pytest.raises(ArgumentError, match=message) as told:
        getattr(models, name)(*args, **kwargs)
    assert isinstance(told.value, TypeError)


def test_preprocessing():
    pixels = np.full((2, 2, 3), (10, 20, 30), np.uint8)
    caffe = models.preprocessing("squeezenet1_1")(pixels)
    np.testing.assert_allclose(caffe[0, :, 0, 0], np.float32([30 - 103.939, 20 - 116.779, 10 - 123.68]), rtol=1e-6)
    lite = models.preprocessing("efficientnet_lite0")(pixels)
    np.testing.assert_allclose(lite[0, :, 0, 0], (np.float32([10, 20, 30]) - 127) / 128)
    usual = models.preprocessing("mobilenet_v2")(pixels)
    np.testing.assert_allclose(usual[0, 0, 0, 0], (10 / 255 - 0.485) / 0.229, rtol=1e-5)
    with pytest.raises(OptionError, match=r"expected \[N,H,W,3\]"):
        models.preprocessing("mobilenet_v2")(np.zeros((3, 4, 4)))


def torch_twin(torch):
    """MobileNetV2 of narrow input written with torch's own layers, same names as ours."""
    nn = torch.nn

    def unit(cin, cout, k, s=1, g=1):
        return nn.Sequential(nn.Conv2d(cin, cout, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(cout), nn.ReLU6())

    class Block(nn.Module):
        def __init__(self, cin, cout, s, t):
            super().__init__()
            wide = cin * t
            layers = ([] if t == 1 else [unit(cin, wide, 1)]) + [unit(wide, wide, 3, s, wide)]
            self.conv = nn.Sequential(*layers, nn.Conv2d(wide, cout, 1, bias=False), nn.BatchNorm2d(cout))
            self.add = s == 1 and cin == cout

        def forward(self, x):
            return x + self.conv(x) if self.add else self.conv(x)

    class Twin(nn.Module):
        def __init__(self):
            super().__init__()
            layers, cin = [unit(3, 32, 3, 2)], 32
            table = [
                (1, 16, 1, 1),
                (6, 24, 2, 2),
                (6, 32, 3, 2),
                (6, 64, 4, 2),
                (6, 96, 3, 1),
                (6, 160, 3, 2),
                (6, 320, 1, 1),
            ]
            for t, c, n, s in table:
                for i in range(n):
                    layers.append(Block(cin, c, 1 if i else s, t))
                    cin = c
            self.features = nn.Sequential(*layers, unit(cin, 1280, 1))
            self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

        def forward(self, x):
            return self.classifier(self.features(x).mean((2, 3)))

    return Twin()


def test_mobilenet_file_written_by_torch_gives_torchs_outputs(tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    twin = torch_twin(torch).eval()
    for module in twin.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    torch.save(twin.state_dict(), tmp_path / "m.pth")
    net = models.load_pretrained("mobilenet_v2", tmp_path / "m.pth")
    x = np.random.default_rng(0).standard_normal((2, 3, 96, 96)).astype(np.float32)
    with torch.no_grad():
        expected = twin(torch.from_numpy(x)).numpy()
    actual = net(tensor(x)).numpy()
    np.testing.assert_allclose(actual, expected, atol=2e-5 * np.abs(expected).max())
