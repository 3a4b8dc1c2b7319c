"""Multi-head attention against NumPy in float64, and against what MegEngine gave."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
from megengine.core.errors import MegEngineError
from megengine.tensor import tensor

RNG = np.random.default_rng(0)
Q, K, V = RNG.standard_normal((2, 3, 6)), RNG.standard_normal((2, 4, 5)), RNG.standard_normal((2, 4, 7))
SIZES = [(6, 6), (5, 6), (7, 8), (8, 9)]  # features in, features out
WEIGHTS = [RNG.standard_normal(s) for s in SIZES]
BIASES = [RNG.standard_normal(s[1]) for s in SIZES]
PACKED = np.concatenate([w.ravel() for w in WEIGHTS] + BIASES)
PROJECTED = {"qproj_size": 6, "kproj_size": 6, "vproj_size": 8, "oproj_size": 9}
BIASED = {"qbias": True, "kbias": True, "vbias": True, "obias": True}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def expected(mask=0.0):
    q, k, v = (x @ w + b for x, w, b in zip((Q, K, V), WEIGHTS[:3], BIASES[:3], strict=True))
    q, k, v = (x.reshape(2, -1, 2, x.shape[-1] // 2).transpose(0, 2, 1, 3) for x in (q, k, v))
    weights = softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1]) + mask)
    y = (weights @ v).transpose(0, 2, 1, 3).reshape(2, 3, 8)
    return y @ WEIGHTS[3] + BIASES[3], weights


def attend(packed=PACKED, **options):
    inputs = [tensor(x) for x in (Q, K, V)]
    options = {**PROJECTED, **BIASED, **options}
    return F.multi_head_attention(*inputs, 6, 2, 0.0, 0.0, tensor(packed), training=False, **options)


TESTS = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("recording_attention", TESTS / "recording" / "attention.py")
RECORDING = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RECORDING)


@pytest.mark.parametrize("name", RECORDING.CASES)
def test_attention_is_megengines(name):
    result, weights = RECORDING.attention(mge, F, name)
    with np.load(TESTS / "data" / "recorded" / "attention.npz") as recorded:
        np.testing.assert_allclose(result, recorded[f"{name} -> result"], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(weights, recorded[f"{name} -> weights"], rtol=1e-5, atol=1e-6)


HIDDEN = np.array([[False, True, False, True]] * 2)
MASKS = {
    "none": ({}, 0.0),
    "float": ({"attn_mask": tensor(Q[0, :, :4])}, Q[0, :, :4]),
    "causal": ({"is_causal": True}, np.where(np.triu(np.ones((3, 4)), 1), -np.inf, 0)),
    "padding": ({"key_padding_mask": tensor(HIDDEN)}, np.where(HIDDEN[:, None, None], -np.inf, 0)),
}


@pytest.mark.parametrize("name", MASKS)
def test_attention(name):
    options, mask = MASKS[name]
    want, weights = expected(mask)
    out, nothing = attend(**options)  # a pair, as MegEngine's
    assert nothing is None
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-4, atol=1e-4)
    found = attend(**options, need_weights=True)
    np.testing.assert_allclose(found[1].numpy(), weights.reshape(-1, *weights.shape[2:]), rtol=1e-4, atol=1e-5)
    averaged = attend(**options, need_weights=True, average_attn_weights=True)
    np.testing.assert_allclose(averaged[1].numpy(), weights.mean(1), rtol=1e-4, atol=1e-5)


def test_without_projections():
    x = tensor(Q)
    y, _ = F.multi_head_attention(x, x, x, 6, 1, 0.0, 0.0, None, training=False, reslink=True)
    np.testing.assert_allclose(y.numpy(), softmax(Q @ Q.transpose(0, 2, 1) / np.sqrt(6)) @ Q + Q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: attend(PACKED[1:]), "the projections take .* numbers"),
        (lambda: attend(attn_mask=tensor(np.zeros((2, 4)))), "expected one that broadcasts"),
        (lambda: attend(add_zero_attn=True), "add_zero_attn is not supported"),
        (lambda: F.multi_head_attention(tensor(Q[0]), tensor(K), tensor(V), 6, 2, 0.0, 0.0, None), "query has shape"),
        (lambda: F.multi_head_attention(tensor(Q), tensor(Q), tensor(Q), 6, 4, 0.0, 0.0, None), "into 4 heads"),
    ],
)
def test_wrong_arguments(call, match):
    with pytest.raises(MegEngineError, match=match):
        call()
