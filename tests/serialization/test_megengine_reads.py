"""What is saved here is read by the real MegEngine, where MEGENGINE_PYTHON names a Python that has 1.13."""

import json
import os
import subprocess

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import optimizer as optim
from megengine.autodiff import GradManager
from megengine.core.dtype import qint8, qint32, quint8
from megengine.tensor import Parameter, Tensor, tensor

pytestmark = [
    pytest.mark.megengine,
    pytest.mark.skipif(
        "MEGENGINE_PYTHON" not in os.environ, reason="MEGENGINE_PYTHON names no Python with MegEngine 1.13"
    ),
]

DESCRIBE = """
import json, sys
import numpy as np
import megengine as mge

def leaves(value, path, out, notes):
    if isinstance(value, dict):
        for key in value: leaves(value[key], path + "/" + str(key), out, notes)
    elif isinstance(value, (list, tuple)):
        for k, part in enumerate(value): leaves(part, path + "/" + str(k), out, notes)
    elif isinstance(value, (mge.Tensor, np.ndarray)):
        array = value.numpy() if isinstance(value, mge.Tensor) else value
        notes[path] = [type(value).__name__, (value.dtype.metadata or {}).get("mgb_dtype") or value.dtype.name]
        out[path] = np.array(array.view(array.dtype.str))  # without the metadata of quantized dtypes
    else:
        notes[path] = repr(value)

out, notes = {}, {}
leaves(mge.load(sys.argv[1]), "", out, notes)
np.savez(sys.argv[2], **{"x" + k: v for k, v in out.items()})
json.dump(notes, open(sys.argv[3], "w"), default=float)
"""

CONTINUE = """
import sys
import numpy as np
import megengine as mge, megengine.functional as F, megengine.module as M, megengine.optimizer as O
from megengine.autodiff import GradManager
saved, x = mge.load(sys.argv[1]), np.load(sys.argv[2])["x"]
net = M.Sequential(M.Linear(4, 3), M.ReLU(), M.Linear(3, 2))
rule = getattr(O, saved["rule"])(list(net.parameters()), **saved["options"])
net.load_state_dict(saved["net"])
rule.load_state_dict(saved["optimizer"])
manager, losses = GradManager().attach(list(net.parameters())), []
for _ in range(4):
    with manager:
        loss = (net(mge.tensor(x)) ** 2).mean()
        manager.backward(loss)
    rule.step().clear_grad()
    losses.append(float(loss.numpy()))
np.savez(sys.argv[3], losses=np.array(losses))
"""


def there(program, folder, *arguments):
    command = [os.environ["MEGENGINE_PYTHON"], "-c", program, *map(str, arguments)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}  # that is another Python
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]


def read_there(value, folder):
    """Arrays and notes of everything in `value`, as MegEngine sees it in the file that we save."""
    mge.save(value, folder / "a.pkl")
    there(DESCRIBE, folder, folder / "a.pkl", folder / "a.npz", folder / "a.json")
    with np.load(folder / "a.npz") as file:
        return {k[1:]: file[k] for k in file.files}, json.loads((folder / "a.json").read_text())


def test_tensors_of_every_dtype(tmp_path):
    rng = np.random.default_rng(0)
    plain = {
        name: tensor(
            (rng.standard_normal((2, 3)) * 20).astype(name) if name != "bool" else rng.random((2, 3)) > 0.5, dtype=name
        )
        for name in ("float32", "float16", "int8", "uint8", "int16", "int32", "bool")
    }
    plain |= {"empty": F.zeros((0, 3)), "scalar": tensor(1.5), "parameter": Parameter(np.ones(3, np.float32))}
    levels = np.arange(-3, 3).reshape(2, 3)
    quantized = {
        "q8": Tensor(levels.astype(np.int8), dtype=qint8(0.05)),
        "u8": Tensor((levels + 128).astype(np.uint8), dtype=quint8(0.05, 128)),
        "q32": Tensor(levels.astype(np.int32), dtype=qint32(0.001)),
    }
    arrays, notes = read_there({**plain, **quantized}, tmp_path)
    for name, value in plain.items():
        np.testing.assert_array_equal(arrays[f"/{name}"], value.numpy())
        assert arrays[f"/{name}"].dtype == value.numpy().dtype
        assert notes[f"/{name}"][0] == type(value).__name__
    for name, value in quantized.items():
        np.testing.assert_array_equal(arrays[f"/{name}"], value.numpy())
        dtype = notes[f"/{name}"][1]
        assert dtype["scale"] == pytest.approx(value.dtype.scale)
        assert dtype.get("zero_point") in (None, 0, value.dtype.zero_point)


def network():
    mge.random.seed(0)
    return M.Sequential(M.Linear(4, 3), M.ReLU(), M.Linear(3, 2))


def test_state_dicts(tmp_path):
    net = M.Sequential(M.Conv2d(4, 4, 3, groups=2), M.BatchNorm2d(4), M.LSTM(3, 2), M.Embedding(5, 2))
    state = net.state_dict()
    arrays, _ = read_there(state, tmp_path)
    assert list(arrays) == [f"/{key}" for key in state]
    for key, value in state.items():
        np.testing.assert_array_equal(arrays[f"/{key}"], value)


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9}),
        ("Adam", {"lr": 0.02}),
        ("AdamW", {"lr": 0.02}),
        ("Adagrad", {"lr": 0.05}),
        ("Adadelta", {"lr": 1.0}),
    ],
)
def test_training_goes_on_there(rule, options, tmp_path):
    """A checkpoint of ours in the middle of training: the losses of the steps after it are the same."""
    net, x = network(), np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    optimizer = getattr(optim, rule)(list(net.parameters()), **options)
    manager, losses = GradManager().attach(list(net.parameters())), []
    for step in range(8):
        if step == 4:
            saved = {"rule": rule, "options": options, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
            mge.save(saved, tmp_path / "a.pkl")
        with manager:
            loss = (net(tensor(x)) ** 2).mean()
            manager.backward(loss)
        optimizer.step().clear_grad()
        losses.append(loss.item())
    np.savez(tmp_path / "x.npz", x=x)
    there(CONTINUE, tmp_path, tmp_path / "a.pkl", tmp_path / "x.npz", tmp_path / "out.npz")
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["losses"], losses[4:], rtol=1e-5)
