"""Networks with open axes are quantized on inputs of several sizes and are exact at others."""

import numpy as np
import onnx
import pytest

from megengine.convert.onnx import export_qdq, load
from megengine.core.errors import CalibrationError
from megengine.plan import compile as compile_plan
from megengine.quantization import quantize_model
from megengine.quantization.checks import verify
from megengine.traced_module import TracedModule
from megengine.traced_module.formats import native
from tests.convert.test_onnx_open_sizes import NETS, data, runtime

CASES = {
    name: [(1, 3, 24, 16), (2, 3, 12, 20)] if len(shapes[0]) == 4 else [(2, 7), (1, 12)]
    for name, (_, shapes) in NETS.items()
    if name not in ("padded", "blocks")  # without a layer; of one size
}


@pytest.mark.parametrize("name", CASES)
def test_exact_at_sizes_that_were_not_calibrated(name, tmp_path):
    """Verified with plans, saved and read, and exported as QDQ, at other sizes."""
    make, shapes = NETS[name]
    made = quantize_model(load(make()), [data(shape) for shape in CASES[name]])
    inputs = [data(shape) for shape in shapes]
    assert verify(made, inputs, threads=(1,)).exact
    native.save(made.traced(), tmp_path / "net.mgt")
    read, plan = native.load(tmp_path / "net.mgt"), compile_plan(made.integer_graph)
    export_qdq(made, tmp_path / "net.onnx")
    exported, qdq = runtime(onnx.load(tmp_path / "net.onnx"), optimised=False), TracedModule.from_graph(made.qdq_graph)
    for x in inputs:
        np.testing.assert_array_equal(read(x).numpy(), made(x).numpy())
        np.testing.assert_array_equal(plan(x)[0], made(x).numpy())
        difference = np.abs(exported(x) - qdq(x).numpy())
        # float sums may fall on the other side of a step; in QDQ files the state of a recurrent layer is not rounded
        assert np.quantile(difference, 0.5) < (5e-3 if name == "tagger" else 1e-5), x.shape


def test_data_that_does_not_fit_is_named():
    make, _ = NETS["pooling"]
    with pytest.raises(CalibrationError, match=r"batch 1, input 'x': expected shape \(batch, 3, height, width\), got"):
        quantize_model(load(make()), [data((1, 3, 8, 8)), np.zeros((1, 4, 8, 8), np.float32)])
