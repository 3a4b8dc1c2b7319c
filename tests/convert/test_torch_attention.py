"""Attention of torch over three and five axes, against torch's own."""

import numpy as np
import pytest

from megengine.convert import from_torch

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from megengine.convert.torch_attention import attention_decompositions  # noqa: E402

OP = torch.ops.aten.scaled_dot_product_attention.default


def drawn(*shape):
    return torch.from_numpy(np.random.default_rng(shape[-1]).standard_normal(shape).astype(np.float32))


BARRED = torch.arange(35).reshape(5, 7) % 3 > 0
BARRED[2] = False  # a row that sees nothing is zero


@pytest.mark.parametrize("axes", [(), (3,), (2, 2, 3)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": BARRED}, {"attn_mask": drawn(5, 7)},
                                     {"scale": 0.3}])  # fmt: skip
def test_attention_of_any_number_of_axes(axes, options):
    q, k, v = drawn(*axes, 5, 4), drawn(*axes, 7, 4), drawn(*axes, 7, 6)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(attention_decompositions(torch)[OP](q, k, v, **options), wanted)


def test_what_the_exporter_takes_stays():
    q = drawn(1, 2, 5, 4)
    assert attention_decompositions(torch)[OP](q, q, q) is NotImplemented


class Attention(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


@pytest.mark.slow
def test_a_network_with_three_axes():
    x = drawn(2, 5, 4)
    torch.testing.assert_close(torch.from_numpy(from_torch(Attention(), x)(x.numpy()).numpy()), Attention()(x))
