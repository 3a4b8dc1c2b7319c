"""Layers beside recordings of MegEngine 1.13: class paths, attributes, state dicts and texts."""

import json
from pathlib import Path

import numpy as np
import pytest

import megengine.module as M
from megengine.tensor import Tensor

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "megengine" / "layers.json").read_text())


def make(call):
    return eval(f"M.{call}", {"M": M})


def plain(value):
    if isinstance(value, Tensor):
        return [type(value).__name__, list(value.shape)]
    if isinstance(value, M.Module):
        return type(value).__name__
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("call", RECORDED)
def test_a_layer_is_megengines(call):
    layer, recorded = make(call), RECORDED[call]
    assert f"{type(layer).__module__}.{type(layer).__qualname__}" == recorded["class"]
    have = {k: plain(getattr(layer, k, "missing")) for k in recorded["attributes"]}
    assert have == recorded["attributes"]
    assert {k: list(v.shape) for k, v in layer.state_dict().items()} == recorded["state"]
    if recorded["repr"] is not None:
        assert repr(layer) == recorded["repr"]


@pytest.mark.parametrize("call", RECORDED)
def test_a_state_restores_a_layer(call):
    layer = make(call)
    state = layer.__getstate__()
    del state["_short_name"]  # older files lack it
    other = type(layer).__new__(type(layer))
    other.__setstate__({**state, "unknown_to_us": 1})
    assert other.unknown_to_us == 1
    assert list(other._forward_hooks) == []
    for (name, have), (also, wanted) in zip(other.named_tensors(), layer.named_tensors(), strict=True):
        assert name == also
        np.testing.assert_array_equal(have.numpy(), wanted.numpy())
