"""Products take operands that are turned, cut or scaled where they lie, and give their result turned."""

import numpy as np
import pytest

import megengine.functional as F
from megengine import plan
from megengine.module import Module
from megengine.quantization import to_half
from megengine.tensor import tensor
from megengine.traced_module import trace_module


class Function(Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def draw(*shape):
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def compiled(function, *inputs, threads=1):
    """The plan, compared with the eager run."""
    net = Function(function)
    made = plan.compile(trace_module(net, *map(tensor, inputs)), threads=threads)
    wanted = net(*map(tensor, inputs))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for result, want in zip(made(*inputs), wanted, strict=True):
        np.testing.assert_allclose(result, want.numpy(), rtol=1e-5, atol=1e-5)
    return [info.op for info in made.steps if info.op != "to_result"]


def heads(x, n):
    rows, images, width = x.shape
    return F.transpose(F.reshape(x, (rows, images * n, width // n)), (1, 0, 2))


def packed_attention(x):
    """As torch exports it: a packed projection [rows, images, 3 * width], both factors scaled."""
    rows, images, width = x.shape
    parts = F.transpose(F.reshape(x, (1, rows, images, 3, width // 3)), (3, 1, 2, 0, 4))
    q, k, v = (heads(F.reshape(parts[i], (rows, images, width // 3)), 2) for i in range(3))
    p = F.softmax(F.matmul(q * 0.5, F.transpose(k, (0, 2, 1)) / 2), axis=-1)
    return F.reshape(F.transpose(F.matmul(p, v), (1, 0, 2)), (rows, images, width // 3))


def attention(x):
    n, t, d = x.shape
    thirds = (x[:, :, i * d // 3 : (i + 1) * d // 3] for i in range(3))
    q, k, v = (F.transpose(F.reshape(third, (n, t, 2, d // 6)), (0, 2, 1, 3)) for third in thirds)
    p = F.softmax(F.matmul(q, k, transpose_b=True) / 3, axis=-1)
    return F.transpose(F.matmul(p, v), (0, 2, 1, 3))


def scores(x):
    """Of two heads; 7 is no power of two, so that a scale that is rounded by itself shows."""
    q, k = (F.transpose(F.reshape(part, (1, 9, 2, 8)), (0, 2, 1, 3)) for part in (x[:, :, :16], x[:, :, 16:]))
    return F.matmul(q, k, transpose_b=True) / 7


@pytest.mark.parametrize("threads", [1, 2])
def test_scaled_products_of_bfloat16_are_rounded_once(threads):
    net, x = Function(scores), draw(1, 9, 32)
    made = plan.compile(to_half(trace_module(net, tensor(x)), "bf16"), threads=threads)
    assert "fused_matmul" in [step.op for step in made.steps]
    rounded = tensor(x).astype("bfloat16").numpy().astype(np.float64)
    q, k = (part.reshape(9, 2, 8).transpose(1, 0, 2) for part in (rounded[0, :, :16], rounded[0, :, 16:]))
    np.testing.assert_allclose(made(x)[0][0].astype(np.float64), q @ k.transpose(0, 2, 1) / 7, rtol=2.0**-8, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("function", "shape"), [(packed_attention, (5, 1, 24)), (attention, (1, 5, 24)), (attention, (2, 5, 24))]
)
def test_attention_moves_nothing(function, shape, threads):
    assert compiled(function, draw(*shape), threads=threads) == ["fused_matmul", "softmax", "fused_matmul"]


def test_heads_of_several_images_that_are_one_axis_are_moved():
    assert compiled(packed_attention, draw(5, 2, 24)).count("transpose") == 1


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_operands_turned_by_the_product_and_before(turned):
    def product(a, b):
        a, b = F.transpose(a, (1, 2, 0)) if turned[0] else F.transpose(a, (1, 0, 2)), F.transpose(b, (1, 0, 2))
        return F.matmul(a, b, transpose_a=turned[0], transpose_b=turned[1])

    rows, columns = (6, 5) if turned[1] else (5, 6)
    assert compiled(product, draw(4, 3, 5), draw(rows, 3, columns)) == ["fused_matmul"]


def test_stacks_that_broadcast():
    def product(a, b):
        return F.matmul(F.transpose(a, (0, 2, 1, 3)), F.transpose(b, (1, 0)) * 2)

    assert compiled(product, draw(2, 4, 3, 5), draw(7, 5)) == ["fused_matmul"]


def test_what_is_no_view_is_moved():
    repeated = compiled(lambda a, b: F.matmul(F.broadcast_to(a, (3, 2, 4)), b), draw(1, 2, 4), draw(3, 4, 5))
    assert repeated == ["broadcast_to", "matmul"]
    flipped = compiled(lambda a, b: F.matmul(a[:, ::-1], b), draw(3, 4), draw(4, 5))
    assert "fused_matmul" not in flipped
    copied = compiled(lambda a, b: F.matmul(F.reshape(F.transpose(a, (1, 0)), (2, 6)), b), draw(4, 3), draw(6, 5))
    assert copied == ["transpose", "matmul"]


def test_matrices_without_rows_or_columns_in_one_piece_are_moved():
    """Talking heads: oneDNN's reference computes products of such views, in fifty times the time."""

    def talking(scores, v):
        return F.matmul(F.transpose(scores, (0, 3, 1, 2)), F.transpose(v, (0, 2, 1, 3)))

    assert compiled(talking, draw(2, 6, 5, 4), draw(2, 5, 4, 7)) == ["transpose", "fused_matmul"]


def test_what_others_use_stays():
    def both(a, b):
        turned = F.transpose(a, (1, 0)) * 3
        y = F.matmul(turned, b)
        return y, F.transpose(y, (1, 0)), turned

    assert compiled(both, draw(4, 3), draw(4, 5))[-1] == "transpose"
