"""Ways to write calls of torch that its exporter copies into invalid files, or translates to another type."""

import numpy as np
import pytest

from megengine.convert import from_torch

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch_functions import Function  # noqa: E402

from megengine.convert.torch_missing import _decompositions  # noqa: E402

ATEN = torch.ops.aten


X = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 8, 9)).astype(np.float32))
W = torch.from_numpy(np.random.default_rng(1).standard_normal((3, 3, 2, 3)).astype(np.float32))
WINDOWS = {
    "max_pool2d": (ATEN.max_pool2d.default, (X, (3,), (2,), (1,))),
    "avg_pool2d": (ATEN.avg_pool2d.default, (X, [3], (2, 1), (1,))),
    "avg_pool3d": (ATEN.avg_pool3d.default, (X, [2], [2])),
    "conv2d": (ATEN.conv2d.default, (X, W, None, (2,), (1,), (1,))),
    "conv_transpose2d": (ATEN.conv_transpose2d.input, (X, W, None, (2,), (1,), (1,))),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_one_number_for_all_axes(name):
    op, arguments = WINDOWS[name]
    same = _decompositions(torch)[op]
    torch.testing.assert_close(same(*arguments), op(*arguments))
    full = [a * 2 if isinstance(a, (list, tuple)) and len(a) == 1 else a for a in arguments]
    if name != "avg_pool3d":
        assert same(*full) is NotImplemented


def test_pools_of_one_number_are_converted():
    net = from_torch(Function(lambda x: torch.nn.functional.max_pool2d(x, (3,), [2])), X)
    np.testing.assert_array_equal(net(X.numpy()).numpy(), torch.nn.functional.max_pool2d(X, 3, 2).numpy())


def test_shifts_keep_their_type():
    """The example holds small numbers: torch's exporter gives int8, of which those of the example are the same."""
    small, large, count = (
        torch.tensor(values, dtype=torch.uint8) for values in ([20, 25, 63, 3], [200, 255, 130, 3], [1, 2, 0, 3])
    )
    signed = torch.tensor([-100, 7, -3, 1 << 20], dtype=torch.int32)

    def shifted(x, count, y):
        return x >> count, x << count, (x >> 1) + (x << 1), torch.bitwise_right_shift(x, count), y >> count.int()

    net = from_torch(Function(shifted), small, count, signed)
    for x in (small, large):
        wanted = shifted(x, count, signed)
        for mine, theirs in zip(net(*(t.numpy() for t in (x, count, signed))), wanted, strict=True):
            np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
            assert mine.numpy().dtype == theirs.numpy().dtype
