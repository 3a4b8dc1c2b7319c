"""Rules that write several ONNX nodes, against the onnx package's own evaluation."""

import numpy as np
import pytest

from megengine.convert.onnx import load_graph
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import GraphError
from megengine.core.spec import TensorSpec
from megengine.tensor import Tensor
from megengine.traced_module import InternalGraph, TracedModule, interpret
from megengine.traced_module.editing.expressions import add_input, set_outputs
from tests.helpers.onnx_runtime import answers, same, session_of

onnx = pytest.importorskip("onnx")
RNG = np.random.default_rng(0)
FULL = (None, None, None)
ROWS, COLUMNS = np.int32([[2, 0], [1, -1]]), np.int32([3, -4])


def evaluated(graph, *arrays):
    """(ONNX's result, ours) of a graph."""
    from onnx.reference import ReferenceEvaluator

    model = to_model(TracedModule.from_graph(graph))
    there = ReferenceEvaluator(model).run(None, {n.name: a for n, a in zip(graph.inputs, arrays, strict=True)})
    return there[0], interpret(graph, [Tensor(a, dtype=a.dtype) for a in arrays])[0].numpy()


def graph_of(op, arrays, attrs, constant=()):
    graph = InternalGraph("net")
    nodes = []
    for i, array in enumerate(arrays):
        fixed = i in constant
        nodes.append(
            graph.constant(array) if fixed else add_input(graph, f"x{i}", TensorSpec(array.shape, array.dtype))
        )
    set_outputs(graph, [graph.apply(op, *nodes, attrs=attrs, name="out")])
    return graph


def check(op, arrays, attrs, constant=(), atol=0.0):
    graph = graph_of(op, arrays, attrs, constant)
    there, ours = evaluated(graph, *(a for i, a in enumerate(arrays) if i not in constant))
    assert there.shape == ours.shape and there.dtype == ours.dtype
    np.testing.assert_allclose(there, ours, rtol=0, atol=atol)


def numbers(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("mode", "corners"), [("nearest", False), ("linear", False), ("linear", True), ("cubic", False), ("cubic", True)]
)
@pytest.mark.parametrize("size", [(8, 3), (5, 6), (1, 1), (10, 12), (2, 13)])
def test_resize(mode, corners, size):
    check("resize", [numbers(1, 2, 5, 6)], {"size": size, "mode": mode, "corners": corners}, atol=2e-5)


PATTERNS = [
    ((3, 4), ("i", FULL), [ROWS]),
    ((3, 4), (FULL, "i"), [ROWS]),
    ((3, 4), ((0, 2, 1), "i"), [COLUMNS]),
    ((3, 4), ((None, None, -1), "i"), [COLUMNS]),
    ((3, 4), ("i", "i"), [ROWS, COLUMNS]),
    ((3, 4, 5), ("i", (0, 2, 1), "i"), [ROWS, COLUMNS]),
    ((3, 4, 5), ("i", FULL, "i"), [ROWS, np.int32(1)]),
    ((2, 3, 4), (FULL, "i", "i"), [ROWS, COLUMNS]),
    ((2, 3, 4, 5), ((1, 2, 1), "i", "i", (None, None, 2)), [ROWS, COLUMNS]),
    ((3, 4), ("i", FULL), [np.zeros((0,), np.int32)]),
]


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("case", range(len(PATTERNS)))
def test_index(case, fixed):
    shape, pattern, indices = PATTERNS[case]
    arrays = [numbers(*shape), *map(np.asarray, indices)]
    check("index", arrays, {"pattern": pattern}, range(1, len(arrays)) if fixed else ())


ASSIGNED = [
    ((3, 4), ("i", (0, 2, 1)), [np.int32([2, 0])], (2, 1)),
    ((3, 4), (FULL, (None, None, 2)), [], (3, 2)),
    ((3, 4), ("i", "i"), [np.int32([0, 2]), np.int32([3, -4])], ()),
    ((2, 3, 4), (FULL, "i", FULL), [np.int32([-1])], (4,)),
    ((3, 4), ((1, 1, 1), FULL), [], (1, 4)),
]


@pytest.mark.parametrize("case", range(len(ASSIGNED)))
def test_assignment(case):
    shape, pattern, indices, value = ASSIGNED[case]
    arrays = [numbers(*shape), numbers(*value), *indices]
    check("set_index", arrays, {"pattern": pattern}, range(2, len(arrays)))


def test_assignments_without_a_form_are_refused():
    twice = [numbers(3, 4), numbers(2, 4), np.int32([1, 1])]
    with pytest.raises(GraphError, match=r"'out' \(set_index\): assignment to one element twice"):
        to_model(TracedModule.from_graph(graph_of("set_index", twice, {"pattern": ("i", FULL)}, (2,))))
    with pytest.raises(GraphError, match="only constant indices are written"):
        to_model(TracedModule.from_graph(graph_of("set_index", twice, {"pattern": ("i", FULL)})))


def test_one_hot():
    check("one_hot", [np.int32([[0, 3], [2, 1]])], {"depth": 4})
    check("one_hot", [np.int32(2)], {"depth": 3})


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_bounds_have_the_type_of_what_is_clipped(dtype):
    check("clip", [(numbers(3, 4) * 5).astype(dtype)], {"lo": -2.0, "hi": 3.0})
    if dtype is np.float32:
        check("clip", [numbers(3, 4)], {"lo": 0.0, "hi": float("inf")})


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("result", [0, 1])
def test_topk(descending, result):
    graph = InternalGraph("net")
    x = add_input(graph, "x", TensorSpec((3, 5), np.dtype(np.float32)))
    found = graph.apply("topk", x, attrs={"k": 3, "descending": descending}, name="top")
    set_outputs(graph, [found[result]])
    there, ours = evaluated(graph, numbers(3, 5))
    assert there.dtype == ours.dtype
    np.testing.assert_array_equal(there, ours)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("many", [False, True])
def test_a_computed_index_is_read_back(axis, many):
    pattern = tuple("i" if a == axis else FULL for a in range(3))
    places = np.resize(np.int32([[1, 0], [-1, 1]]), (1100, 2) if many else (2, 2))
    arrays = [numbers(2, 3, 2), places]
    graph = graph_of("index", arrays, {"pattern": pattern}, (1,) if many else ())
    given = [Tensor(a) for a in arrays[: 1 if many else 2]]
    back = load_graph(to_model(TracedModule.from_graph(graph)).SerializeToString())
    np.testing.assert_array_equal(interpret(back, given)[0].numpy(), interpret(graph, given)[0].numpy())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_halves_are_rounded_away_from_zero_and_nothing_less(dtype):
    most = 2.0 ** np.finfo(dtype).nmant  # odd numbers above it have no place for a half
    ends = np.array(
        [0.5, np.nextafter(dtype(0.5), dtype(0)), 1.5, 2.5, most + 1, most / 2 + 0.5, np.inf, np.nan], dtype
    )
    values = np.concatenate([ends, -ends])
    check("round", [values], {})
    if dtype != np.float64:
        pytest.importorskip("onnxruntime")
        graph = graph_of("round", [values], {})
        model = to_model(TracedModule.from_graph(graph))
        want = interpret(graph, [Tensor(values, dtype=values.dtype)])[0].numpy()
        np.testing.assert_array_equal(session_of(model).run(None, {graph.inputs[0].name: values})[0], want)


_PLAIN = {"transpose_a": False, "transpose_b": False}


@pytest.mark.parametrize("keepdims", [True, False])
def test_a_mean_of_64_bit_floats_runs_in_onnx_runtime(keepdims):
    """It has no GlobalAveragePool of them."""
    pytest.importorskip("onnxruntime")
    x = RNG.standard_normal((2, 3, 4, 5))
    model = to_model(TracedModule.from_graph(graph_of("mean", [x], {"axis": (2, 3), "keepdims": keepdims})))
    (got,) = answers(session_of(model), [x])
    np.testing.assert_allclose(got, x.mean((2, 3), keepdims=keepdims), rtol=1e-12)


def test_a_product_that_is_a_result_and_is_turned_loads_in_onnx_runtime():
    """Of a Gemm it fuses the transposition away, and does not find the first result (similarities of CLIP)."""
    pytest.importorskip("onnxruntime")
    a, b = numbers(3, 4), numbers(5, 4)
    graph = InternalGraph("net")
    x, w = (add_input(graph, n, TensorSpec(array.shape, array.dtype)) for n, array in (("x", a), ("w", b)))
    y = graph.apply("matmul", x, graph.apply("transpose", w, attrs={"perm": (1, 0)}), attrs=_PLAIN)
    set_outputs(graph, [y, graph.apply("transpose", y, attrs={"perm": (1, 0)})])
    same(answers(session_of(to_model(TracedModule.from_graph(graph))), [a, b]), [a @ b.T, b @ a.T])


def test_a_network_larger_than_the_format_is_refused(monkeypatch, tmp_path):
    from megengine.convert.onnx import export, writing

    turned = {"transpose_a": False, "transpose_b": False}
    graph = graph_of("matmul", [np.ones((2, 8), np.float32), np.ones((8, 8), np.float32)], turned, constant=(1,))
    net = TracedModule.from_graph(graph)
    path = tmp_path / "net.onnx"
    monkeypatch.setattr(writing, "MAX_BYTES", 256)
    export(net, path)
    old = path.read_bytes()
    monkeypatch.setattr(writing, "MAX_BYTES", 255)
    with pytest.raises(GraphError, match=r"the constants up to '.*' need 256 bytes; one .onnx file holds at most 255"):
        export(net, path)
    assert path.read_bytes() == old


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("op", ["sum", "mean", "max", "prod"])
@pytest.mark.parametrize(("shape", "axis"), [((2, 3), ()), ((), None)])
def test_a_reduction_of_no_axes_is_written(op, opset, shape, axis):
    """ONNX takes an empty list for all axes; a scalar has none."""
    x = numbers(*shape) if shape else np.array(3, np.float32)
    graph = graph_of(op, [x], {"axis": axis, "keepdims": False})
    (made,) = answers(session_of(to_model(graph, opset=opset)), [x])
    np.testing.assert_array_equal(made, x)
