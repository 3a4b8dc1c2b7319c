"""Layers keep the names that the user's file gives them, whatever is folded into them, and are compared by them."""

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from megengine.convert.onnx import load
from megengine.quantization import quantize_model
from megengine.quantization.checks.pairs import compare_values
from megengine.traced_module.passes import fold_batch_norm
from megengine.traced_module.passes.layer_uses import take_names

LAYERS = 12


@pytest.fixture
def network(tmp_path):
    """Convolutions called Conv_0, Conv_1, ..., with a batch norm each and an activation behind some, as Paddle and
    TensorFlow name theirs.
    """
    rng = np.random.default_rng(0)
    nodes, stored, x = [], [], "x"
    for i in range(LAYERS):
        stored.append(numpy_helper.from_array(rng.normal(0, 0.6, (4, 4, 1, 1)).astype(np.float32), f"weight_of_{i}"))
        of_norm = [rng.uniform(2, 3, 4), rng.normal(0, 1, 4), rng.normal(0, 1, 4), rng.uniform(0.5, 4, 4)]
        names = [f"{part}_of_{i}" for part in ("scale", "shift", "mean", "variance")]
        stored += [numpy_helper.from_array(v.astype(np.float32), n) for n, v in zip(names, of_norm, strict=True)]
        nodes.append(helper.make_node("Conv", [x, f"weight_of_{i}"], [f"c{i}"], f"Conv_{i}"))
        nodes.append(helper.make_node("BatchNormalization", [f"c{i}", *names], [f"b{i}"], f"BatchNormalization_{i}"))
        x = f"b{i}"
        if i % 3 == 1:
            nodes.append(helper.make_node("Relu", [x], [f"r{i}"], f"Relu_{i}"))
            x = f"r{i}"
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 6, 6])] for name in ("x", x)]
    graph = helper.make_graph(nodes, "numbered", ends[0], ends[1], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "n.onnx")
    return load(tmp_path / "n.onnx")


def layers_of(graph):
    """The name of the weight of each layer by the name of its result."""
    return {e.output.name: e.inputs[1].name for e in graph.exprs() if getattr(e, "op", "") == "conv2d"}


def test_a_fold_gives_no_layer_the_name_of_another(network):
    before = layers_of(network.graph)
    assert fold_batch_norm(network.graph)
    assert layers_of(network.graph) == before and len(before) == LAYERS


def test_layers_are_reported_by_their_own_names(network):
    data = np.random.default_rng(1).standard_normal((4, 1, 4, 6, 6)).astype(np.float32)
    quantized = quantize_model(network, data)
    named = layers_of(quantized.float_graph)
    assert named and all(weight == f"weight_of_{name.removeprefix('Conv_')}" for name, weight in named.items())
    found = compare_values(network.graph, quantized.integer_graph, list(data))
    assert {one.name for one in found.values} >= {f"BatchNormalization_{i}" for i in range(LAYERS) if i % 3 != 1}
    assert min(one.sqnr_db for one in found.values) > 15, [(one.name, one.sqnr_db) for one in found.values]
    back = compare_values(quantized.integer_graph, network.graph, list(data))
    assert min(one.sqnr_db for one in back.values) > 15 and len(back.values) == len(found.values)


@pytest.mark.parametrize("seed", range(20))
def test_names_are_taken_whatever_holds_them(network, seed):
    """New values that hold each other's names, in chains and circles; one name belongs to a value that stays."""
    rng = random.Random(seed)
    graph = network.graph
    nodes = [e.output for e in graph.exprs() if getattr(e, "op", "")]
    moved, stays = nodes[:-1], nodes[-1].name
    wanted = [node.name for node in moved[:-1]] + [stays]
    rng.shuffle(wanted)
    take_names(graph, list(zip(moved, wanted, strict=True)))
    assert nodes[-1].name == stays
    assert all(node.name == name for node, name in zip(moved, wanted, strict=True) if name != stays)
    assert not graph.lint()
