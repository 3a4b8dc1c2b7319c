"""The same samples in another order, in other batches or files, with other processes: the same bytes, or a refusal."""

import json

import numpy as np
import pytest
from PIL import Image

from megengine.cli import qat
from tests.helpers.command import call

PICTURES = ("--data", "photos", "--preprocess", "tf,size=16,resize=stretch")
COUNT = 24


@pytest.fixture
def folder(tmp_path, model, monkeypatch):
    """Pictures and arrays of one order in `photos` and x.npy, and of another one in `mixed`, y.npy and batches.py."""
    rng = np.random.default_rng(0)
    (tmp_path / "net.onnx").write_bytes(model.read_bytes())
    x = rng.standard_normal((COUNT, 3, 16, 16)).astype(np.float32)
    order = rng.permutation(COUNT)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", x[order])
    np.save(tmp_path / "x_labels.npy", np.arange(COUNT) % 2)
    np.save(tmp_path / "y_labels.npy", order % 2)
    (tmp_path / "batches.py").write_text(
        "import numpy as np\n\n\ndef read():\n    yield from np.split(np.load('y.npy'), [5, 6, 20])\n"
    )
    for name in ("photos", "mixed"):
        (tmp_path / name).mkdir()
    for i, pixels in enumerate(rng.integers(0, 256, (COUNT, 20, 20, 3), np.uint8)):
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i:02}.png")
        Image.fromarray(pixels).save(tmp_path / "mixed" / f"{order[i]:02}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUNS = {
    "ptq": ("--effort", "balanced"),
    "ptq of 4 bits": ("--precision", "w4a8", "--rounding", "gptaq", "--vary", "--reconstruction", "4",
                      "--distillation", "1"),
    "qat": ("--epochs", "1", "--batch", "8"),
    "qat lsq": ("--epochs", "1", "--batch", "8", "--method", "lsq"),
    "search": ("--effort", "fast", "--min-sqnr", "30"),
}  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_pictures_of_other_names_give_the_same_bytes(run, folder):
    command = run.split()[0]
    call(command, "net.onnx", *PICTURES, *RUNS[run], "-o", "q.mgt")
    more = ("--workers", "3") if command == "ptq" else ()
    assert "the same bytes" in call("replay", "q.mgt", "-o", "again.mgt", "--data", "mixed", *more)


@pytest.mark.parametrize("data", ["y.npy", "batches.py:read"])
@pytest.mark.parametrize("command", ["ptq", "qat"])
def test_arrays_in_another_order_and_in_batches_give_the_same_bytes(command, data, folder):
    words = ("--labels", "x_labels.npy", "--epochs", "1") if command == "qat" else ()
    call(command, "net.onnx", "--data", "x.npy", *words, "-o", "q.mgt")
    places = ("--data", data, *(("--labels", "y_labels.npy") if words else ()))
    assert json.loads(call("replay", "q.mgt", "-o", "again.mgt", *places, "--json"))["same"]


def test_labels_that_are_another_samples_are_refused(folder):
    call("qat", "net.onnx", "--data", "x.npy", "--labels", "x_labels.npy", "--epochs", "1", "-o", "q.mgt")
    said = call("replay", "q.mgt", "-o", "again.mgt", "--data", "y.npy", code=1)
    assert "the samples are the same, and what they are labelled with is not" in said
    call("ptq", "net.onnx", "--data", "x.npy", "-o", "p.mgt")
    assert "labels: ptq made this model, which takes no labels" in call(
        "replay", "p.mgt", "-o", "again.mgt", "--labels", "y_labels.npy", code=1
    )


def test_missing_added_and_changed_samples_are_named(folder):
    call("ptq", "net.onnx", *PICTURES, "-o", "q.mgt")
    again = ("replay", "q.mgt", "-o", "again.mgt", "--data", "mixed")
    (folder / "mixed" / "07.png").rename(folder / "away.png")
    assert "the data differs from what the record was made with: 1 sample of the record is missing (digest " in call(
        *again, code=1
    )
    for name in ("07", "more"):
        Image.new("RGB", (20, 20), "red" if name == "07" else "blue").save(folder / "mixed" / f"{name}.png")
    said = call(*again, code=1)
    assert ": 07.png, more.png are new or changed and 1 sample of the record is missing (digest " in said
    (folder / "away.png").rename(folder / "mixed" / "07.png")
    assert ": more.png is new or changed; give" in call(*again, code=1)
    (folder / "mixed" / "more.png").unlink()
    assert "the same bytes" in call(*again)


def test_a_training_goes_on_with_the_data_in_another_order(folder, monkeypatch):
    words = ("qat", "net.onnx", "--data", "x.npy", "--epochs", "2", "--batch", "8", "-o")
    call(*words, "q.mgt")
    real = qat.save

    def stop(*args):
        real(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(qat, "save", stop)
        call(*words, "again.mgt", code=130)
    (folder / "y.npy").rename(folder / "x.npy")
    call(*words, "again.mgt", "--resume")
    assert (folder / "q.mgt").read_bytes() == (folder / "again.mgt").read_bytes()


def test_a_network_of_several_samples_takes_pictures_in_the_order_of_their_files_digests(folder, little):
    """The network has a batch of 4 which cannot be opened: 24 pictures are six samples."""
    import onnx

    net = onnx.load("net.onnx")
    net.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    mean = onnx.helper.make_node("ReduceMean", ["y"], ["m"], axes=[0], keepdims=1)
    net.graph.node.extend([mean, onnx.helper.make_node("Sub", ["y", "m"], ["z"])])
    net.graph.output[0].name = "z"
    onnx.save(net, "four.onnx")
    call("ptq", "four.onnx", *PICTURES, "-o", "q.mgt")
    assert "the same bytes" in call("replay", "q.mgt", "-o", "again.mgt", "--data", "mixed")


def test_a_generator_that_can_be_read_once_is_refused(folder):
    (folder / "once.py").write_text("import numpy as np\nmade = iter(np.load('x.npy')[:, None])\nread = lambda: made\n")
    said = call("ptq", "net.onnx", "--data", "once.py:read", "-o", "q.mgt", code=1)
    assert "'once.py:read': the first reading gave 24 samples, the next one 0" in said
    assert "a new iterable for each call" in said and not (folder / "q.mgt").exists()
