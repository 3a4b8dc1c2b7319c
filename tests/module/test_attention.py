"""Multi-head attention against torch."""

import numpy as np
import pytest

import megengine.module as M
from megengine.core.errors import OptionError
from megengine.tensor import tensor


def numbers(*shape):
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("bias", [True, False])
def test_attention_equals_torchs(bias):
    torch = pytest.importorskip("torch")
    layer = M.MultiHeadAttention(8, 2, bias=bias).eval()
    layer.io_weight_bias._reset(tensor(numbers(*layer.io_weight_bias.shape)))
    twin = torch.nn.MultiheadAttention(8, 2, bias=bias, batch_first=True)
    flat = torch.from_numpy(layer.io_weight_bias.numpy().reshape(-1).copy())
    own = flat[:256].reshape(4, 8, 8).transpose(1, 2)  # [in, out], as MegEngine's; torch's are [out, in]
    twin.in_proj_weight.data, twin.out_proj.weight.data = own[:3].reshape(24, 8), own[3]
    if bias:
        twin.in_proj_bias.data, twin.out_proj.bias.data = flat[256:280], flat[280:288]
    q, k, v = numbers(2, 5, 8), numbers(2, 6, 8), numbers(2, 6, 8) + 1
    out, weights = layer(tensor(q), tensor(k), tensor(v))
    assert weights is None
    wanted = twin(*(torch.from_numpy(t) for t in (q, k, v)), need_weights=False)[0].detach().numpy()
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-3, atol=1e-4)


def test_first_biases_are_zero():
    layer = M.MultiHeadAttention(8, 2)
    flat = layer.io_weight_bias.numpy().reshape(-1)
    assert not flat[-32:].any()
    assert flat[:-32].all()


def test_wrong_sizes():
    with pytest.raises(OptionError, match="num_heads=3 must divide embed_dim=8"):
        M.MultiHeadAttention(8, 3)
    with pytest.raises(OptionError, match="add_bias_kv and add_zero_attn"):
        M.MultiHeadAttention(8, 2, add_zero_attn=True)
