"""Optimizers: update rules against torch or against formulas in float64, a run of MegEngine's, training to accuracy."""

from pathlib import Path

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import optimizer as optim
from megengine.autodiff import GradManager
from megengine.core.errors import OptionError, ShapeError
from megengine.serialization import load
from megengine.tensor import Parameter, tensor

DATA = Path(__file__).parents[1] / "data" / "megengine"


def parameters(seed=0):
    rng = np.random.default_rng(seed)
    return [Parameter(rng.standard_normal(s).astype(np.float32)) for s in ((3, 4), (5,))]


def give_gradients(params, step):
    rng = np.random.default_rng(100 + step)
    for p in params:
        p.grad = tensor(rng.standard_normal(p.shape).astype(np.float32))


RULES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-4, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.3}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01}),
    ("Adadelta", {"lr": 1.0, "weight_decay": 0.01}),
]


@pytest.mark.parametrize(("name", "options"), RULES)
def test_updates_equal_torchs(name, options):
    torch = pytest.importorskip("torch")
    ours = parameters()
    theirs = [torch.nn.Parameter(torch.from_numpy(p.numpy().copy())) for p in ours]
    mine, reference = getattr(optim, name)(ours, **options), getattr(torch.optim, name)(theirs, **options)
    for step in range(6):
        give_gradients(ours, step)
        for a, b in zip(ours, theirs, strict=True):
            b.grad = torch.from_numpy(a.grad.numpy().copy())
        mine.step().clear_grad()
        reference.step()
        for a, b in zip(ours, theirs, strict=True):
            assert a.grad is None
            np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=2e-5, atol=2e-6)


def formula(name, w, gradients, o):
    """The published rules, in float64."""
    m = v = np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        decay = o.get("weight_decay", 0.0)
        if name == "SGD":
            g = g + decay * w
            m = o.get("momentum", 0) * m + g
            w = w - o["lr"] * (g + o["momentum"] * m if o.get("nesterov") else m)
        else:
            b1, b2 = o.get("betas", (0.9, 0.999))
            g = g + decay * w if name == "Adam" else g
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            update = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + o.get("eps", 1e-8))
            w = w - o["lr"] * (update + (o.get("weight_decay", 0.01) * w if name == "AdamW" else 0))
    return w


@pytest.mark.parametrize(("name", "options"), RULES[:7])
def test_updates_equal_the_formula(name, options):
    params = parameters()
    start, gradients = params[0].numpy().astype(np.float64), []
    optimizer = getattr(optim, name)(params, **options)
    for step in range(5):
        give_gradients(params, step)
        gradients.append(params[0].grad.numpy().astype(np.float64))
        optimizer.step()
    np.testing.assert_allclose(params[0].numpy(), formula(name, start, gradients, options), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), RULES)
def test_learning_rate_zero_changes_nothing_and_state_resumes(name, options):
    still = parameters()
    before = [p.numpy().copy() for p in still]
    frozen = getattr(optim, name)(still, **{**options, "lr": 0.0})
    give_gradients(still, 0)
    frozen.step()
    for p, b in zip(still, before, strict=True):
        np.testing.assert_array_equal(p.numpy(), b)

    whole, halves = parameters(), parameters()
    a, b = getattr(optim, name)(whole, **options), getattr(optim, name)(halves, **options)
    for step in range(4):
        if step == 2:
            state = b.state_dict()
            b = getattr(optim, name)(
                halves, lr=9.0, **({"momentum": 0.5, "nesterov": True} if "nesterov" in options else {})
            )
            b.load_state_dict(state)
        for params, optimizer in ((whole, a), (halves, b)):
            give_gradients(params, step)
            optimizer.step()
    for p, q in zip(whole, halves, strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())


def test_groups_and_parameters_without_gradient():
    params = parameters()
    optimizer = optim.SGD([{"params": params[:1], "lr": 1.0}, {"params": params[1:]}], lr=0.5)
    before = [p.numpy().copy() for p in params]
    params[0].grad = tensor(np.ones((3, 4), np.float32))
    optimizer.step()
    np.testing.assert_array_equal(params[0].numpy(), before[0] - 1)
    np.testing.assert_array_equal(params[1].numpy(), before[1])
    assert [g["params"] for g in optimizer.state_dict()["param_groups"]] == [[0], [1]]


def test_half_precision_parameters_keep_their_dtype():
    p = Parameter(np.ones(3, np.float16))
    p.grad = tensor(np.full(3, 0.5, np.float16))
    optim.Adam([p], lr=0.25).step()
    assert p.dtype == np.float16
    np.testing.assert_allclose(p.numpy(), 0.75, rtol=1e-3)


def test_wrong_arguments():
    params = parameters()
    with pytest.raises(OptionError, match="lr is -1; expected a number at least 0"):
        optim.SGD(params, lr=-1)
    with pytest.raises(OptionError, match=r"beta2 is 1.0; expected a number in \[0, 1\)"):
        optim.Adam(params, lr=1, betas=(0.9, 1.0))
    with pytest.raises(OptionError, match="nesterov needs a momentum"):
        optim.SGD(params, lr=1, nesterov=True)
    with pytest.raises(OptionError, match="no parameters to optimize"):
        optim.SGD([], lr=1)
    with pytest.raises(OptionError, match="cannot optimize a Tensor"):
        optim.SGD([tensor([1.0])], lr=1)
    with pytest.raises(OptionError, match="appears twice"):
        optim.SGD([params[0], params[0]], lr=1)
    with pytest.raises(OptionError, match="expected a dict with 'params'"):
        optim.SGD(params, lr=1).add_param_group({"lr": 1})
    optimizer = optim.Adam(params, lr=1)
    state = optimizer.state_dict()
    with pytest.raises(OptionError, match=r"in the groups are \[2\]; this optimizer has \[1\]"):
        optim.Adam(params[:1], lr=1).load_state_dict(state)
    state["state"][1]["exp_avg"] = np.zeros(7)
    with pytest.raises(ShapeError, match="exp_avg of parameter 1"):
        optimizer.load_state_dict(state)
    with pytest.raises(OptionError, match=r"a group has no \['betas', 'eps'\]; is the state of another kind"):
        optimizer.load_state_dict(optim.SGD(params, lr=1).state_dict())
    with pytest.raises(OptionError, match="lr is tensor float32\\(2,\\); expected a number"):
        optim.SGD(params, lr=tensor([0.1, 0.2]))
    with pytest.raises(KeyError, match="a group is dict; expected a dict with 'params'"):
        optim.SGD([{"lr": 1}], lr=1)
    with pytest.raises(NotImplementedError, match="no update rule"):
        base = optim.Optimizer(params, {"lr": 1})
        give_gradients(params, 0)
        base.step()


def test_schedules():
    params = parameters()
    optimizer = optim.SGD(params, lr=1.0)
    schedule = optim.MultiStepLR(optimizer, [2, 3], gamma=0.5)
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step()
    assert rates == [1.0, 1.0, 0.5, 0.25, 0.25]
    other = optim.MultiStepLR(optim.SGD(params, lr=1.0), [2, 3], gamma=0.5)
    other.load_state_dict(schedule.state_dict())
    other.step(2)
    assert other.optimizer.param_groups[0]["lr"] == 0.5
    with pytest.raises(OptionError, match="rising order"):
        optim.MultiStepLR(optimizer, [3, 2])
    with pytest.raises(OptionError, match="has no initial_lr"):
        optim.MultiStepLR(optim.SGD(params, lr=1.0), [1], current_epoch=3)
    with pytest.raises(OptionError, match="expected an Optimizer"):
        optim.MultiStepLR(params, [1])
    with pytest.raises(OptionError, match=r"missing \['current_epoch', 'gamma', 'milestones'\], unknown \['x'\]"):
        schedule.load_state_dict({"x": 1})
    with pytest.raises(NotImplementedError, match="has no get_lr"):
        optim.LRScheduler(optimizer)


def test_gradient_limits():
    params = parameters()
    give_gradients(params, 0)
    flat = np.concatenate([p.grad.numpy().ravel() for p in params]).astype(np.float64)
    norm = optim.clip_grad_norm(params, 1.0)
    np.testing.assert_allclose(norm, np.linalg.norm(flat), rtol=1e-6)
    clipped = np.concatenate([p.grad.numpy().ravel() for p in params])
    np.testing.assert_allclose(clipped, flat / norm, rtol=1e-4)
    optim.clip_grad_value(params, -0.01, 0.02)
    limits = [(p.grad.numpy().min(), p.grad.numpy().max()) for p in params]
    assert min(lo for lo, _ in limits) == np.float32(-0.01)
    assert max(hi for _, hi in limits) == np.float32(0.02)
    with pytest.raises(OptionError, match="above upper"):
        optim.clip_grad_value(params, 1, 0)
    with pytest.raises(OptionError, match="expected max_norm >= 0"):
        optim.clip_grad_norm(params, -1)


# ------------------------------------------------------------------ training


class Digits(M.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = M.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn1 = M.BatchNorm2d(8)
        self.conv2 = M.Conv2d(8, 8, 3, padding=1, groups=8)
        self.conv3 = M.Conv2d(8, 16, 1)
        self.fc = M.Linear(16 * 4 * 4, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.conv3(self.conv2(F.max_pool2d(x, 2))))
        return self.fc(F.flatten(x, 1))


def pictures(count=600, seed=0):
    """Ten fixed random 8x8 patterns under noise."""
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(99).random((10, 8, 8)) > 0.5
    labels = rng.integers(0, 10, count)
    x = patterns[labels] + 0.3 * rng.standard_normal((count, 8, 8))
    return x[:, None].astype(np.float32), labels.astype(np.int32)


def train(net, optimizer, x, y, epochs, batch=50):
    manager = GradManager().attach(list(net.parameters()))
    losses = []
    for _ in range(epochs):
        for i in range(0, len(x), batch):
            with manager:
                loss = F.cross_entropy(net(tensor(x[i : i + batch])), tensor(y[i : i + batch]))
                manager.backward(loss)
            optimizer.step().clear_grad()
            losses.append(loss.item())
    return losses


def test_a_run_of_megengines_is_repeated():
    """Three steps of Adam on mean(net(x)**2) by MegEngine 1.13: losses, weights and optimizer state."""
    stored, saved = np.load(DATA / "checkpoint.npz"), load(DATA / "checkpoint.pkl")
    net = M.Sequential(M.Linear(4, 3), M.ReLU(), M.Linear(3, 2))
    net.load_state_dict({k.removeprefix("init."): stored[k] for k in stored.files if k.startswith("init.")})
    optimizer = optim.Adam(net.parameters(), lr=0.01)
    manager, losses = GradManager().attach(list(net.parameters())), []
    for _ in range(3):
        with manager:
            loss = F.mean(net(tensor(stored["x"])) ** 2)
            manager.backward(loss)
        optimizer.step().clear_grad()
        losses.append(loss.item())
    np.testing.assert_allclose(losses, stored["losses"], rtol=1e-6)
    for key, value in net.state_dict().items():
        np.testing.assert_allclose(value, saved["state_dict"][key], rtol=1e-5, atol=1e-7)
    state = optimizer.state_dict()
    assert [g.keys() for g in state["param_groups"]] == [g.keys() for g in saved["opt"]["param_groups"]]
    assert state["param_groups"][0]["params"] == saved["opt"]["param_groups"][0]["params"]
    for number, entries in saved["opt"]["state"].items():
        for key, value in entries.items():
            np.testing.assert_allclose(state["state"][number][key], value, rtol=1e-4, atol=1e-9)
    optimizer.load_state_dict(saved["opt"])


@pytest.mark.parametrize(
    "make", [lambda p: optim.SGD(p, lr=0.05, momentum=0.9), lambda p: optim.Adam(p, lr=0.01)], ids=["SGD", "Adam"]
)
def test_a_small_network_learns(make):
    from megengine import random

    random.seed(0)
    net = Digits()
    x, y = pictures()
    losses = train(net, make(net.parameters()), x, y, epochs=6)
    unseen, labels = pictures(300, seed=1)
    net.eval()
    accuracy = (net(tensor(unseen)).numpy().argmax(1) == labels).mean()
    assert losses[0] > 2
    assert accuracy > 0.97


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_the_loss_curve_equals_torchs(name):
    torch = pytest.importorskip("torch")
    nn = torch.nn
    options = {"lr": 0.02, "momentum": 0.9} if name == "SGD" else {"lr": 0.003}
    ours = Digits()
    layers = [
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 16, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)),
    ]
    theirs = nn.Sequential(*layers)
    names = {"conv1": 0, "bn1": 1, "conv2": 4, "conv3": 5, "fc": 8}
    with torch.no_grad():
        for key, value in ours.named_parameters():
            layer, part = key.split(".")
            target = getattr(theirs[names[layer]], part)
            target.copy_(torch.from_numpy(value.numpy().reshape(target.shape).copy()))
    x, y = pictures(200)
    mine = train(ours, getattr(optim, name)(ours.parameters(), **options), x, y, epochs=3)
    reference, expected = getattr(torch.optim, name)(theirs.parameters(), **options), []
    for _ in range(3):
        for i in range(0, len(x), 50):
            loss = nn.functional.cross_entropy(
                theirs(torch.from_numpy(x[i : i + 50])), torch.from_numpy(y[i : i + 50]).long()
            )
            reference.zero_grad()
            loss.backward()
            reference.step()
            expected.append(loss.item())
    np.testing.assert_allclose(mine, expected, rtol=2e-3)


def test_load_digits():
    datasets = pytest.importorskip("sklearn.datasets")
    from megengine import random

    random.seed(0)
    digits = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))  # the file is sorted by writer
    x, y = (digits.images[order] / 8 - 1).astype(np.float32)[:, None], digits.target[order].astype(np.int32)
    net = Digits()
    train(net, optim.Adam(net.parameters(), lr=0.01), x[:1297], y[:1297], epochs=8)
    net.eval()
    assert (net(tensor(x[1297:])).numpy().argmax(1) == y[1297:]).mean() > 0.94


def lamb(w, gradients, *, lr, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0, corrected=True, always=False):
    """You et al. 2020, algorithm 2, in float64."""
    m = v = np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        scale = (1 - b1**t, 1 - b2**t) if corrected else (1, 1)
        r = m / scale[0] / (np.sqrt(v / scale[1]) + eps) + weight_decay * w
        trust = np.linalg.norm(w) / np.linalg.norm(r) if weight_decay or always else 1
        w = w - lr * trust * r
    return w


@pytest.mark.parametrize(
    ("options", "formula_options"),
    [
        ({}, {}),
        ({"weight_decay": 0.1, "eps": 1e-3}, {"weight_decay": 0.1, "eps": 1e-3}),
        ({"bias_correction": False, "weight_decay": 0.01}, {"corrected": False, "weight_decay": 0.01}),
        ({"always_adapt": True, "betas": (0.8, 0.99)}, {"always": True, "b1": 0.8, "b2": 0.99}),
    ],
)
def test_lamb_equals_its_formula(options, formula_options):
    params = parameters()
    start, gradients = params[0].numpy().astype(np.float64), []
    optimizer = optim.LAMB(params, lr=0.1, **options)
    for step in range(5):
        give_gradients(params, step)
        gradients.append(params[0].grad.numpy().astype(np.float64))
        optimizer.step()
    np.testing.assert_allclose(params[0].numpy(), lamb(start, gradients, lr=0.1, **formula_options), rtol=1e-5)


def test_lamb_of_half_precision_keeps_what_rounding_would_lose():
    p = Parameter(np.ones(3, np.float16))
    optimizer = optim.LAMBFp16([p], lr=1e-4)
    for _ in range(20):
        p.grad = tensor(np.ones(3, np.float16))
        optimizer.step()
    assert p.dtype == np.float16
    np.testing.assert_allclose(p.numpy(), 1 - 20e-4, atol=5e-4)
    assert p.numpy()[0] != 1
    again = optim.LAMBFp16([p], lr=1e-4)
    again.load_state_dict(optimizer.state_dict())
    np.testing.assert_allclose(again.state_dict()["state"][0]["param_fp32"], 1 - 20e-4, rtol=1e-6)


@pytest.mark.parametrize("size", [0, 1, optim.optimizer._PART - 1, optim.optimizer._PART, optim.optimizer._PART + 1])
def test_parameters_of_any_size_are_updated_whole(size):
    rng = np.random.default_rng(size)
    start, g = rng.standard_normal(size).astype(np.float32), rng.standard_normal(size).astype(np.float32)
    p = Parameter(start)
    p.grad = tensor(g)
    optim.Adam([p], lr=0.1).step()
    np.testing.assert_allclose(p.numpy(), start - 0.1 * g / (np.abs(g) + 1e-8), rtol=1e-4, atol=1e-5)


def test_an_update_leaves_copies_of_the_old_value():
    p = Parameter(np.ones(4, np.float32))
    old = p.detach()
    p.grad = tensor(np.ones(4, np.float32))
    optim.SGD([p], lr=1.0).step()
    np.testing.assert_array_equal(old.numpy(), 1)
    np.testing.assert_array_equal(p.numpy(), 0)


def test_options_of_a_group_come_first():
    first, second = parameters()
    rule = optim.SGD([{"params": [first], "weight_decay": 0.1}, {"params": second}], lr=0.1, momentum=0.5)
    assert list(rule.param_groups[0]) == ["params", "weight_decay", "lr", "momentum"]  # as in MegEngine
    assert list(rule.param_groups[1]) == ["params", "lr", "momentum", "weight_decay"]
    assert rule.param_groups[1]["params"] == [second]
