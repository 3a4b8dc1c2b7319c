"""Training by the command: exact results, stopping and going on, labels of every kind, misuse."""

import json

import numpy as np
import pytest
from PIL import Image

import megengine.functional as F
import megengine.module as M
from megengine import plan, random
from megengine.cli import qat as command
from megengine.cli import records
from megengine.cli.samples import Index, digest_of
from megengine.quantization import verify
from megengine.tensor import Tensor
from megengine.traced_module import lower, trace_module
from megengine.traced_module.formats import native
from tests.helpers.command import call


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = M.Conv2d(1, 6, 3, bias=False), M.BatchNorm2d(6), M.Linear(6, 2)

    def forward(self, x):
        return self.head(F.mean(F.relu(self.norm(self.conv(x))), axis=(2, 3)))


class Centred(Net):
    """Results of a sample depend on the others, so the batch cannot be opened."""

    def forward(self, x):
        y = super().forward(x)
        return y - F.mean(y, axis=0, keepdims=True)


def save_network(net, size):
    """A graph of ops for one batch as the file that is trained."""
    native.save(lower(trace_module(net.eval(), Tensor(np.zeros((size, 1, 8, 8), np.float32)))), "net.mgt")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Forty pictures, bright ones and dark ones, as files and as arrays, and a network."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 40)
    x = rng.integers(0, 120, (40, 8, 8)) + 120 * labels[:, None, None]
    for i, (picture, label) in enumerate(zip(x, labels, strict=True)):
        place = tmp_path / "photos" / ("bright" if label else "dark")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.astype(np.uint8)).save(place / f"{i:02}.png")
    np.save(tmp_path / "x.npy", ((x[:, None] - 128) / 64).astype(np.float32))
    np.save(tmp_path / "y.npy", labels)
    (tmp_path / "y.txt").write_text("\n".join(map(str, labels)))
    random.seed(0)
    traced = trace_module(Net().eval(), Tensor(np.zeros((1, 1, 8, 8), np.float32)))
    native.save(traced, tmp_path / "net.mgt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def qat(*words, code=0):
    return call("qat", "net.mgt", *words, code=code)


def by_digest(x):
    """Places of samples, smallest digest first."""
    return sorted(range(len(x)), key=lambda i: digest_of((x[i : i + 1],)))


ARRAYS = ("--data", "x.npy", "--lr", "0.02", "--batch", "8", "-o", "q.mgt")


@pytest.mark.parametrize("labels", ["y.npy", "y.txt", None])
def test_the_result_is_exact_and_better(folder, labels):
    words = (*ARRAYS, "--epochs", "6", *(() if labels is None else ("--labels", labels)))
    result = json.loads(qat(*words, "--json"))
    assert len(result["epochs"]) == 6
    assert result["epochs"][-1]["loss"] < result["epochs"][0]["loss"]
    assert result["best"] >= 0.75
    assert result["best"] == max(result["best"], *(one["score"] for one in result["epochs"]))
    assert not (folder / "q.mgt.training").exists()
    trained, x = native.load(folder / "q.mgt"), np.load("x.npy")
    assert verify(trained, [x[:1]]).exact
    if labels is not None:
        run = plan.compile(trained)
        right = [np.asarray(run(x[i : i + 1])).argmax() == np.load("y.npy")[i] for i in by_digest(x)[:8]]
        assert np.mean(right[::2]) == result["best"]
        assert np.mean(right[1::2]) == result["held_out"]
        counts = json.loads(trained.graph.metadata[records.METADATA])["counts"]
        assert (counts["training"], counts["choosing"], counts["held out"]) == (32, 4, 4)


@pytest.mark.parametrize(
    ("count", "sizes", "said"),
    [(40, (32, 4, 4), "4 samples that neither trained nor chose"),
     (8, (6, 1, 1), "1 sample that neither trained nor chose"),
     (5, (5, 5, 5), "5 samples that chose it too: give more")],
)  # fmt: skip
def test_who_trains_chooses_and_scores(folder, count, sizes, said):
    x, y = np.load("x.npy")[:count], np.load("y.npy")[:count]
    index = Index(tuple(digest_of((one[None],)) for one in x), str)
    roles = [command.Labelled([x], y, index).part(role) for role in ("train", "choose", "score")]
    assert tuple(len(targets) for _, targets in roles) == sizes
    np.save("some.npy", x)
    assert said in qat("--data", "some.npy", "-o", "q.mgt", "--epochs", "1")


def test_one_sample_and_equal_samples_are_a_warning(folder):
    x = np.load("x.npy")
    for name, array, said in (("one", x[:1], "is one sample"), ("same", x[[0] * 5], "all 5 samples of the data are")):
        np.save(f"{name}.npy", array)
        assert said in qat("--data", f"{name}.npy", "-o", f"{name}.mgt", "--epochs", "1")


def test_equal_scores_are_told_apart_by_their_loss(folder):
    """Of 2 samples that choose all are right from the start: the epoch of least loss is written, not the start."""
    said = json.loads(qat(*ARRAYS, "--labels", "y.npy", "--epochs", "4", "--json"))
    assert [row["score"] for row in said["epochs"]] == [1] * 4
    losses = [row["loss"] for row in said["epochs"]]
    assert said["best_epoch"] == losses.index(min(losses)) + 1


def test_training_that_gains_nothing_is_said(folder):
    said = qat(*ARRAYS, "--labels", "y.npy", "--lr", "1e3", "--epochs", "1", "--seed", "1")
    assert "no epoch scores above the network before training; another --lr" in said
    assert said.splitlines()[-2].startswith("no epoch gained, so the network before training is written: top-1")


@pytest.mark.parametrize("of_calls", [True, False])
def test_a_network_takes_the_whole_batch_of_a_step(folder, of_calls):
    """Whose samples do not depend on each other, whatever batch it was captured with."""
    if not of_calls:
        save_network(Net(), 1)
    assert "at once" not in qat(*ARRAYS, "--epochs", "1")
    integer, x = native.load("q.mgt"), np.load("x.npy")
    one = [integer(Tensor(x[i : i + 1])).numpy() for i in range(3)]
    assert (integer(Tensor(x[:3])).numpy() == np.concatenate(one)).all()


def test_another_network_keeps_its_batch_which_is_said(folder):
    save_network(Centred(), 2)
    said = qat(*ARRAYS, "--epochs", "1")
    assert "takes 2 samples at once, so a step of 8 takes 4 calls" in said


def test_too_few_samples_for_the_networks_batch(folder):
    save_network(Centred(), 8)
    message = qat(*ARRAYS, code=1)
    assert "the network takes 8 samples at once, there are 4 samples; give more" in message


class Dense(M.Module):
    """Two results of very different power, neither with classes."""

    def __init__(self):
        super().__init__()
        self.one, self.two = M.Conv2d(1, 6, 3, padding=1), M.Conv2d(6, 2, 1)

    def forward(self, x):
        y = F.relu(self.one(x))
        return self.two(y), F.mean(y, axis=(1, 2, 3)) * 1000


class Chosen(Dense):
    def forward(self, x):
        return F.argmax(super().forward(x)[0], axis=1)


def test_results_that_are_no_classes_are_learnt_as_they_are(folder):
    native.save(trace_module(Dense().eval(), Tensor(np.zeros((1, 1, 8, 8), np.float32))), "net.mgt")
    float_net, x = native.load("net.mgt"), np.load("x.npy")
    result = json.loads(qat(*ARRAYS[:2], "--lr", "0.001", "-o", "q.mgt", "--epochs", "3", "--json"))
    assert result["score"] == "SQNR of the results" and result["epochs"][-1]["loss"] < 0.1
    scored = x[by_digest(x)[1:8:2]]  # of the eight held out, the second, the fourth and so on
    trained = native.load("q.mgt")
    pairs = [(a.numpy(), b.numpy()) for y in scored for a, b in zip(trained(y[None]), float_net(y[None]), strict=True)]
    noise = [sum(np.sum((a - b) ** 2.0) for a, b in pairs[i::2]) for i in range(2)]
    power = [np.sum(np.float64(float_net(x)[i].numpy()) ** 2) / len(x) for i in range(2)]
    wanted = sum(np.sum(b**2.0) / p for i, p in enumerate(power) for _, b in pairs[i::2])
    expected = 10 * np.log10(wanted / sum(n / p for n, p in zip(noise, power, strict=True)))
    assert result["held_out"] == pytest.approx(expected, abs=0.01) and expected > 25
    assert "SQNR of the results" in qat(*ARRAYS[:2], "-o", "q.mgt", "--epochs", "1", "--overwrite")


@pytest.mark.parametrize(
    ("network", "words", "message"),
    [
        (Chosen, (), "qat: the network has no float result with one row for each sample ("),
        (
            Dense,
            ("--labels", "y.npy"),
            "--labels y.npy: the first result has the shape (samples, 2, 8, 8); expected (samples, classes)",
        ),
        (
            Net,
            ("--labels", "many.npy"),
            "--labels many.npy: sample 4 has class 7, and the network gives 2 classes; expected whole numbers from 0",
        ),
    ],
)
def test_results_that_cannot_be_learnt(folder, network, words, message):
    np.save("many.npy", np.where(np.arange(40) == 3, 7, 0))
    native.save(trace_module(network().eval(), Tensor(np.zeros((1, 1, 8, 8), np.float32))), "net.mgt")
    assert message in qat(*ARRAYS, *words, code=1)


def test_the_page_tells_epochs_values_and_the_check(folder):
    words = (*ARRAYS, "--labels", "y.npy", "--epochs", "2", "--rule", "op:mean=w8a16", "--report", "q.html")
    assert "wrote q.mgt, q.html" in qat(*words)
    page = (folder / "q.html").read_text()
    for part in ("neither trained nor chose", "<h3>Epochs, on the samples that choose</h3>",
                 ">before</td>", "exact: specification", "Every value that both have",
                 "Graph of the integer network", "Compiled plan", "op:mean=w8a16", "data-node="):  # fmt: skip
        assert part in page, part


def test_pictures_in_folders_of_their_classes(folder):
    words = ("--data", "photos", "--preprocess", "mnist,size=8", "--labels", "folders", "-o", "q.mgt", "--epochs", "1")
    assert "top-1" in qat(*words)
    assert "megengine.preprocess" in native.load(folder / "q.mgt").graph.metadata


def interrupted_after(monkeypatch, epochs):
    """The command is interrupted when so many epochs are done."""
    plain = command.Training.run_epoch

    def run_epoch(self, *args, **kwargs):
        if self.epoch == epochs:
            raise KeyboardInterrupt
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(command.Training, "run_epoch", run_epoch)
    return lambda: monkeypatch.setattr(command.Training, "run_epoch", plain)


@pytest.mark.parametrize("method", ["ste", "lsq"])
def test_an_interrupted_run_goes_on_to_the_same_bytes(folder, method, monkeypatch):
    words = (*ARRAYS, "--labels", "y.npy", "--epochs", "3", "--method", method)
    qat(*words)
    wanted = (folder / "q.mgt").read_bytes()
    (folder / "q.mgt").unlink()
    undo = interrupted_after(monkeypatch, 2)
    said = qat(*words, code=130)
    assert "q.mgt.training holds the training; --resume goes on from its last epoch" in said
    assert not (folder / "q.mgt").exists()
    undo()
    assert [one["epoch"] for one in json.loads(qat(*words, "--resume", "--json"))["epochs"]] == [1, 2, 3]
    assert (folder / "q.mgt").read_bytes() == wanted
    call("replay", "q.mgt", "-o", "again.mgt")


def test_resuming_something_else(folder, monkeypatch):
    words = (*ARRAYS, "--labels", "y.npy", "--epochs", "3")
    assert "--resume: there is no 'q.mgt.training'" in qat(*words, "--resume", code=1)
    interrupted_after(monkeypatch, 1)
    qat(*words, code=130)
    assert "training began with other settings (lr 0.02, now 0.5)" in qat(*words, "--lr", "0.5", "--resume", code=1)
    assert "was made with another method" in qat(*words, "--method", "lsq", "--resume", code=1)
    (folder / "q.mgt.training").write_bytes(b"no state")
    assert "is no state of training" in qat(*words, "--resume", code=1)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("short.npy", "--labels short.npy: 3 labels for 40 samples; expected one for each"),
        ("x.npy", "expected one whole number for each sample"),
        ("words.txt", "line 1: 'cat' is no class; expected whole numbers"),
        ("shor.npy", "no such file; did you mean 'short.npy'?"),
        ("folders", "data 'x.npy' is no folder of pictures"),
    ],
)
def test_wrong_labels(folder, labels, message):
    np.save("short.npy", np.arange(3))
    (folder / "words.txt").write_text("cat\ndog\n")
    assert message in qat(*ARRAYS, "--labels", labels, code=1)


def test_labels_of_pictures_by_their_paths(folder):
    """The file that `evaluate` takes: a path and a class a line, in any order."""
    pictures = sorted(path.relative_to(folder / "photos").as_posix() for path in (folder / "photos").rglob("*.png"))
    lines = [f"{name},{int(name.startswith('dark'))}" for name in reversed(pictures)]
    (folder / "y.csv").write_text("path,class\n" + "\n".join(lines))
    words = ("--data", "photos", "--preprocess", "mnist,size=8", "--epochs", "1", "--json", "-o")
    by_path = json.loads(qat(*words, "a.mgt", "--labels", "y.csv"))
    by_folder = json.loads(qat(*words, "b.mgt", "--labels", "folders"))
    assert by_path["epochs"] == by_folder["epochs"]
    (folder / "y.csv").write_text("\n".join(lines[1:]))
    assert f"no line for 1 picture of 'photos'; first: '{pictures[-1]}'" in qat(
        *words[:-2], "-o", "a.mgt", "--labels", "y.csv", code=1
    )
    (folder / "y.csv").write_text("\n".join(f"{line} 3" for line in lines))
    assert "sample 1 has (0, 3); expected one class each" in qat(
        *words[:-2], "-o", "a.mgt", "--labels", "y.csv", code=1
    )


def test_fewer_labels_than_pictures(folder):
    np.save("short.npy", np.zeros(3, np.int64))
    words = ("--data", "photos", "--preprocess", "mnist,size=8", "--labels", "short.npy", "-o", "q.mgt")
    assert "--labels short.npy: 3 labels for 40 samples; expected one for each" in qat(*words, code=1)


def test_pictures_without_a_folder_of_their_class(folder):
    (folder / "photos" / "dark").rename(folder / "few")
    words = ("--data", "few", "--preprocess", "mnist,size=8", "--labels", "folders", "-o", "q.mgt")
    assert "lies in 'few' itself; expected a folder for each class" in qat(*words, code=1)


def test_data_without_samples(folder):
    (folder / "make.py").write_text("def data():\n    return []\n")
    assert "it is empty; expected samples to train with" in qat("--data", "make.py:data", "-o", "q.mgt", code=1)
