"""Names, order and sharing of children and tensors, as recorded from MegEngine 1.13; states; hooks."""

import copy
import logging

import numpy as np
import pytest

import megengine.module as M
from megengine.core.errors import OptionError, ShapeError, StateDictError
from megengine.tensor import Parameter, Tensor, tensor


class Shared(M.Module):
    def __init__(self):
        super().__init__()
        self.z = Parameter([1.0])
        self.a = M.Linear(2, 3)
        self.b = M.Linear(2, 3)
        self.b.weight = self.a.weight
        self.c = [self.a]
        self.y = self.z
        self.m = {"k2": M.ReLU(), "k1": M.Linear(1, 1, bias=False)}
        self.seq = M.Sequential(M.Linear(1, 1, bias=False), M.ReLU())

    def forward(self, x):
        return x


def names(entries):
    return [entry[0] for entry in entries]


def test_names_are_megengines():
    net = Shared()
    assert names(net.named_parameters()) == ["a.bias", "a.weight", "b.bias", "m.k1.weight", "seq.0.weight", "y"]
    assert names(net.named_tensors()) == names(net.named_parameters())
    assert names(net.named_modules()) == ["", "a", "b", "m.k1", "m.k2", "seq", "seq.0", "seq.1"]
    assert names(net.named_children()) == ["a", "b", "m.k1", "m.k2", "seq"]
    own_first = ["y", "a.bias", "a.weight", "b.bias", "b.weight", "m.k1.weight", "seq.0.weight"]
    assert list(net.state_dict()) == own_first
    assert list(net.state_dict(prefix="p.")) == [f"p.{name}" for name in own_first]
    assert names(net.named_parameters("q"))[0] == "q.a.bias"
    assert names(net.named_parameters(recursive=False)) == ["y"]
    assert [n for n, _, parent in net.named_tensors(with_parent=True) if parent is net] == ["y"]
    assert next(iter(net.seq.modules(with_parent=True))) == (net.seq, None)
    assert repr(net).splitlines()[1:4] == [
        "  (a): Linear(in_features=2, out_features=3, bias=True)",
        "  (b): Linear(in_features=2, out_features=3, bias=True)",
        "  (c.0): Linear(in_features=2, out_features=3, bias=True)",
    ]


def test_only_tensors_are_tensors_and_keys_may_be_anything():
    net = M.Sequential(M.ReLU())
    net.table = {1: M.Linear(1, 1), ("a", 2): M.ReLU(), None: 5, "x": [Tensor([1.0]), "text"]}
    assert names(net.named_tensors()) == ["table.1.bias", "table.1.weight", "table.x.0"]
    assert names(net.named_buffers()) == ["table.x.0"]
    assert len(list(net.buffers())) == 1
    net.load_state_dict(net.state_dict())


def test_state_dict_refusals_change_nothing(caplog):
    net = Shared()
    before = net.state_dict()
    with pytest.raises(KeyError, match=r"missing \['y'\], unknown \[\]; pass strict=False"):
        net.load_state_dict({k: v * 0 for k, v in before.items() if k != "y"})
    with pytest.raises(StateDictError, match=r"missing \[\], unknown \['zz'\]"):
        net.load_state_dict({**before, "zz": before["y"]})
    with pytest.raises(ShapeError, match=r"y has shape \(3,\); expected \(1,\)"):
        net.load_state_dict({**{k: v * 0 for k, v in before.items()}, "y": np.zeros(3, np.float32)}, strict=False)
    with pytest.raises(OptionError, match="got a list; expected a dict or a callable"):
        net.load_state_dict([1])
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[key])


def test_a_callable_gives_the_values():
    net, asked = Shared(), []

    def value(name, old):
        asked.append(name)
        return None if name == "y" else np.full(old.shape, 2, np.float32)

    with pytest.raises(StateDictError, match=r"missing \['y'\]"):
        net.load_state_dict(value)
    net.load_state_dict(value, strict=False)
    assert asked[:7] == list(net.state_dict())
    assert net.y.numpy() == [1]
    assert (net.seq[0].weight.numpy() == 2).all()


def test_without_strict_what_is_missing_is_logged():
    seen = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())
    logger = logging.getLogger("megengine")
    logger.addHandler(handler)
    try:
        Shared().load_state_dict({"zz": np.zeros(1)}, strict=False)
    finally:
        logger.removeHandler(handler)
    assert "unknown ['zz']" in seen[0]


def test_modes_of_one_module_or_all():
    net = Shared().eval()
    net.train(recursive=False)
    assert net.training
    assert not net.a.training
    net.disable_quantize()
    assert net.seq[0].quantize_disabled


def test_hooks_are_called_in_order_and_leave():
    net = M.Identity()
    first = net.register_forward_pre_hook(lambda m, inputs: (inputs[0] * 2,))
    second = net.register_forward_pre_hook(lambda m, inputs: inputs[0] + 1)
    after = net.register_forward_hook(lambda m, inputs, outputs: outputs * 10)
    assert net(tensor([3.0])).numpy() == [70]
    first.remove()
    first.remove()
    assert net(tensor([3.0])).numpy() == [40]
    second.remove()
    after.remove()
    assert net(tensor([3.0])).numpy() == [3]


def test_copies_are_independent():
    net = Shared()
    other = copy.deepcopy(net)
    assert other.b.weight is other.a.weight
    other.a.weight._reset(tensor(np.zeros((3, 2), np.float32)))
    assert net.a.weight.numpy().any()


def test_batch_norm_refusals():
    with pytest.raises(ValueError, match=r"BatchNorm2d: expected 4D input \(got 3D input\)"):
        M.BatchNorm2d(2)(tensor(np.zeros((1, 2, 3))))
    with pytest.raises(ValueError, match=r"BatchNorm1d: expected 2D or 3D input \(got 4D input\)"):
        M.BatchNorm1d(2)(tensor(np.zeros((1, 2, 3, 4))))
    with pytest.raises(OptionError, match="set track_running_stats"):
        M.BatchNorm2d(2, track_running_stats=False, freeze=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'epsilon'"):
        M.BatchNorm2d(2, epsilon=1)


def test_a_wrong_number_of_kernel_lengths_is_named():
    with pytest.raises(OptionError, match=r"\(1, 2, 3\) has 3 numbers; expected one, or 2"):
        M.Conv2d(1, 1, (1, 2, 3))
    with pytest.raises(OptionError, match="padding_mode is 'wrap'"):
        M.Conv2d(1, 1, 3, padding_mode="wrap")
    with pytest.raises(ShapeError, match="one length for each axis"):
        M.GeneralNorm((2, 3), 1)
    with pytest.raises(ShapeError, match="expected two axes"):
        M.Embedding.from_pretrained(Parameter(np.zeros(3, np.float32)))
    assert M.Embedding.from_pretrained(Parameter(np.zeros((3, 2), np.float32))).freeze
