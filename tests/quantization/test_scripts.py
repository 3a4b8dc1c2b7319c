"""Scripts as MegEngine's documentation of quantization has them: training, checkpoints, calibration, traced networks.

The first two ran unchanged in MegEngine 1.13 too, where the trained and the quantized network of the first differ by
0.03: its means of windows are rounded on integers alone.
"""

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.quantization as Q
from megengine import autodiff, optimizer
from megengine.jit import trace
from megengine.quantization.quantize import (
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    quantize,
    quantize_qat,
)
from megengine.traced_module import trace_module

DATA = np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32)
LABELS = np.arange(8, dtype=np.int32)


class BasicBlock(M.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = M.ConvBnRelu2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = M.ConvBn2d(outputs, outputs, 3, 1, 1, bias=False)
        self.downsample = M.Identity() if stride == 1 else M.ConvBn2d(inputs, outputs, 1, stride, bias=False)
        self.add_relu = M.Elemwise("FUSE_ADD_RELU")

    def forward(self, x):
        return self.add_relu(self.conv2(self.conv1(x)), self.downsample(x))


class ResNet(M.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = M.QuantStub(), M.DequantStub()
        self.conv1 = M.ConvBnRelu2d(3, 8, 3, 1, 1, bias=False)
        self.layers = M.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 16, 2))
        self.fc = M.Linear(16, 10)
        self.fc.disable_quantize()

    def forward(self, x):
        x = F.avg_pool2d(self.layers(self.conv1(self.quant(x))), 4)
        return self.fc(self.dequant(F.flatten(x, 1)))


def test_training_aware_of_quantization(tmp_path):
    mge.random.seed(0)
    model = ResNet()
    quantize_qat(model, qconfig=Q.ema_fakequant_qconfig)
    gm = autodiff.GradManager().attach(model.parameters())
    opt = optimizer.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def step(image, label):
        with gm:
            loss = F.loss.cross_entropy(model(image), label, label_smooth=0.1)
            gm.backward(loss)
            opt.step().clear_grad()
        return loss

    model.train()
    disable_fake_quant(model)
    enable_observer(model)
    image, label = mge.tensor(DATA), mge.tensor(LABELS)
    first = [float(trace(step, symbolic=False)(image, label)) for _ in range(3)][-1]
    enable_fake_quant(model)
    assert [float(step(image, label)) for _ in range(5)][-1] < first
    disable_observer(model)
    mge.save({"state_dict": model.state_dict()}, str(tmp_path / "checkpoint.pkl"))
    restored = ResNet()
    quantize_qat(restored)
    restored.load_state_dict(mge.load(str(tmp_path / "checkpoint.pkl"))["state_dict"])
    simulated = [net.eval()(image).numpy() for net in (model, restored)]
    np.testing.assert_array_equal(*simulated)
    quantize(restored)
    np.testing.assert_array_equal(restored.eval()(image).numpy(), simulated[0])


def test_calibration_after_training():
    mge.random.seed(0)
    model = ResNet().eval()
    exact = model(mge.tensor(DATA)).numpy()
    quantize_qat(model, qconfig=Q.calibration_qconfig)
    model.eval()
    enable_observer(model)
    disable_fake_quant(model)
    for part in (DATA[:5], DATA[5:]):
        model(mge.tensor(part))
    disable_observer(model)
    quantize(model)
    rounded = model.eval()(mge.tensor(DATA)).numpy()
    assert np.abs(rounded - exact).max() < 0.1 * np.abs(exact).max()


class Plain(M.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = M.QuantStub(), M.DequantStub()
        self.conv1, self.conv2 = M.ConvBnRelu2d(3, 8, 3), M.ConvBn2d(8, 8, 3, padding=1)
        self.add_relu, self.fc = M.Elemwise("FUSE_ADD_RELU"), M.Linear(8 * 36, 4)

    def forward(self, x):
        x = self.conv1(self.quant(x))
        x = self.add_relu(self.conv2(x), x)
        return self.dequant(self.fc(F.flatten(x, 1)))


@pytest.mark.parametrize("config", ["ema_fakequant", "min_max_fakequant", "sync_ema_fakequant", "ema_lowbit_fakequant"])
def test_traced_networks_are_trained(config, tmp_path):
    x = mge.tensor(DATA)
    net = quantize_qat(trace_module(Plain().eval(), x), inplace=False, qconfig=getattr(Q, f"{config}_qconfig"))
    net.train()
    enable_observer(net)
    for _ in range(2):
        net(x)
    simulated = net.eval()(x).numpy()
    quantized = quantize(net, inplace=False).eval()
    np.testing.assert_array_equal(quantized(x).numpy(), simulated)
    mge.save(quantized, str(tmp_path / "quantized.tm"))
    np.testing.assert_array_equal(mge.load(str(tmp_path / "quantized.tm"))(x).numpy(), simulated)
