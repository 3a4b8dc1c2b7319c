"""Graphs of networks that live on a GPU: captured, changed, quantized, compiled and written there."""

import numpy as np
import onnx
import pytest
from recording_gpu import RecordingGpu

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.convert.onnx import export
from megengine.kernels.cuda.runtime import installed
from megengine.plan import GpuPlan, Plan
from megengine.plan import compile as compile_plan
from megengine.quantization import quantize_model, verify
from megengine.traced_module import lower, open_batch, optimize, trace_module


class Net(M.Module):
    """Reads its sizes, so that the graph computes with them."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = M.Conv2d(3, 8, 3, padding=1), M.BatchNorm2d(8), M.Linear(8, 4)

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x))).to(x.device)
        y = F.avg_pool2d(y, y.shape[2:])
        return self.fc(y.reshape(x.shape[0], -1)) + np.float32(0.5)


X = np.random.default_rng(0).standard_normal((4, 3, 6, 6)).astype(np.float32)


@pytest.fixture(params=["default", "moved"])
def there(request):
    """A network, its input and its result, by the default device or by `Module.to`."""
    with installed(RecordingGpu()):
        if request.param == "default":
            mge.set_default_device("xpux")
        net = Net().eval().to("gpu0")
        x = mge.tensor(X, device="gpu0")
        yield net, x, net(x).numpy()


def near(found, wanted):
    found = found[0] if isinstance(found, list) else found
    np.testing.assert_allclose(np.asarray(found.numpy() if hasattr(found, "numpy") else found), wanted, 1e-4, 1e-5)


def test_graphs_compute_where_the_network_is(there):
    net, x, wanted = there
    traced = trace_module(net, x)
    for graph in (traced, lower(traced), optimize(traced), optimize(lower(traced)), open_batch(traced)):
        assert graph(x).device == "gpu0"
        near(graph(x), wanted)
        near(graph(X), wanted)  # arrays go where the graph is


def test_plans_for_both_devices(there):
    net, x, wanted = there
    traced = trace_module(net, x)
    for device, kind in ((None, GpuPlan), ("gpu0", GpuPlan), ("cpu0", Plan)):
        plan = compile_plan(traced, device=device)
        assert type(plan) is kind
        near(plan(X), wanted)


def test_networks_are_quantized_and_written(there, tmp_path):
    net, x, wanted = there
    traced = trace_module(net, x)
    quantized = quantize_model(traced, [X])
    assert quantized.device == "gpu0" and quantized.integer_graph.inputs[0].spec.device == "cpu0"
    for given in (x, X):
        assert np.abs(quantized(given).numpy() - wanted).max() < 0.1 * np.abs(wanted).max()
    near(compile_plan(quantized.traced())(X), quantized(x).numpy())
    assert verify(quantized, [X], devices=("gpu0",)).exact
    export(traced, tmp_path / "float.onnx")
    export(quantized.qdq_graph, tmp_path / "int.onnx")
    assert onnx.load(tmp_path / "float.onnx").graph.node
