"""Rows of an open batch are samples: statistics do not depend on how samples are divided into batches."""

import numpy as np
import pytest
from onnx import helper

from megengine.convert.onnx import load
from megengine.core.errors import CalibrationError
from megengine.quantization import QuantConfig, collect, quantize_model, requantize
from megengine.quantization.ranges import RangeMethod, takes_rows
from megengine.tensor import tensor
from megengine.traced_module.opening import rows
from tests.convert.test_onnx_open_sizes import SAME, model, node, weight

ROWS = (
    np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32) * np.arange(1, 13)[:, None, None, None]
)
ROWS = ROWS.astype(np.float32)
BATCHES = {
    "rows": [ROWS[i : i + 1] for i in range(12)],
    "one batch": [ROWS],
    "batches": [ROWS[:5], ROWS[5:6], ROWS[6:]],
    "backwards": [ROWS[::-1].copy()],
    "a mapping": {"label": np.arange(12), "x": ROWS},
    "mappings": [{"x": row[None], "label": 3} for row in ROWS],
}


def _pictures():
    """Convolution, mean, product."""
    nodes = [
        node("Conv", "x w", "c", **SAME),
        node("Relu", "c", "r"),
        node("GlobalAveragePool", "r", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f v", "y"),
    ]
    return load(model(nodes, ["batch", 3, 8, 8], {"w": weight(8, 3, 3, 3), "v": weight(8, 5)}))


def _sequence(last):
    """Products of rows, which a softmax over the rows mixes (`last` "Transpose") or not."""
    nodes = [
        node("MatMul", "x w", "a"),
        node("Transpose", "a", "t", perm=[1, 0]),
        node("Softmax", "t", "s", axis=1 if last == "mixed" else 0),
        node("Transpose", "s", "u", perm=[1, 0]),
        node("MatMul", "u v", "y"),
    ]
    return load(model(nodes, ["time", 6], {"w": weight(6, 8), "v": weight(8, 4)}))


def _bytes(statistics, tmp_path, name):
    statistics.save(tmp_path / name)
    return (tmp_path / name).read_bytes()


@pytest.mark.parametrize("workers", [1, 2])
def test_statistics_are_of_rows(workers, tmp_path):
    net = _pictures()
    assert takes_rows(net.graph)
    found = {name: collect(net, batches, workers=workers) for name, batches in BATCHES.items()}
    assert {sum(one.samples.values()) for one in found.values()} == {12}
    assert len({_bytes(one, tmp_path, "net.stats") for one in found.values()}) == 1
    highest = next(one for one in found["rows"].edges.values() if one.name == "x").samples.last()
    np.testing.assert_array_equal(np.sort(highest[:, 1]), np.sort(ROWS.reshape(12, -1).max(1)))


def test_a_mapping_without_an_input():
    with pytest.raises(CalibrationError, match="data: batch 1 has no value for x; expected the names x, got y"):
        collect(_pictures(), [{"x": ROWS}, {"y": ROWS}])


def test_a_network_is_tried_once(monkeypatch):
    tried, results = [], rows._results
    monkeypatch.setattr(rows, "_results", lambda graph, x: tried.append(len(x[0])) or results(graph, x))
    config = QuantConfig.of("balanced", distillation=1)
    net = _pictures()
    once = quantize_model(net, BATCHES["batches"], config)
    assert tried == [2, 1, 1]  # two rows together, and each alone
    again = quantize_model(net, BATCHES["rows"], config)
    assert all(np.array_equal(w.values, again.frozen.weights[n].values) for n, w in once.frozen.weights.items())


@pytest.mark.parametrize("effort", ["fast", "balanced"])
def test_networks_do_not_depend_on_the_batches(effort):
    net = _pictures()
    made = [
        quantize_model(net, batches, QuantConfig.of(effort, activations=RangeMethod("ema")))
        for batches in (BATCHES["rows"], BATCHES["batches"])
    ]
    x = tensor(ROWS)
    np.testing.assert_array_equal(made[0](x).numpy(), made[1](x).numpy())
    fresh = quantize_model(net, BATCHES["rows"])
    again = requantize(made[1], fresh.config)  # in which stages that judges undid are off: nothing is judged again
    np.testing.assert_array_equal(again(x).numpy(), fresh(x).numpy())


@pytest.mark.parametrize(("kind", "expected"), [("mixed", False), ("apart", True)])
def test_rows_that_depend_on_each_other_are_one_sample(kind, expected):
    net = _sequence(kind)
    assert takes_rows(net.graph) == expected
    data = [np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)]
    assert sum(collect(net, data).samples.values()) == (5 if expected else 1)


def test_a_first_axis_that_results_do_not_have_is_no_batch():
    nodes = [node("MatMul", "x w", "a"), helper.make_node("ReduceSum", ["a", "axes"], ["y"], keepdims=0)]
    net = load(model(nodes, ["time", 6], {"w": weight(6, 4), "axes": np.array([0], np.int64)}))
    assert not takes_rows(net.graph)
    assert not takes_rows(load(model([node("MatMul", "x w", "y")], [2, 6], {"w": weight(6, 4)})).graph)
