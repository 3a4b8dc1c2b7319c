"""Every op record keeps its contract: inferred spec, reference, gradient, strides, empty input, declared errors."""

import numpy as np
import pytest

import megengine.functional  # noqa: F401
from megengine.core.spec import TensorSpec
from megengine.dispatch import NoRule, OnnxRule, apply, infer, registry
from megengine.tensor import Tensor

OPS = sorted(registry)
CASES = [(name, i, s) for name in OPS for i, s in enumerate(registry[name].samples())]
IDS = [f"{name}-{i}" for name, i, _ in CASES]


def single(array):
    """A sample array as the engine holds it: floats as float32."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def tensors(sample):
    return [Tensor._wrap(single(a)) if not isinstance(a, Tensor) else a for a in sample.inputs]


def results(out):
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize(("name", "index", "sample"), CASES, ids=IDS)
def test_result_has_the_inferred_spec(name, index, sample):
    inputs = tensors(sample)
    specs = results(infer(name, [t.spec for t in inputs], dict(sample.attrs)))
    for out, spec in zip(results(apply(name, *inputs, **sample.attrs)), specs, strict=True):
        assert out.spec == spec
        assert out.numpy().shape == spec.shape


@pytest.mark.parametrize(("name", "index", "sample"), CASES, ids=IDS)
def test_float32_result_is_near_the_float64_reference(name, index, sample):
    op = registry[name]
    if op.needs_specs or op.random:
        pytest.skip("compared by a test of its own")
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in sample.inputs]
    expected = op.reference(*wide, **sample.attrs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for out, want in zip(results(apply(name, *tensors(sample), **sample.attrs)), expected, strict=True):
        np.testing.assert_allclose(out.numpy(), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("name", "index", "sample"), CASES, ids=IDS)
def test_strided_input_gives_the_same(name, index, sample):
    if registry[name].random:
        pytest.skip("random")

    def strided(a):
        wide = np.empty((*a.shape[:-1], a.shape[-1] * 2), a.dtype) if a.ndim else np.empty((2,), a.dtype)
        view = wide[..., ::2] if a.ndim else wide[0:1].reshape(())
        view[...] = a
        return view

    plain = tensors(sample)
    moved = [Tensor._wrap(strided(t.numpy()), t.dtype) for t in plain]
    for a, b in zip(
        results(apply(name, *plain, **sample.attrs)), results(apply(name, *moved, **sample.attrs)), strict=True
    ):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-6)


ERRORS = [(name, i, e) for name in OPS for i, e in enumerate(registry[name].error_samples())]


@pytest.mark.parametrize(("name", "index", "case"), ERRORS, ids=[f"{n}-{i}" for n, i, _ in ERRORS])
def test_declared_errors(name, index, case):
    with pytest.raises(case.error, match=case.match) as caught:
        apply(name, *[Tensor._wrap(a) for a in case.inputs], **case.attrs)
    assert any(f"op {name}" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("name", OPS)
def test_rules_are_present_or_give_a_reason(name):
    op = registry[name]
    assert isinstance(op.onnx, (OnnxRule, NoRule))
    assert callable(op.vjp) or (isinstance(op.vjp, NoRule) and op.vjp.reason)
    assert list(op.samples()), "an op needs at least one sample"


def test_infer_needs_no_data():
    spec = TensorSpec((4, 3, 1 << 20, 1 << 20), np.dtype(np.float32))
    assert infer("relu", [spec], {}) == spec
