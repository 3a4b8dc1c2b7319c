"""Numbers as they were recorded are told where nothing in the network scales them, and nowhere else."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from megengine.cli.readers import Recorded
from tests.helpers.command import call

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (8, 3, 16, 16))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def notes(network, array):
    onnx.save(network, "net.onnx")
    np.save("x.npy", array)
    return json.loads(call("calibrate", "net.onnx", "--data", "x.npy", "-o", "n.stats", "--overwrite", "--json"))[
        "notes"
    ]


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (BYTES.astype(np.uint8), r"from 0 to 255 (uint8) as they are"),
        (BYTES.astype(np.int64), "(int64)"),
        (BYTES.astype(np.float32), "(float32)"),
        ((BYTES.astype(np.int16) - 128) * 200, "(array / 32768 - mean) / std"),
        (BYTES.astype(np.float32) / 255, ""),
        (BYTES.astype(np.float32) - np.float32(123.675), ""),
        ((BYTES > 128).astype(np.uint8), ""),  # a mask
        ((BYTES % 50).astype(np.uint8), ""),  # classes
        (BYTES.astype(np.int64) * 3, ""),  # more than a byte, in a type for counts
    ],
)
def test_data(little, array, told):
    found = notes(little(), array)
    assert len(found) == bool(told) and all(told in note for note in found)


def test_a_network_that_scales_or_that_takes_integers_is_not_told(little):
    """Behind a transposition the numbers are still those of the picture."""
    scaled = little()
    scaled.graph.node[0].input[0] = "s"
    scaled.graph.initializer.append(numpy_helper.from_array(np.float32(1 / 255), "k"))
    scaled.graph.node.insert(0, helper.make_node("Mul", ["x", "k"], ["s"]))
    assert notes(scaled, BYTES.astype(np.uint8)) == []
    moved = little()
    moved.graph.node[0].input[0] = "s"
    moved.graph.node.insert(0, helper.make_node("Transpose", ["x"], ["s"], perm=[0, 1, 3, 2]))
    assert len(notes(moved, BYTES.astype(np.uint8))) == 1
    cast = little()
    cast.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    cast.graph.node[0].input[0] = "s"
    cast.graph.node.insert(0, helper.make_node("Cast", ["x"], ["s"], to=TensorProto.FLOAT))
    assert notes(cast, BYTES.astype(np.uint8)) == [], "the network says that it takes bytes"


def test_looking_ends_with_the_first_number_that_is_not_whole():
    seen = Recorded(np.dtype("float32"))
    for array in (np.float32([3, 200]), np.float32([0.5, 900]), np.float32([-1e9])):
        seen.update(array)
    assert (seen.low, seen.whole, seen.high) == (0.5, False, 900.0) and not seen.is_raw((1, 3, 4, 4))
