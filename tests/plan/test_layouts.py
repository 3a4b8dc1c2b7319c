"""Values with four axes lie channels-last or in rows, whichever moves less; results are those of eager calls."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.kernels import isa
from megengine.quantization import quantize_model, verify
from megengine.tensor import tensor
from megengine.traced_module import trace_module


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Function(M.Module):
    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def compiled(net, *inputs, threads=1):
    net = net.eval()
    made = plan.compile(trace_module(net, *map(tensor, inputs)), threads=threads)
    want = net(*map(tensor, inputs))
    for got, value in zip(made(*inputs), want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(got, value.numpy(), rtol=2e-5, atol=2e-5)
    return made


def steps(made):
    return [info.op for info in made.steps]


def moves(made):
    return [op for op in steps(made) if op in ("to_channels_last", "to_rows", "transpose")]


def attention(net, x):
    n, t, d = x.shape
    q, k, v = (F.transpose(F.reshape(y, (n, t, 4, d // 4)), (0, 2, 1, 3)) for y in F.split(net.qkv(x), 3, axis=2))
    p = F.softmax(F.matmul(q, k, transpose_b=True) / (d // 4) ** 0.5, axis=-1)
    return net.out(F.reshape(F.transpose(F.matmul(p, v), (0, 2, 1, 3)), (n, t, d)))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("images", [1, 3])
def test_attention_lies_in_rows_and_is_native(images, threads):
    made = compiled(
        Function(attention, qkv=M.Linear(32, 96), out=M.Linear(32, 32)), draw(images, 7, 32), threads=threads
    )
    assert "reference" not in made.describe() and "python:" not in made.describe()
    assert moves(made) == []


def test_layers_on_channels_behind_a_transposition_move_nothing():
    def forward(net, x):
        y = F.transpose(net.conv(x), (0, 2, 3, 1))
        y = F.transpose(net.down(F.gelu(net.up(y))), (0, 3, 1, 2))
        return net.last(y + x)

    parts = {"conv": M.Conv2d(6, 6, 7, padding=3, groups=6), "up": M.Linear(6, 24), "down": M.Linear(24, 6)}
    made = compiled(Function(forward, **parts, last=M.Conv2d(6, 5, 3)), draw(2, 6, 9, 8))
    assert moves(made) == ["to_channels_last", "to_rows"]  # of the input and of the result


def test_convolutions_stay_channels_last():
    def forward(net, x):
        y = F.relu(net.conv(x * 2 + 1))
        return net.last(F.concat([y, F.sigmoid(y)], axis=1) * F.mean(y, (2, 3), keepdims=True).mean())

    made = compiled(Function(forward, conv=M.Conv2d(3, 8, 3), last=M.Conv2d(16, 4, 1)), draw(1, 3, 11, 9))
    assert moves(made) == ["to_channels_last", "to_rows"]


def test_a_value_is_moved_once_for_all_that_read_it():
    def forward(net, x):
        y = net.conv(x)
        return F.softmax(y, axis=-1), F.softmax(y, axis=-2) * 2, F.softmax(y + 1, axis=-1)

    made = compiled(Function(forward, conv=M.Conv2d(3, 8, 3)), draw(1, 3, 11, 9))
    assert moves(made).count("to_channels_last") == 1


@pytest.mark.parametrize("perm", list(itertools.permutations(range(4))))
def test_every_transposition_between_the_layouts(perm):
    def forward(net, x):
        y = F.transpose(net.conv(x), perm)
        return y, F.softmax(F.transpose(x, perm), axis=-1), F.max_pool2d(F.transpose(y * 2, perm), 2)

    compiled(Function(forward, conv=M.Conv2d(3, 5, 1)), draw(2, 3, 6, 4))


@pytest.mark.parametrize("level", isa.available())
def test_at_every_level(level):
    with isa.capped(level):
        compiled(Function(attention, qkv=M.Linear(32, 96), out=M.Linear(32, 32)), draw(2, 5, 32))


FOUR = {
    "relu": lambda x, y: F.relu(x),
    "add": lambda x, y: x + y,
    "channel": lambda x, y: x * F.mean(y, (2, 3), keepdims=True),
    "column": lambda x, y: x - F.mean(y, -1, keepdims=True),
    "rows": lambda x, y: F.softmax(x, axis=-1) + y,
    "channels": lambda x, y: F.softmax(x, axis=1),
    "reduced": lambda x, y: x + F.reshape(F.max(y, axis=1), (2, 1, 4, 4)),
    "product": lambda x, y: F.matmul(x, y),
    "turned": lambda x, y: F.transpose(x, (0, 1, 3, 2)) + y,
    "swapped": lambda x, y: F.transpose(F.transpose(x, (0, 2, 3, 1)) * 2, (0, 3, 1, 2)),
    "cut": lambda x, y: F.concat([x[:, 1:], y[:, :1]], axis=1),
    "padded": lambda x, y: F.nn.pad(x, ((0, 0), (0, 0), (1, 0), (0, 1)))[:, :, 1:, :4],
    "halves": lambda x, y: F.concat(F.split(x, 2, axis=3)[::-1], axis=3),
    "reshaped": lambda x, y: F.reshape(F.reshape(x, (2, 16, 4)) * 2, (2, 4, 4, 4)),
    "pooled": lambda x, y: F.nn.interpolate(F.max_pool2d(x, 2), scale_factor=2) + y,
    "layer": lambda x, y: F.conv2d(x, tensor(draw(4, 4, 3, 3)), padding=1),
    "chosen": lambda x, y: F.where(x > y, x, y),
    "single": lambda x, y: x * F.reshape(y[:, 0, 0, 0], (2, 1, 1, 1)),
}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(FOUR)), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7))
def test_any_mixture_of_ops_gives_the_eager_result(chosen):
    def forward(net, x, y):
        values = [x, y]
        for name, i, j in chosen:
            made = FOUR[name](values[i % len(values)], values[j % len(values)])
            values.append(made / (1 + F.abs(made).mean()))
        return tuple(values[2:])

    compiled(Function(forward), draw(2, 4, 4, 4), draw(2, 4, 4, 4, seed=1))


def test_a_plan_with_integers_is_exact_behind_attention_in_float():
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out, self.norm = M.Linear(32, 96), M.Linear(32, 32), M.LayerNorm(32)
            self.up, self.down = M.Linear(32, 64), M.Linear(64, 32)

        def forward(self, x):
            x = self.norm(x + attention(self, x))
            return self.norm(x + self.down(F.gelu(self.up(x))))

    quantized = quantize_model(
        trace_module(Net().eval(), tensor(draw(2, 7, 32))), [draw(2, 7, 32, seed=s) for s in range(3)]
    )
    result = verify(quantized, [draw(2, 7, 32, seed=s) for s in (3, 4)])
    assert result.exact, str(result)
