"""Files that PyTorch's two exporters wrote: the same outputs, quantized exactly, written as QDQ for other runtimes."""

import json
from pathlib import Path

import numpy as np
import pytest

from megengine.convert import onnx as mge_onnx
from megengine.quantization import QuantConfig, quantize_model
from megengine.quantization.verify import verify

FOLDER = Path(__file__).parent.parent / "data" / "onnx"
EXPECTED = np.load(FOLDER / "expected.npz")
FILES = sorted(path.name for path in FOLDER.glob("*.onnx"))


def test_six_networks_from_both_exporters():
    assert len(FILES) == 12 and {name.split("_")[0] for name in FILES} == set(EXPECTED.files) - {"x"}


def wanted(name):
    return EXPECTED[name.split("_")[0]]


@pytest.mark.parametrize("name", FILES)
def test_outputs_are_torchs(name):
    got = mge_onnx.load(FOLDER / name)(EXPECTED["x"]).numpy()
    assert got.shape == wanted(name).shape
    np.testing.assert_allclose(got, wanted(name), rtol=1e-4, atol=2e-5 * np.abs(wanted(name)).max())


@pytest.fixture(scope="module", params=FILES)
def quantized(request):
    rng = np.random.default_rng(0)
    data = [(EXPECTED["x"],), *((rng.standard_normal((1, 3, 32, 32)).astype(np.float32),) for _ in range(3))]
    return request.param, quantize_model(mge_onnx.load(FOLDER / request.param), data, QuantConfig())


def test_quantized_it_is_exact_and_close(quantized):
    name, model = quantized
    result = verify(model, [(EXPECTED["x"],)])
    assert result.exact, json.dumps(result.to_json())
    assert result.float_largest <= 1
    assert model.report.integer_layers >= 3
    error = model(EXPECTED["x"]).numpy() - wanted(name)
    assert np.square(error).sum() < 0.02 * np.square(wanted(name)).sum()  # 17 dB


def test_qdq_export_runs_in_onnxruntime(quantized, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    name, model = quantized
    mge_onnx.export_qdq(model, tmp_path / "qdq.onnx")
    session = runtime.InferenceSession(tmp_path / "qdq.onnx", providers=["CPUExecutionProvider"])
    got = session.run(None, {session.get_inputs()[0].name: EXPECTED["x"]})[0]
    error = got - model(EXPECTED["x"]).numpy()
    assert np.square(error).sum() < 0.01 * np.square(wanted(name)).sum()  # 20 dB
