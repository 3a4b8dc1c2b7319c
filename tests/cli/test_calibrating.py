"""`calibrate` writes the statistics that `ptq --statistics` takes."""

import json
import re

import numpy as np
import pytest

from megengine.core.sizes import named
from megengine.core.spec import TensorSpec
from megengine.quantization import Statistics
from megengine.traced_module import TracedModule
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.formats import native
from megengine.traced_module.ir.graph import InternalGraph


@pytest.fixture
def files(tmp_path):
    rng = _write(tmp_path / "net.mgt", 1)
    np.save(tmp_path / "data.npy", rng.normal(size=(12, 3, 6, 6)).astype(np.float32))
    return tmp_path


def _write(path, batch):
    rng = np.random.default_rng(0)
    g = InternalGraph("net")
    x = add_input(g, "x", TensorSpec((batch, 3, 6, 6), np.dtype(np.float32)))
    w = g.constant(rng.normal(size=(4, 3, 3, 3)).astype(np.float32))
    attrs = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    set_outputs(g, [g.apply("relu", g.apply("conv2d", x, w, attrs=attrs, name="conv"), name="out")])
    native.save(TracedModule.from_graph(g), path)
    return rng


@pytest.fixture
def says(run):
    """Runs the command; gives what it prints."""

    def call(*words, code=0):
        done = run(*map(str, words))
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    return call


@pytest.fixture
def calibrate(says, files):
    def call(*words, code=0, data="data.npy"):
        return says("calibrate", files / "net.mgt", "--data", files / data, *words, code=code)

    return call


def test_ptq_with_statistics_writes_the_same_network(files, says, calibrate):
    assert "9 samples" in calibrate("-o", files / "one.stats")
    calibrate("-o", files / "two.stats", "--workers", 2)
    assert (files / "one.stats").read_bytes() == (files / "two.stats").read_bytes()
    assert not (files / "one.stats.part").exists()
    common = ("ptq", files / "net.mgt", "--data", files / "data.npy")
    says(*common, "-o", files / "plain.mgt")
    says(*common, "-o", files / "known.mgt", "--statistics", files / "one.stats")
    says(*common, "-o", files / "many.mgt", "--workers", 2)
    plain, *others = (
        [str(e) for e in native.load(files / f"{n}.mgt").graph.exprs()] for n in ("plain", "known", "many")
    )
    assert all(other == plain for other in others)


BREAKS = """
import numpy as np
passes = []
def read():
    array = np.load({!r}).copy()
    if passes:
        array[7, 0, 0, 0] = np.nan
    passes.append(1)
    return iter(array[:, None])
"""


def test_a_run_that_broke_goes_on(files, calibrate):
    """The data is whole when its digests are taken, and no more when it calibrates."""
    (files / "bad.py").write_text(BREAKS.format(str(files / "data.npy")))
    text = calibrate("-o", files / "one.stats", data="bad.py:read", code=1)
    assert "bad.py:read, batch 7: 1 NaN or infinite value" in text.replace("'", "")
    assert (kept := int(re.search(r"one.stats.part holds (\d+) samples; --resume goes on from there", text)[1])) >= 4
    assert not (files / "one.stats").exists()
    assert f"going on behind {kept} samples" in calibrate("-o", files / "one.stats", "--resume")
    calibrate("-o", files / "whole.stats")
    assert (files / "one.stats").read_bytes() == (files / "whole.stats").read_bytes()


def test_statistics_as_json(files, calibrate):
    result = json.loads(calibrate("-o", files / "one.stats", "--json", "--held-out", 0))
    assert (result["samples"], result["warnings"]) == (12, [])
    assert result["digest"] == Statistics.load(files / "one.stats").model


def test_rows_of_an_open_batch_are_samples(files, says, calibrate):
    calibrate("-o", files / "one.stats")
    _write(files / "open.mgt", named("batch", 4))
    reads = f"    yield from np.split(np.load({str(files / 'data.npy')!r}), [5, 6])"
    (files / "batches.py").write_text(f"import numpy as np\n\n\ndef read():\n{reads}\n")
    seen = Statistics.load(files / "one.stats")
    for data in ("data.npy", "batches.py:read"):
        text = says("calibrate", files / "open.mgt", "--data", files / data, "-o", files / "open.stats", "--overwrite")
        assert "9 samples" in text
        assert Statistics.load(files / "open.stats").samples == seen.samples
    np.save(files / "wide.npy", np.zeros((2, 3, 7, 8), np.float32))
    text = says("calibrate", files / "open.mgt", "--data", files / "wide.npy", "-o", files / "wide.stats", code=1)
    assert "shape (1, 3, 7, 8); expected (batch, 3, 6, 6)" in text


def test_few_or_equal_samples_are_warned_of(files, calibrate):
    assert "the data is one sample" in calibrate("-o", files / "one.stats", "--samples", 1)
    np.save(files / "same.npy", np.repeat(np.load(files / "data.npy")[:1], 5, axis=0))
    assert "all 5 samples of the data are equal" in calibrate("-o", files / "one.stats", data="same.npy")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "one.mgt"), "expected .stats"),
        (("-o", "one.stats", "--resume"), "there is no run to go on with; leave out --resume"),
    ],
)
def test_wrong_options(files, calibrate, words, message):
    words = [files / word if "." in word else word for word in words]
    assert message in calibrate(*words, code=1)


def test_data_without_contents_is_refused(files, calibrate):
    np.save(files / "zeros.npy", np.zeros((3, 3, 6, 6), np.float32))
    text = calibrate("-o", files / "one.stats", data="zeros.npy", code=1)
    assert "so no range can be learnt from them" in text
