"""`convert`: files in 16 bits, what is said of their results, and refusals."""

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from megengine.cli.app import group
from megengine.convert.onnx import load
from megengine.traced_module.formats import native as files
from tests.helpers.onnx_runtime import session_of

SOURCE = """
import numpy as np
import megengine.functional as F
import megengine.module as M
from megengine import tensor
from megengine.random import seed

class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = M.Conv2d(3, 4, 3, padding=1), M.Linear(4, 5)

    def forward(self, x):
        return self.fc(F.relu(self.conv(x)).mean(axis=(2, 3)))

def build():
    seed(0)
    return Net(), tensor(np.zeros((1, 3, 8, 8), np.float32))
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "net.py").write_text(SOURCE)

    def call(*arguments):
        return CliRunner().invoke(group, ["convert", f"{tmp_path}/net.py:build", *map(str, arguments)])

    return call


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@pytest.mark.parametrize("suffix", [".mgt", ".onnx"])
def test_files(run, tmp_path, kind, suffix):
    path = tmp_path / f"half{suffix}"
    result = run("--to", kind, "-o", path, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["sqnr_db"] > 35 and facts["agreement"] == 1 and facts["half_bytes"] * 2 == facts["float_bytes"]
    made = files.load(path) if suffix == ".mgt" else load(path)
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[kind]
    assert dtype in {str(n.dtype) for n in made.graph.nodes()}
    assert [str(n.dtype) for n in (*made.graph.inputs, *made.graph.outputs)] == ["float32", "float32"]


def test_float16_runs_elsewhere(run, tmp_path):
    path = tmp_path / "half.onnx"
    assert run("--to", "fp16", "-o", path, "--half-ends").exit_code == 0
    x = np.random.default_rng(0).normal(0, 1, (1, 3, 8, 8)).astype(np.float16)
    session = session_of(path)
    got = session.run(None, {session.get_inputs()[0].name: x})[0]
    want = load(path)(x).numpy()
    assert got.dtype == want.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), atol=2e-3)


def test_bfloat16_is_written_with_operators_that_have_it(run, tmp_path):
    path = tmp_path / "half.onnx"
    assert run("--to", "bf16", "-o", path).exit_code == 0
    model = onnx.load(path)
    assert model.opset_import[0].version == onnx.defs.onnx_opset_version()
    assert {onnx.TensorProto.DataType.Name(t.data_type) for t in model.graph.initializer} >= {"BFLOAT16"}


def test_data_of_the_comparison(run, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(0, 1, (9, 3, 8, 8)).astype(np.float32))
    result = run("--to", "bf16", "-o", tmp_path / "half.mgt", "--data", tmp_path / "x.npy", "--samples", 5)
    assert result.exit_code == 0, result.output
    assert "on 5 batches of" in result.output and "outputs in bfloat16: SQNR" in result.output


def test_refusals(run, tmp_path):
    assert "--preprocess: there is no --data" in run("--to", "bf16", "-o", "x.mgt", "--preprocess", "torch").output
    assert "expected .mgt (our format) or .onnx" in run("--to", "bf16", "-o", "x.tm").output
    assert "'bf8' is not one of 'bf16', 'fp16'" in run("--to", "bf8", "-o", "x.mgt").output
