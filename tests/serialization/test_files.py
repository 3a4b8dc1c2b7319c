"""save and load: files of MegEngine 1.13 against the arrays it printed, round trips, refusals, damage."""

# pyright: reportArgumentType=false

import io
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

import megengine.module as M
from megengine.core.dtype import bfloat16, qint8, qint32, quint8
from megengine.core.errors import DTypeError, FileFormatError, OptionError
from megengine.serialization import load, save
from megengine.tensor import Parameter, Tensor, tensor
from megengine.traced_module import trace_module

DATA = Path(__file__).parents[1] / "data" / "megengine"


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv = M.Conv2d(4, 4, 3, groups=2)
        self.blocks = [M.Linear(3, 2), {"bn": M.BatchNorm2d(4)}]
        self.tied = self.conv.weight

    def forward(self, x):
        return self.blocks[1]["bn"](self.conv(x))


class Plain:
    def __init__(self, value):
        self.value = value


def test_checkpoints_hold_traced_modules_and_layers_that_were_traced():
    """MegEngine 1.13 saved {"net": traced, "epoch": 3, "layers": [net.fc, net.act]} in one file."""
    found = load(DATA / "checkpoint_of_traced.pkl")
    assert (list(found), found["epoch"]) == (["net", "epoch", "layers"], 3)
    assert found["net"](tensor([[3.0, 1.0], [0.0, 5.0]])).numpy().tolist() == [[1.0], [0.0]]
    assert [repr(layer) for layer in found["layers"]] == ["Linear(in_features=2, out_features=1, bias=True)", "ReLU()"]
    assert found["layers"][0](tensor([[0.0, 5.0]])).item() == -10.0


def test_traced_modules_are_saved_beside_other_values():
    x = tensor([[3.0, 1.0], [0.0, 5.0]])
    nets = [trace_module(M.Sequential(*layers), x) for layers in ((M.Linear(2, 3), M.ReLU()), (M.Sigmoid(),))]
    layer, array, file = M.Linear(2, 2), np.arange(5000.0), io.BytesIO()
    save(
        {"net": nets[0], "both": [*nets, nets[0]], "layer": layer, "weights": nets[0].state_dict(), "big": array}, file
    )
    file.seek(0)
    found = load(file)
    assert list(found) == ["net", "both", "layer", "weights", "big"]
    assert found["both"][0] is found["both"][2] is found["net"]
    for again, net in zip(found["both"][:2], nets, strict=True):
        np.testing.assert_array_equal(again(x).numpy(), net(x).numpy())
        assert str(again.graph) == str(net.graph)
    np.testing.assert_array_equal(found["layer"](x).numpy(), layer(x).numpy())
    np.testing.assert_array_equal(found["weights"]["0.weight"], nets[0].state_dict()["0.weight"])
    np.testing.assert_array_equal(found["big"], array)


@pytest.mark.parametrize("state", [{}, {"module": ("megengine.module.linear", "Nothing"), "state": {}}, None])
def test_layers_of_traced_modules_that_are_damaged(state):
    name = b"cmegengine.traced_module.serialization\n_ModuleState\n"
    content = b"\x80\x04" + name + b")\x81" + pickle.dumps(state, 2)[2:-1] + b"b."
    with pytest.raises(FileFormatError, match="_ModuleState has unexpected contents"):
        load(io.BytesIO(content))


def test_tensors_of_every_dtype():
    tensors, expected = load(DATA / "tensors.pkl"), np.load(DATA / "tensors.npz")
    for name, value in tensors.items():
        assert type(value) is (Parameter if name == "param" else Tensor)
        actual = value.numpy().astype(np.float32) if name == "bf16" else value.numpy()
        np.testing.assert_array_equal(actual, expected[name], err_msg=name)
    assert tensors["bf16"].dtype == bfloat16
    assert tensors["qint8"].dtype == qint8(0.05)
    assert tensors["quint8"].dtype == quint8(0.05, 128)
    assert tensors["qint32"].dtype == qint32(0.001)
    saved = tensors["with_qparams"].qparams
    assert (saved.mode.name, saved.dtype_meta.name) == ("SYMMERTIC", "qint8")
    assert saved.scale.numpy() == np.float32(0.1)


def test_a_pickled_module_gives_its_outputs():
    net, expected = load(DATA / "module.pkl").eval(), np.load(DATA / "module.npz")
    assert type(net) is M.Sequential
    np.testing.assert_allclose(net(tensor(expected["in.0"])).numpy(), expected["out"], rtol=1e-6)


def test_state_dicts_and_checkpoint():
    checkpoint, expected = load(DATA / "checkpoint.pkl"), np.load(DATA / "checkpoint.npz")
    assert checkpoint["epoch"] == 3
    for key, value in checkpoint["state_dict"].items():
        np.testing.assert_array_equal(value, expected[f"final.{key}"])
    state = load(DATA / "call_mix.state.pkl")
    assert next(iter(state)) == "gain"
    assert state["nest.1.0.0.running_var"].shape == (8,)
    quantized = load(DATA / "res_fused_q.state.pkl")["block1.conv1.weight"]
    assert quantized.dtype.metadata["mgb_dtype"]["name"] == "QuantizedS8"


def everything():
    rng = np.random.default_rng(0)
    array = rng.standard_normal((2, 3)).astype(np.float32)
    return {
        "f64": array.astype(np.float64),
        "transposed": array.T,
        "big": array.astype(">f4"),
        "bf16": array.astype(bfloat16),
        "flags": np.array([True, False]),
        "empty": np.zeros((0, 2), np.int64),
        "scalar": np.float32(1.5),
        "numbers": [1, -(2**70), 1.5, True, None, "täxt\n", b"\0\1", (1, (2,)), {3}],
        "tensor": tensor(array),
        "quantized": Tensor(np.arange(4, dtype=np.int8), dtype=qint8(0.5)),
        "ordered": OrderedDict(b=1, a=2),
        5: "number as key",
    }


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, Tensor):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    elif isinstance(a, np.ndarray):
        assert a.dtype.newbyteorder("=") == b.dtype
        np.testing.assert_array_equal(a, b)
    else:
        assert a == b


def test_round_trip(tmp_path):
    value = everything()
    assert save(value, tmp_path / "a.pkl") == tmp_path / "a.pkl"
    assert_same(value, load(tmp_path / "a.pkl"))
    buffer = io.BytesIO()
    save(value, buffer)
    buffer.seek(0)
    assert_same(value, load(buffer))


@pytest.mark.filterwarnings("ignore:numpy.core")
def test_what_we_write_is_an_ordinary_pickle(tmp_path):
    value = {k: v for k, v in everything().items() if k not in ("bf16", "tensor", "quantized")}
    save(value, tmp_path / "a.pkl")
    with (tmp_path / "a.pkl").open("rb") as file:
        assert_same(value, pickle.load(file))


class Filling(Net):
    def __setstate__(self, state):
        raise AssertionError("code of the class runs")


def test_classes_that_need_leave(tmp_path, monkeypatch):
    save(Filling(), tmp_path / "net.pkl")
    with pytest.raises(FileFormatError, match=r"Filling'.*load\(file, allow=\[TheClass\]\)"):
        load(tmp_path / "net.pkl")
    save(Net(), tmp_path / "net.pkl")
    monkeypatch.delitem(globals(), "Net")
    with pytest.raises(FileFormatError, match=r"Net'.*load\(file, allow=\[TheClass\]\)"):
        load(tmp_path / "net.pkl")


@pytest.mark.parametrize("options", [{}, {"allow": [Net]}], ids=["imported", "allowed"])
def test_modules_of_own_classes(tmp_path, options):
    net = Net().eval()
    save(net, tmp_path / "net.pkl")
    again = load(tmp_path / "net.pkl", **options)
    assert type(again) is Net
    assert again.tied is again.conv.weight
    assert not again.conv.training
    x = tensor(np.random.default_rng(0).standard_normal((1, 4, 5, 5)).astype(np.float32))
    np.testing.assert_array_equal(again(x).numpy(), net(x).numpy())


def test_unsafe_is_never_implied(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Plain(3), 4))
    with pytest.raises(FileFormatError, match="Plain"):
        load(tmp_path / "a.pkl")
    assert load(tmp_path / "a.pkl", allow=[Plain]).value == 3
    with pytest.raises(OptionError, match="expected classes"):
        load(tmp_path / "a.pkl", allow=["Plain"])


def test_what_cannot_be_saved_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.pkl"
    save([1], path)
    for wrong, message in [
        ({"f": print}, "cannot write a builtin_function"),
        (np.array([object()]), "an array of object"),
    ]:
        with pytest.raises(DTypeError, match=message):
            save([2, wrong], path)
    cycle: list = []
    cycle.append((cycle,))
    save(path.name, tmp_path / "b.pkl")
    net = Net()
    net.conv.register_forward_hook(print)
    with pytest.raises(OptionError, match="has hooks"):
        save(net, path)
    for options in ({"pickle_protocol": 99}, {"pickle_protocol": "4"}, {"pickle_module": io}):
        with pytest.raises(OptionError, match="protocol 4"):
            save(1, path, **options)
    assert load(path) == [1]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.pkl"
    save([1], path)
    monkeypatch.setattr("os.fsync", lambda fd: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save([2], path)
    assert load(path) == [1]
    assert [p.name for p in tmp_path.iterdir()] == ["a.pkl"]


def test_other_files(tmp_path):
    (tmp_path / "z.pth").write_bytes(b"PK\x03\x04rest")
    with pytest.raises(FileFormatError, match="a zip archive"):
        load(tmp_path / "z.pth")
    legacy = Path(__file__).parent.parent / "data" / "torch" / "legacy.pth"
    with pytest.raises(FileFormatError, match="PyTorch's old format; read it with .*read_pth"):
        load(legacy)
    for name, message in [
        ("megengine.traced_module.expr\nInput", "a traced module, not weights"),
        ("megengine.data\nDataLoader", "not supported in files"),
    ]:
        (tmp_path / "n.pkl").write_bytes(b"\x80\x02c" + name.encode() + b"\n.")
        with pytest.raises(FileFormatError, match=message):
            load(tmp_path / "n.pkl")
    (tmp_path / "e.pkl").write_bytes(b"")
    with pytest.raises(FileFormatError) as caught:
        load(tmp_path / "e.pkl")
    assert "e.pkl" in caught.value.__notes__[0]


@pytest.mark.parametrize("name", ["tensors.pkl", "module.pkl", "checkpoint.pkl"])
def test_damaged_files_give_values_or_one_error(name):
    rng = np.random.default_rng(3)
    whole = np.frombuffer((DATA / name).read_bytes(), np.uint8)
    for _ in range(300):
        damaged = whole.copy()
        at = rng.integers(0, len(damaged), rng.integers(1, 4))
        damaged[at] = rng.integers(0, 256, len(at))
        body = damaged.tobytes()[: rng.integers(1, len(damaged) + 1)]
        try:
            load(io.BytesIO(body))
        except FileFormatError as exc:
            assert str(exc)


class Scale(M.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = Parameter(np.ones(n, np.float32))
        self.offset = tensor(np.zeros(1, np.float32))


class CallMix(M.Module):
    """The modules of the net behind call_mix.state.pkl."""

    def __init__(self):
        super().__init__()
        self.shared = M.Conv2d(8, 8, 3, padding=1)
        self.head = M.Conv2d(4, 8, 1)
        self.nest = M.Sequential(
            M.Sequential(M.Conv2d(8, 8, 1), M.ReLU()), M.Sequential(M.Sequential(M.BatchNorm2d(8)), M.Sigmoid())
        )
        self.branches = [M.Conv2d(8, 4, 1), M.MaxPool2d(3, 1, 1), Scale(8)]
        self.table = {"left": M.Conv2d(8, 4, 1), "right": M.Conv2d(8, 4, 3, padding=1)}
        self.scale = Scale(8)
        self.gain = Parameter(np.array([2.0], np.float32))


def test_state_dict_has_megengines_keys_order_shapes_and_values():
    stored, net = load(DATA / "call_mix.state.pkl"), CallMix()
    net.load_state_dict(stored)
    ours = net.state_dict()
    assert [(k, v.shape, v.dtype) for k, v in ours.items()] == [(k, v.shape, v.dtype) for k, v in stored.items()]
    for key, value in ours.items():
        np.testing.assert_array_equal(value, stored[key])
    assert net.nest[1][0][0].weight.shape == (1, 8, 1, 1)


@pytest.mark.parametrize("protocol", [-1, 0, 2, 4, 5])
def test_every_protocol_of_pythons_is_accepted(tmp_path, protocol):
    path = tmp_path / "a.pkl"
    save({"weight": tensor([1.0, 2.0])}, path, pickle_protocol=protocol)
    assert path.read_bytes()[:2] == b"\x80\x04"
    np.testing.assert_array_equal(load(path)["weight"].numpy(), [1, 2])


def test_broken_files_raise_what_pickle_raises(tmp_path):
    (tmp_path / "a.pkl").write_bytes(b"garbage")
    with pytest.raises(pickle.UnpicklingError, match="not a readable pickle"):
        load(tmp_path / "a.pkl")


def test_the_bytes_of_a_file_do_not_depend_on_which_object_a_dtype_is(tmp_path):
    """A dtype that was read from a pickle is equal to NumPy's own, and another object."""
    own = np.zeros(3, np.float32)
    other = np.zeros(3, np.dtype("float32", copy=True))
    assert other.dtype is not own.dtype
    save([own, own + 1], tmp_path / "a.pkl")
    save([other, own + 1], tmp_path / "b.pkl")
    assert (tmp_path / "a.pkl").read_bytes() == (tmp_path / "b.pkl").read_bytes()
