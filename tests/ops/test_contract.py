"""Every op record keeps its contract: inferred spec, reference, strides, gradient, empty input, declared errors."""

import numpy as np
import pytest
from op_contract import (
    check_error,
    check_gradient,
    check_lift,
    check_reference,
    check_second_order,
    check_spec,
    check_strided,
)

import megengine.functional  # noqa: F401
from megengine.core.spec import TensorSpec
from megengine.dispatch import NoRule, OnnxRule, OnnxWriter, QuantRule, infer, registry
from megengine.dispatch.record import no_macs

OPS = sorted(registry)
CASES = [(name, i, s) for name in OPS for i, s in enumerate(registry[name].samples())]
ERRORS = [(name, i, e) for name in OPS for i, e in enumerate(registry[name].error_samples())]

# ops with a gradient and no sample to check it with -> where it is checked instead
_NEIGHBOURS = "tests/autodiff/test_gradients.py checks it together with others, since it changes the kind of numbers"
_STRAIGHT = "its gradient goes straight through, and is not the derivative of the steps that it computes"
UNCHECKED = {
    **dict.fromkeys(("cast", "complex", "imag", "real"), _NEIGHBOURS),
    **dict.fromkeys(("fake_quant", "fake_quant_away"), _STRAIGHT),
}


def table(cases):
    return pytest.mark.parametrize(("name", "sample"), [pytest.param(n, s, id=f"{n}-{i}") for n, i, s in cases])


def having(condition):
    return table([(n, i, s) for n, i, s in CASES if condition(registry[n], s)])


@table(CASES)
def test_result_has_the_inferred_spec(name, sample):
    check_spec(registry[name], sample)


@having(lambda op, s: not op.needs_specs and not op.random)
def test_float32_result_is_near_the_float64_reference(name, sample):
    check_reference(registry[name], sample)


@having(lambda op, s: not op.random)
def test_strided_input_gives_the_same(name, sample):
    check_strided(registry[name], sample)


@having(lambda op, s: op.lift is not None)
def test_an_axis_in_front_changes_nothing_else(name, sample):
    check_lift(registry[name], sample)


@having(lambda op, s: callable(op.vjp) and s.differentiable)
def test_gradient_in_a_random_direction(name, sample):
    check_gradient(registry[name], sample)


@having(lambda op, s: callable(op.vjp) and s.differentiable)
def test_gradient_of_the_gradient(name, sample):
    check_second_order(registry[name], sample)


@pytest.mark.parametrize("name", OPS)
def test_every_differentiable_op_is_checked(name):
    """A rule that no sample tries is no rule."""
    op = registry[name]
    if callable(op.vjp) and name not in UNCHECKED:
        assert any(s.differentiable for s in op.samples()), f"{name} has a vjp and no differentiable sample"


@table(ERRORS)
def test_declared_errors(name, sample):
    check_error(registry[name], sample)


@pytest.mark.parametrize("name", OPS)
def test_rules_are_present_or_give_a_reason(name):
    op = registry[name]
    assert isinstance(op.onnx, (OnnxRule, OnnxWriter)) or (isinstance(op.onnx, NoRule) and op.onnx.reason)
    assert callable(op.vjp) or (isinstance(op.vjp, NoRule) and op.vjp.reason)
    assert isinstance(op.quant, QuantRule) or (isinstance(op.quant, NoRule) and op.quant.reason)
    assert list(op.samples()), "an op needs at least one sample"


def test_infer_needs_no_data():
    spec = TensorSpec((4, 3, 1 << 20, 1 << 20), np.dtype(np.float32))
    assert infer("relu", [spec], {}) == spec


@pytest.mark.parametrize("name", [name for name in OPS if isinstance(registry[name].quant, QuantRule)])
def test_quantization_rules_are_of_known_kinds_and_ops(name):
    rule = registry[name].quant
    moves = {"clamp", "shape", "concat", "gather"}
    assert rule.kind in {"weighted", "add", "pair", "pool", "softmax", "table", "part", "sequence", *moves}
    assert not rule.integer or isinstance(registry[rule.integer].quant, NoRule)
    assert (rule.kind == "clamp") == (rule.clamp is not None)
    assert (rule.kind == "weighted") == (rule.weight_axis is not None)
    assert (rule.weighted or rule.scans) == (registry[name].macs is not no_macs)
