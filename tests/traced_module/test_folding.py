"""The arithmetic by which scales and offsets become part of layers: right, and there once."""

import ast
from pathlib import Path

import numpy as np
import pytest

import megengine
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op
from megengine.traced_module.passes.folding import absorbed

ROOMS = ("traced_module", "plan", "quantization/pipeline", "convert")


def of_roots(tree: ast.Module) -> list[str]:
    """Functions that divide arrays by the root of a sum, as a batch norm does."""
    found = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            quotients = [n.right for n in ast.walk(function) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)]
            roots = [n for q in quotients for n in ast.walk(q) if isinstance(n, ast.Call)]
            if any(ast.unparse(n).startswith("np.sqrt(") and isinstance(n.args[0], ast.BinOp) for n in roots):
                found.append(function.name)
    return found


def test_batch_norms_are_taken_apart_in_one_function():
    package = Path(megengine.__file__).parent
    trees = {p: ast.parse(p.read_text()) for room in ROOMS for p in (package / room).rglob("*.py")}
    assert [name for tree in trees.values() for name in of_roots(tree)] == ["norm_map"]
    users = {p.stem for p, tree in trees.items() if "norm_map" in ast.unparse(tree)}
    assert users == {"affine_maps", "folding", "canonicalize"}
    makers = [p.stem for p, tree in trees.items() if "casting='same_kind'" in ast.unparse(tree)]
    assert makers == ["folding"]


@pytest.mark.parametrize("in_front", [False, True], ids=["behind", "in_front"])
@pytest.mark.parametrize("op", ["conv2d", "conv_transpose2d", "matmul", "grouped conv2d", "grouped conv_transpose2d"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["no_bias", "bias"])
def test_a_layer_absorbs_an_affine_map_of_channels(op, in_front, with_bias):
    rng = np.random.default_rng(0)
    groups, op = (2 if op.startswith("grouped") else 1), op.split()[-1]
    record, inputs, outputs = get_op(op), 4, 6
    if op == "matmul":
        x, weight, attrs = rng.standard_normal((3, inputs)), rng.standard_normal((inputs, outputs)), {}
        attrs = {"transpose_a": False, "transpose_b": False}
    else:
        sides = (inputs, outputs // groups) if record.transposed else (outputs, inputs // groups)
        x, weight = rng.standard_normal((2, inputs, 5, 5)), rng.standard_normal((*sides, 2, 2))
        attrs = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": groups}
        attrs |= {"output_padding": (0, 0)} if record.transposed else {}
    bias = rng.standard_normal(outputs) if with_bias else None
    scale, shift = rng.standard_normal((2, inputs if in_front else outputs))
    shift = None if in_front and record.transposed else shift  # which its borders would not see
    by_channel = (lambda v: v) if op == "matmul" else (lambda v: v.reshape(-1, 1, 1))
    added = by_channel(bias) if with_bias else 0.0

    def step(value):
        return value * by_channel(scale) + (0.0 if shift is None else by_channel(shift))

    layer = record.reference
    want = layer(step(x), weight, **attrs) + added if in_front else step(layer(x, weight, **attrs) + added)
    settings = {"groups": groups, "output_first": op == "conv2d", "in_front": in_front}
    made, offset = absorbed(weight, bias, (scale, shift), **settings)
    assert TensorSpec(made.shape, made.dtype) == TensorSpec(weight.shape, weight.dtype) and offset.shape == (outputs,)
    np.testing.assert_allclose(layer(x, made, **attrs) + by_channel(offset), want, rtol=1e-12, atol=1e-12)
    single = weight.astype(np.float32)
    exact, _ = absorbed(single, None, (scale, shift), **settings)
    wide, _ = absorbed(single.astype(np.float64), None, (scale, shift), **settings)
    np.testing.assert_array_equal(exact, wide.astype(np.float32))
