"""Steps of training that are recorded on a GPU and replayed: the numbers of the steps as they are written."""

import functools

import numpy as np
import pytest
from emulated_gpu import LaunchError
from gpu_calls import Learner, move
from recording_gpu import RecordingGpu

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import jit, optimizer
from megengine.amp import autocast
from megengine.autodiff import GradManager
from megengine.core.errors import DeviceError
from megengine.kernels.cuda.runtime import installed

# Constants of repeated calls stay on the device on which they were made, so all tests here have one device, and batches
# of sizes that others do not have.
ROWS, FEWER = 13, 11


@functools.cache
def device():
    """One for the process: tests of other files may run between these."""
    return RecordingGpu()


@pytest.fixture(autouse=True, scope="module")
def gpu():
    with installed(device()) as runtime:
        yield runtime


class Trainer:
    """A small network with its optimizer on the GPU; `runs` counts how often Python runs a step."""

    def __init__(self, rule, *, replay, layers=()):
        mge.random.seed(3)
        self.net = move(
            M.Sequential(M.Linear(6, 8), M.BatchNorm1d(8), M.ReLU(), *layers, M.Linear(8, 3)).train(), "gpu0"
        )
        self.rule = rule([*self.net.parameters()])
        self.gm, self.runs = GradManager().attach([*self.net.parameters()]), 0
        self.step = jit.trace(self._step, replay=replay)

    def _step(self, x, y):
        self.runs += 1
        with self.gm:
            loss = F.nn.cross_entropy(self.net(x), y)
            self.gm.backward(loss)
        self.rule.step().clear_grad()
        return {"loss": loss, "kind": "entropy"}

    def values(self):
        return [t.numpy() for t in (*self.net.parameters(), *self.net.buffers())]


def batch(k, rows=ROWS):
    rng = np.random.default_rng(k)
    x, y = rng.standard_normal((rows, 6)).astype(np.float32), rng.integers(0, 3, rows).astype(np.int32)
    return mge.tensor(x, device="gpu0"), mge.tensor(y, device="gpu0")


def pair(rule, **options):
    return Trainer(rule, replay=False, **options), Trainer(rule, replay=True, **options)


def alike(written, replayed):
    for a, b in zip(written.values(), replayed.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def both(written, replayed, data):
    """One step of both; the losses are equal."""
    a, b = written.step(*data), replayed.step(*data)
    assert a["kind"] == b["kind"] and b["loss"].device == "gpu0"
    np.testing.assert_array_equal(a["loss"].numpy(), b["loss"].numpy())
    return b["loss"]


RULES = {
    "sgd": lambda p: optimizer.SGD(p, lr=0.1),
    "momentum": lambda p: optimizer.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: optimizer.Adam(p, lr=0.01),
    "adamw": lambda p: optimizer.AdamW(p, lr=0.01, weight_decay=0.1),
}


def test_a_step_is_recorded_at_the_fourth_call():
    """No other trainer has made the calls of these sizes before."""
    trainer = Trainer(RULES["sgd"], replay=True)
    for k in range(6):
        trainer.step(*batch(k, 17))
    assert trainer.runs == 4


@pytest.mark.parametrize(
    "name", [*("adam", "momentum"), *(pytest.param(n, marks=pytest.mark.slow) for n in ("sgd", "adamw"))]
)
def test_numbers_are_those_of_the_steps_as_written(name):
    """Rates change, and the corrections of Adam with each step."""
    written, replayed = pair(RULES[name])
    losses = []
    for k in range(7):
        for one in (written, replayed):
            one.rule.param_groups[0]["lr"] = 0.1 / (k + 1)
        losses.append(both(written, replayed, batch(k)))
    alike(written, replayed)
    assert (written.runs, replayed.runs) == (7, 4)
    assert len({float(loss.item()) for loss in losses}) == 7  # results of earlier calls stay


@pytest.mark.slow
def test_a_network_of_convolutions():
    written, other = (Learner("gpu0", batch=3) for _ in range(2))
    replayed = other.replayed()
    for _ in range(6):
        np.testing.assert_array_equal(written.step().numpy(), replayed().numpy())


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 1024])
def test_random_numbers_are_new_at_each_replay(times):
    """Few come from main memory, many are made on the GPU."""

    class Noise(M.Module):
        def forward(self, x):
            x = x + mge.random.normal(size=x.shape) * 0.1
            return F.dropout(F.concat([x] * times, axis=0), 0.5)[: len(x)]

    trainers = pair(RULES["sgd"], layers=(Noise(),))
    mge.set_default_device("gpu0")  # a fixture sets it back
    losses = []
    for one in trainers:
        mge.random.seed(11)
        losses.append([one.step(*batch(0))["loss"].item() for _ in range(7)])
    assert losses[0] == losses[1] and len(set(losses[0])) == 7
    assert trainers[1].runs == 4


class Averaging(Trainer):
    """In half precision, with limited gradients; the step keeps averages of the parameters."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.means = [mge.tensor(p.numpy(), device="gpu0") for p in self.net.parameters()]

    def _step(self, x, y):
        self.runs += 1
        with self.gm, autocast(low_prec_dtype="float16"):
            loss = F.nn.cross_entropy(self.net(x), y)
            self.gm.backward(loss)
        optimizer.clip_grad_norm(self.net.parameters(), 0.5)
        self.rule.step().clear_grad()
        for mean, p in zip(self.means, self.net.parameters(), strict=True):
            mean._reset(mean * 0.9 + p * 0.1)
        return {"loss": loss, "kind": "entropy"}


@pytest.mark.slow
def test_halves_limits_and_averages():
    trainers = [Averaging(RULES["adam"], replay=replay) for replay in (False, True)]
    for k in range(7):
        both(*trainers, batch(k))
    alike(*trainers)
    for a, b in zip(*(t.means for t in trainers), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert trainers[1].runs == 4


@pytest.mark.slow
def test_calls_of_other_kinds_stand_between():
    """The last batch of an epoch is smaller: both kinds are recorded, and change the same parameters."""
    written, replayed = pair(RULES["momentum"])
    for k in range(12):
        both(written, replayed, batch(k, FEWER if k % 2 else ROWS))
    alike(written, replayed)
    assert replayed.runs == 8


@pytest.mark.slow
def test_the_network_may_be_used_between_replays():
    written, replayed = pair(RULES["momentum"])
    for k in range(7):
        both(written, replayed, batch(k))
        outs = []
        for one in (written, replayed):
            one.net.eval()
            outs.append(one.net(batch(9)[0]).numpy())
            one.net.train()
        np.testing.assert_array_equal(*outs)


def test_what_was_taken_from_a_parameter_stays():
    written, replayed = pair(RULES["sgd"])
    for k in range(5):
        both(written, replayed, batch(k))
    weight = next(iter(replayed.net.parameters()))
    old, before = weight.detach(), weight.numpy()
    for k in range(5, 11):
        both(written, replayed, batch(k))
        np.testing.assert_array_equal(old.numpy(), before)
    alike(written, replayed)


@pytest.mark.slow
def test_changes_from_outside_hold():
    written, replayed = pair(RULES["adam"])
    for k in range(5):
        both(written, replayed, batch(k))
    other = Trainer(RULES["adam"], replay=False)
    for one in (written, replayed):  # parameters and states of another run, then other options
        one.net.load_state_dict({name: value * 2 for name, value in other.net.state_dict().items()})
        one.net.to("gpu0")
    for k in range(5, 8):
        both(written, replayed, batch(k))
    saved = written.rule.state_dict()
    for one in (written, replayed):
        one.rule.load_state_dict(saved)
    for k in range(8, 14):
        both(written, replayed, batch(k))
    for one in (written, replayed):
        one.rule.param_groups[0]["betas"] = (0.5, 0.9)
        one.rule.param_groups[0]["weight_decay"] = 0.1
    for k in range(14, 16):
        both(written, replayed, batch(k))
    alike(written, replayed)


CASES = {
    "a value is read": lambda own, x: float(x.sum().item()),
    "a copy from main memory": lambda own, x: x + mge.tensor(np.arange(6, dtype=np.float32), device="gpu0"),
    "outlive it": lambda own, x: own.append(x * 2),
}


@pytest.mark.parametrize("words", CASES)
def test_what_cannot_be_recorded_runs_as_written(words):
    kept, runs = [], []

    def call(x):
        runs.append(x)
        return CASES[words](kept, x)

    traced, x = jit.trace(call, replay=True), batch(0)[0]
    traced(x)
    traced(x)
    with pytest.warns(UserWarning, match=words):
        traced(x)
    for _ in range(3):
        traced(x)
    assert len(runs) == 6


def test_indices_beside_labels_are_kept(gpu):
    """Under autocast functions run as Python: those of each sample were copied at every call, which waits."""
    x, y = batch(0)
    with autocast(low_prec_dtype="float16"):
        F.nn.cross_entropy(x, y)
        with gpu.watched() as found:
            loss = F.nn.cross_entropy(x, y)
    assert found == []
    np.testing.assert_allclose(loss.numpy(), F.nn.cross_entropy(x.to("cpu0"), y.to("cpu0")).numpy(), rtol=1e-5)


def test_gradients_that_stay_are_not_recorded():
    trainer = Trainer(RULES["sgd"], replay=True)
    trainer.rule.clear_grad = lambda: None
    for k in range(2):
        trainer.step(*batch(k))
    with pytest.warns(UserWarning, match="clear_grad"):
        trainer.step(*batch(2))
    for k in range(3, 6):
        trainer.step(*batch(k))
    assert trainer.runs == 6


def test_a_recording_that_fails_leaves_nothing_behind(monkeypatch):
    """The device refuses a launch while it records: the call is computed as it is written, once."""
    written, replayed = pair(RULES["adam"])
    start = RecordingGpu.start

    def refusing(self, program, kernel, *more):
        if self.tape is not None and kernel == "cuda_copied":
            raise DeviceError("gpu0: the launches cannot be recorded: operation not permitted")
        start(self, program, kernel, *more)

    monkeypatch.setattr(RecordingGpu, "start", refusing)
    for k in range(6):
        both(written, replayed, batch(k))
    alike(written, replayed)
    assert replayed.runs == 7  # the fourth call twice


def test_a_value_from_main_memory_has_a_place_of_its_own(gpu):
    """What a recording frees goes to what asks next: a launch wrote over the table that a later one reads."""
    x = mge.tensor(np.arange(6, dtype=np.float32), device="gpu0")._storage()

    def work():
        gpu.duplicate(x)
        first = gpu.table(np.full(6, 7, np.float32))
        gpu.duplicate(x)
        return [gpu.duplicate(gpu.table(np.full(6, 8, np.float32))), gpu.duplicate(first)]

    recording = gpu.record(work, ready=True)
    for _ in range(2):
        recording.replay()
        assert [{*a.numpy()} for a in recording.outputs] == [{8}, {7}]


def test_a_recording_keeps_what_it_copies(gpu):
    """Copies and zeros name memory, as launches do."""
    outside = [gpu.upload(np.ones(9, np.float32)) for _ in range(2)]

    def work():
        gpu.clear(outside[0])
        return [gpu.duplicate(outside[1])]

    recording = gpu.record(work, ready=True)
    assert {id(array.owner) for array in outside} <= recording.named
    outside.clear()
    recording.replay()
    np.testing.assert_array_equal(recording.outputs[0].numpy(), np.ones(9))


def test_the_emulated_gpu_refuses_a_replay_on_memory_that_is_gone(gpu):
    """As the real one: a graph knows addresses alone."""
    outside = [gpu.upload(np.ones(9, np.float32))]
    recording = gpu.record(lambda: [gpu.duplicate(outside[0])], ready=True)
    outside.clear()
    recording.kept.clear()
    with pytest.raises(LaunchError, match="memory that was freed"):
        recording.replay()


def test_the_processor_runs_functions_as_written():
    runs = []
    double = jit.trace(lambda x: runs.append(x) or x * 2, replay=True)
    for _ in range(5):
        np.testing.assert_array_equal(double(mge.tensor([1.0, 2.0], device="cpu0")).numpy(), [2, 4])
    assert len(runs) == 5
