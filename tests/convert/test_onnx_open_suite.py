"""Each operator with open axes is right at other sizes, or refused where the file is read."""

from pathlib import Path

import node_suite
import numpy as np
import open_suite
import pytest
from onnx import TensorProto, helper, numpy_helper

from megengine.convert.onnx import load
from megengine.convert.onnx.context import RULES
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import FileFormatError
from megengine.plan import compile as compile_plan
from megengine.quantization import quantize_model, verify
from megengine.traced_module.formats import native
from tests.helpers.onnx_runtime import answers, session_of

FLOAT = TensorProto.FLOAT
ALLOWED = (open_suite.PASSED, open_suite.REFUSED, open_suite.NAMED, open_suite.UNKNOWN)
# of the operators whose rules compute with sizes: a sample of the cases that the slow test runs
SAMPLE = (
    *(
        "averagepool_2d_ceil",
        "averagepool_2d_same_upper",
        "conv_with_autopad_same",
        "cumsum_2d_axis_0",
        "depthtospace_example",
    ),
    *("einsum_batch_matmul", "expand_dim_changed", "eyelike_with_dtype", "flatten_axis2", "gather_elements_1"),
    *("gathernd_example_int32_batch_dim1", "gridsample_reflection_padding", "group_normalization_epsilon", "lrn"),
    *("maxpool_2d_same_lower", "maxunpool_export_without_output_shape", "onehot_with_axis", "reflect_pad", "wrap_pad"),
    *("resize_upsample_scales_linear_align_corners", "resize_downsample_sizes_nearest", "resize_tf_crop_and_resize"),
    *("resize_upsample_scales_cubic_A_n0p5_exclude_outside", "reversesequence_batch", "roialign_aligned_false"),
    *("slice_neg_steps", "softmax_axis_1", "spacetodepth_example", "split_equal_parts_2d", "stft", "tensorscatter"),
    *("tile", "top_k", "tril_pos", "unsqueeze_two_axes", "basic_deform_conv_without_padding", "col2im_pads"),
)


def bad(name, **options):
    found = [one for one in open_suite.outcomes_of(name, **options) if one.state not in ALLOWED]
    return "\n".join(f"{one.state} {one.name} {one.opened}: {one.reason}" for one in found)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_case_is_right_at_other_sizes(name):
    assert not bad(f"test_{name}")


@pytest.mark.slow
def test_a_case_of_every_operator_is_right_at_other_sizes():
    first = {node_suite.operator_of(name): name for name in reversed(node_suite.cases()) if "_expanded" not in name}
    found = [bad(name, last=2) for name in first.values()]
    assert not any(found), "\n".join(filter(None, found))


def one(kind, shape, stored=(), **attrs):
    """A node of an input with open axes and stored values."""
    names = [name for name, _ in stored]
    node = helper.make_node(kind, ["x", *names], ["y"], name="middle", **attrs)
    constants = [numpy_helper.from_array(value, name) for name, value in stored if name]
    x, y = helper.make_tensor_value_info("x", FLOAT, shape), helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph([node], "net", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def rows_of(node, x):
    return node.apply("reshape", x, shape=(-1, int(x.shape[1]), 1))


BAKED = {
    "attribute": lambda node: node.apply("sum", rows_of(node, node.input(0)), axis=(0,), keepdims=False),
    "constant": lambda node: node.apply("mul", node.input(0), float(int(node.input(0).shape[0]))),
    "structure": lambda node: node.apply("relu" if int(node.input(0).shape[0]) == 1 else "abs", node.input(0)),
}


@pytest.mark.parametrize("kind", BAKED)
def test_a_rule_that_takes_a_size_for_a_number_is_found(kind, monkeypatch):
    """Whatever a rule makes of the example's size alone is refused, with the node, and what to do."""
    monkeypatch.setitem(RULES, "Selu", BAKED[kind])
    model = one("Selu", ["n", "length"])
    with pytest.raises(FileFormatError, match=r"node 'middle' .*n = 1, length = 16; n = 2, length = 48.*input_shapes="):
        load(model)
    assert load(model, input_shapes=(2, 3))(np.ones((2, 3), np.float32)) is not None


RESIZES = [
    ("linear", "half_pixel", {}),
    ("linear", "align_corners", {}),
    ("linear", "asymmetric", {}),
    ("cubic", "half_pixel", {"cubic_coeff_a": -0.5, "exclude_outside": 1}),
    ("cubic", "align_corners", {}),
    ("nearest", "half_pixel", {"nearest_mode": "ceil"}),
    ("nearest", "align_corners", {"nearest_mode": "round_prefer_ceil"}),
    ("nearest", "asymmetric", {"nearest_mode": "floor"}),
]


@pytest.mark.parametrize(("mode", "where", "options"), RESIZES)
@pytest.mark.parametrize("new", [(7, 5), (40, 64), (1, 1)])
def test_a_resize_to_fixed_sizes_of_open_ones(mode, where, options, new):
    """Our op has some of these forms only; the others are computed from the lengths where the network runs."""
    sizes = np.array([1, 3, *new], np.int64)
    stored = [("", None), ("", None), ("sizes", sizes)]
    model = one("Resize", [1, 3, "h", "w"], stored, mode=mode, coordinate_transformation_mode=where, **options)
    net, wanted = load(model), open_suite.Reference(model)
    for shape in ((1, 3, 9, 11), (1, 3, 16, 5), (1, 3, 40, 64)):
        x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
        np.testing.assert_allclose(net(x).numpy(), wanted([x])[0], rtol=1e-5, atol=1e-5, err_msg=str(shape))


def test_wrapping_goes_around_open_axes():
    pads = np.array([0, 5, 0, 4], np.int64)
    net = load(one("Pad", ["n", "w"], [("pads", pads)], mode="wrap"), example_sizes={"w": 3})
    for shape in ((1, 3), (2, 7), (3, 2), (1, 1)):
        x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
        np.testing.assert_array_equal(net(x).numpy(), np.pad(x, [(0, 0), (5, 4)], mode="wrap"))


def test_reflection_beside_an_axis_that_is_shorter_than_its_padding():
    pads = np.array([2, 5, 1, 4], np.int64)
    net = load(one("Pad", ["length", 3], [("pads", pads)], mode="reflect"))
    for length in (3, 7, 1):
        x = np.random.default_rng(0).normal(0, 1, (length, 3)).astype(np.float32)
        np.testing.assert_array_equal(net(x).numpy(), np.pad(x, [(2, 1), (5, 4)], mode="reflect"))


# a largest difference from ONNX Runtime for each network, some times what float32 sums in another order make
EXPORTED = {
    "windows": ([(1, 3, 8, 12), (2, 3, 21, 13), (3, 3, 32, 31)], 5e-6),
    "pyramid": ([(1, 3, 16, 24), (2, 3, 21, 13), (3, 3, 32, 31)], 5e-6),
    "separator": ([(1, 1, 64), (2, 1, 100), (3, 1, 37)], 5e-6),
    "borders": ([(1, 3, 16, 24), (2, 3, 21, 13), (3, 3, 9, 31)], 5e-6),
    "best": ([(1, 9, 8), (2, 5, 8), (3, 18, 8)], 0),
}


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_networks_whose_sizes_follow_from_others(name, tmp_path):
    """Eager, plan, a file read back, and the exported file, at three sizes."""
    shapes, bound = EXPORTED[name]
    path = Path(__file__).parents[1] / "data" / "onnx_open" / f"{name}.onnx"
    net, wanted = load(path), session_of(str(path))
    native.save(net, tmp_path / "net.mgt")
    plan, read, exported = compile_plan(net), native.load(tmp_path / "net.mgt"), session_of(to_model(net))
    for shape in shapes:
        x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
        (want,) = answers(wanted, [x])
        for got in (net(x).numpy(), plan(x)[0], read(x).numpy(), answers(exported, [x])[0]):
            np.testing.assert_allclose(got, want, rtol=0, atol=bound, err_msg=str(shape))


@pytest.mark.parametrize("name", ["windows", "separator", "borders"])
def test_integer_networks_of_them_are_exact_at_sizes_that_calibration_did_not_see(name):
    shapes, _ = EXPORTED[name]
    path = Path(__file__).parents[1] / "data" / "onnx_open" / f"{name}.onnx"
    rng = np.random.default_rng(0)
    first, second, other = (rng.normal(0, 1, shape).astype(np.float32) for shape in shapes)
    model = quantize_model(load(path), [first, second])
    assert verify(model, [other]).exact
    (got,) = answers(session_of(to_model(model.exchange_graph())), [other])
    assert got.shape == model(other).shape
