"""Normalisation of samples, embeddings, fused linear and transposed layers: against torch, and tracing."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine.autodiff import GradManager
from megengine.core.errors import OptionError, ShapeError
from megengine.tensor import Parameter, tensor
from megengine.traced_module import trace_module


def x(*shape):
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def standardized(v, axes, eps=1e-5):
    v = v.astype(np.float64)
    return (v - v.mean(axes, keepdims=True)) / np.sqrt(v.var(axes, keepdims=True) + eps)


def with_values(layer):
    for p in layer.parameters():
        p._reset(tensor(x(*p.shape) + 1))
    return layer


def check(layer, value, expected):
    """Same numbers eagerly and traced."""
    np.testing.assert_allclose(layer(tensor(value)).numpy(), expected, rtol=2e-5, atol=2e-5)
    traced = trace_module(layer, tensor(value))
    np.testing.assert_allclose(traced(tensor(value)).numpy(), expected, rtol=2e-5, atol=2e-5)


def test_layer_norm():
    layer, v = with_values(M.LayerNorm((3, 4))), x(2, 3, 4)
    check(layer, v, standardized(v, (1, 2)) * layer.weight.numpy() + layer.bias.numpy())
    check(M.LayerNorm(4, affine=False), v, standardized(v, (2,)))


def test_state_of_layer_norms_is_flat_and_either_form_is_loaded():
    net, values = M.Sequential(M.LayerNorm((2, 3))), np.arange(6, dtype=np.float32)
    assert {k: v.shape for k, v in net.state_dict().items()} == {"0.bias": (6,), "0.weight": (6,)}  # as in MegEngine
    for form in (values, values.reshape(2, 3)):
        net.load_state_dict({"0.weight": form, "0.bias": form + 1})
        np.testing.assert_array_equal(net[0].weight.numpy(), values.reshape(2, 3))
        np.testing.assert_array_equal(net[0].bias.numpy(), values.reshape(2, 3) + 1)
    for wrong in (values[:5], values.reshape(3, 2)):
        with pytest.raises(ValueError, match=r"0.weight has shape \(.*\); expected \(2, 3\)"):
            net.load_state_dict({"0.weight": wrong}, strict=False)


def test_group_norm():
    layer, v = with_values(M.GroupNorm(2, 6)), x(2, 6, 3, 5)
    y = standardized(v.reshape(2, 2, 45), (2,)).reshape(v.shape)
    check(layer, v, y * layer.weight.numpy()[:, None, None] + layer.bias.numpy()[:, None, None])


def test_instance_norm():
    layer, v = with_values(M.InstanceNorm(3)), x(2, 3, 4, 4)
    y = standardized(v, (2, 3))
    check(layer, v, y * layer.weight.numpy()[:, None, None] + layer.bias.numpy()[:, None, None])


@pytest.mark.parametrize("count", [1, 3])
def test_prelu(count):
    layer, v = with_values(M.PReLU(count)), x(2, 3, 4, 4)
    check(layer, v, np.where(v > 0, v, v * layer.weight.numpy().reshape(1, -1, 1, 1)))


def test_pixel_shuffle_equals_loops():
    v = x(2, 8, 3, 4)
    expected = np.zeros((2, 2, 6, 8))
    for c in range(2):
        for i in range(6):
            for j in range(8):
                expected[:, c, i, j] = v[:, c * 4 + i % 2 * 2 + j % 2, i // 2, j // 2]
    check(M.PixelShuffle(2), v, expected)


def test_embedding_and_its_gradient():
    layer, index = M.Embedding(5, 3), np.array([[1, 4], [1, 0]], np.int32)
    np.testing.assert_array_equal(layer(tensor(index)).numpy(), layer.weight.numpy()[index])
    with GradManager().attach(layer.weight) as manager:
        manager.backward(F.sum(layer(tensor(index))))
    np.testing.assert_array_equal(layer.weight.grad.numpy()[:, 0], [1, 2, 0, 0, 1])
    given = M.Embedding(2, 2, initial_weight=Parameter(np.eye(2, dtype=np.float32)))
    np.testing.assert_array_equal(given(tensor(np.array([1], np.int32))).numpy(), [[0, 1]])


def test_pad_and_fused_layers():
    v = x(2, 3, 4, 4)
    widths = ((0, 0), (0, 0), (1, 2), (0, 3))
    check(M.Pad(widths, constant_val=0.5), v, np.pad(v, widths, constant_values=0.5))
    linear, flat = M.LinearRelu(4, 5), x(3, 4)
    check(linear, flat, np.maximum(flat @ linear.weight.numpy().T + linear.bias.numpy(), 0))
    norm = M.LinearBnRelu1d(4, 5).eval()
    norm.bn.running_mean._reset(tensor(x(1, 5, 1)))
    plain = flat @ norm.linear.weight.numpy().T - x(1, 5, 1).reshape(5)
    check(norm, flat, np.maximum(plain / np.sqrt(1 + 1e-5), 0))
    up = M.ConvTransposeBnRelu2d(3, 2, 2, stride=2).eval()
    expected = np.maximum(up.conv_transpose2d(tensor(v)).numpy() / np.sqrt(1 + 1e-5), 0)
    check(up, v, expected)
    relu = M.ConvTransposeRelu2d(3, 2, 3)
    assert relu(tensor(v)).numpy().min() == 0


def gradients(layer, value):
    with GradManager().attach(list(layer.parameters())) as manager:
        manager.backward(F.sum(layer(tensor(value)) * tensor(x(*value.shape) * 0.5)))
    return {n: p.grad.numpy() for n, p in layer.named_parameters()}


@pytest.mark.parametrize("name", ["LayerNorm", "GroupNorm"])
def test_gradients_equal_torchs(name):
    torch = pytest.importorskip("torch")
    v = x(2, 6, 5)
    layer, twin = (
        (M.LayerNorm(5), torch.nn.LayerNorm(5))
        if name == "LayerNorm"
        else (M.GroupNorm(3, 6), torch.nn.GroupNorm(3, 6))
    )
    (twin(torch.from_numpy(v)) * torch.from_numpy(x(2, 6, 5) * 0.5)).sum().backward()
    for key, grad in gradients(layer, v).items():
        np.testing.assert_allclose(grad, getattr(twin, key).grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", [1, -4])
def test_the_row_of_the_padding_gets_no_gradient(padding):
    """Beside torch's: values, gradients, and zeros at the start."""
    index = np.array([[0, 1, 1], [4, 1, -4]])
    layer = M.Embedding(5, 3, padding_idx=padding)
    np.testing.assert_array_equal(layer.weight.numpy()[1], 0)
    assert layer.weight.numpy()[[0, 2, 3, 4]].any(1).all()
    table, ct = x(5, 3), x(2, 3, 3)
    w = tensor(table)
    with GradManager().attach(w) as manager:
        rows = F.embedding(tensor(index.astype(np.int32)), w, padding)
        manager.backward((rows * tensor(ct)).sum())
    np.testing.assert_array_equal(rows.numpy(), table[index])
    want = np.zeros((5, 3), np.float32)
    np.add.at(want, index % 5, ct)
    want[1] = 0
    np.testing.assert_allclose(w.grad.numpy(), want, rtol=1e-6)
    with GradManager().attach(layer.weight) as manager:
        manager.backward(layer(tensor(index.astype(np.int32))).sum())
    np.testing.assert_array_equal(layer.weight.grad.numpy()[:, 0], [1, 0, 0, 0, 1])
    torch = pytest.importorskip("torch")
    theirs = torch.tensor(table, requires_grad=True)
    torch.nn.functional.embedding(torch.from_numpy(index % 5), theirs, 1).backward(torch.from_numpy(ct))
    np.testing.assert_allclose(w.grad.numpy(), theirs.grad.numpy(), rtol=1e-6)


def test_wrong_arguments():
    with pytest.raises(ShapeError, match=r"layer_norm: x is \(2, 3\); expected it to end in \(4,\)"):
        F.layer_norm(x(2, 3), 4, False)
    with pytest.raises(ShapeError, match="divisible by num_groups=2"):
        F.group_norm(x(2, 3, 4), 2, False)
    with pytest.raises(ShapeError, match="at least 3 axes"):
        F.instance_norm(x(2, 3), False)
    with pytest.raises(ShapeError, match="y has 2 slopes"):
        F.prelu(x(2, 3, 4), x(2))
    with pytest.raises(ShapeError, match="upscale_factor 2"):
        F.pixel_shuffle(x(1, 3, 2, 2), 2)
    with pytest.raises(OptionError, match="num_groups=2 must divide"):
        M.GroupNorm(2, 3)
    with pytest.raises(OptionError, match="max_norm and norm_type are not supported"):
        M.Embedding(2, 2, max_norm=1.0)
    with pytest.raises(OptionError, match="max_norm and norm_type are not supported"):
        F.embedding(tensor([0]), tensor([[1.0]]), norm_type=2.0)
    for wrong in (2, -3):
        with pytest.raises(IndexError, match=f"padding_idx is {wrong}; expected a row of 2"):
            M.Embedding(2, 2, padding_idx=wrong)
        with pytest.raises(IndexError, match=f"padding_idx is {wrong}; expected a row of 2"):
            F.embedding(tensor([0]), F.ones((2, 2)), wrong)
    with pytest.raises(ShapeError, match="initial_weight has shape"):
        M.Embedding(2, 2, initial_weight=Parameter(np.zeros((3, 2), np.float32)))
