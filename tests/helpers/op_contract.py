"""The checks every op record must pass; used for the whole registry and for an op added at run time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from megengine.autodiff import GradManager
from megengine.core.errors import MegEngineError
from megengine.core.sizes import at
from megengine.core.spec import TensorSpec
from megengine.dispatch import ErrorSample, Op, Sample, apply, infer
from megengine.tensor import Tensor
from megengine.traced_module.sizes import note_counts


def single(array):
    """A sample array as the engine holds it: floats as float32."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def tensors(sample: Sample) -> list[Tensor]:
    return [Tensor._wrap(single(a)) if not isinstance(a, Tensor) else a for a in sample.inputs]


def results(out) -> tuple:
    return out if isinstance(out, tuple) else (out,)


def check_spec(op: Op, sample: Sample) -> None:
    """The inferred spec is that of the result, but for lengths that depend on values."""
    inputs = tensors(sample)
    specs = results(infer(op, [t.spec for t in inputs], dict(sample.attrs)))
    made, lengths = results(apply(op, *inputs, **sample.attrs)), {}
    for out, spec in zip(made, specs, strict=True):
        note_counts(lengths, [spec], [out.shape])
    for out, stated in zip(made, specs, strict=True):
        spec = TensorSpec(at(stated.shape, lengths), stated.dtype, stated.device)
        assert out.spec == spec
        assert out.numpy().shape == spec.shape
        assert out.numpy().dtype == getattr(spec.dtype, "storage", spec.dtype)


def check_reference(op: Op, sample: Sample) -> None:
    """What runs on float32 is near the reference on float64."""
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in sample.inputs]
    expected = results(op.reference(*wide, **sample.attrs))
    for out, want in zip(results(apply(op, *tensors(sample), **sample.attrs)), expected, strict=True):
        np.testing.assert_allclose(out.numpy(), want, rtol=2e-5, atol=2e-5)


def strided(array):
    """The same values with a gap between neighbours."""
    wide = (
        np.empty((*array.shape[:-1], array.shape[-1] * 2), array.dtype) if array.ndim else np.empty((2,), array.dtype)
    )
    view = wide[..., ::2] if array.ndim else wide[0:1].reshape(())
    view[...] = array
    return view


def turned(array):
    """The same values with the first axis as the nearest in memory."""
    return np.array(array, order="F")


def check_strided(op: Op, sample: Sample) -> None:
    """Inputs with other strides give the same bits, from the selected kernel and from the reference, and stay."""
    plain = tensors(sample)
    wanted, of_reference = results(apply(op, *plain, **sample.attrs)), of_arrays(op, plain, sample.attrs)
    for other in (strided, turned):
        moved = [Tensor._wrap(other(t.numpy()), t.dtype) for t in plain]
        before = [t.numpy().copy() for t in moved]
        for a, b in zip(wanted, results(apply(op, *moved, **sample.attrs)), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        for a, b in zip(of_reference, of_arrays(op, moved, sample.attrs), strict=True):
            np.testing.assert_array_equal(a, b)
        for t, old in zip(moved, before, strict=True):
            np.testing.assert_array_equal(t.numpy(), old)


def of_arrays(op: Op, inputs: list[Tensor], attrs) -> tuple:
    """What the reference makes of the arrays of tensors."""
    specs = [t.spec for t in inputs]
    extra = {"in_specs": specs, "out_specs": results(infer(op, specs, dict(attrs)))} if op.needs_specs else {}
    return results(op.reference(*[t.numpy() for t in inputs], **attrs, **extra))


def check_lift(op: Op, sample: Sample) -> None:
    """With the lifted attributes and an axis of length 1 in front of the longest inputs, the result has it too."""
    assert op.lift is not None
    if getattr(sample.attrs.get("dtype"), "axis", None) is not None:
        return  # plans lift no values with scales along an axis
    most = max(a.ndim for a in sample.inputs)
    given = [a.numpy() if isinstance(a, Tensor) else a for a in sample.inputs]
    lifted = [a[None] if a.ndim == most else a for a in given]
    attrs = op.lift(sample.attrs)
    wanted = results(op.reference(*given, **sample.attrs, **_specs(op, given, sample)))
    found = results(op.reference(*lifted, **attrs, **_specs(op, lifted, replace(sample, attrs=attrs))))
    for a, b in zip(wanted, found, strict=True):
        assert np.size(a) == np.size(b) and b.shape in ((1, *a.shape), a.shape)
        np.testing.assert_allclose(b.reshape(a.shape), a, rtol=1e-12)


def _specs(op: Op, arrays: Any, sample: Sample) -> dict[str, Any]:
    """Specs of the arrays, which stand for the inputs of the sample, and of the results."""
    if not op.needs_specs:
        return {}
    specs = [TensorSpec(a.shape, t.dtype) for a, t in zip(arrays, tensors(sample), strict=True)]
    return {"in_specs": specs, "out_specs": results(infer(op, specs, dict(sample.attrs)))}


def check_error(op: Op, case: ErrorSample) -> None:
    """The declared error comes with the declared text, and a note that names the op."""
    with pytest.raises(case.error, match=case.match) as caught:
        apply(op, *[Tensor._wrap(a) for a in case.inputs], **case.attrs)
    assert isinstance(caught.value, (MegEngineError, IndexError))
    assert any(f"op {op.name}" in note for note in caught.value.__notes__)


def check_gradient(op: Op, sample: Sample, seed: int = 0) -> None:
    """<vjp(ct), d> equals the central difference of <f, ct> along a random d, in float64."""
    rng = np.random.default_rng(seed)
    inputs = [Tensor._wrap(np.asarray(a, np.float64) if a.dtype.kind == "f" else a) for a in sample.inputs]
    moving = [t for t in inputs if t.dtype == np.float64]
    gm = GradManager().attach(moving)
    with gm:
        outs = [o for o in results(apply(op, *inputs, **sample.attrs)) if o.dtype == np.float64]
        cts = [Tensor._wrap(np.asarray(rng.standard_normal(o.shape))) for o in outs]
        gm.backward(outs, cts)
    if not sum(t.size for t in moving):
        return
    directions = {id(t): np.asarray(rng.standard_normal(t.shape)) for t in moving}

    def value(step: float) -> float:
        moved = [Tensor._wrap(t.numpy() + step * directions[id(t)]) if id(t) in directions else t for t in inputs]
        found = [o for o in results(apply(op, *moved, **sample.attrs)) if o.dtype == np.float64]
        return sum(float((o.numpy() * ct.numpy()).sum()) for o, ct in zip(found, cts, strict=True))

    eps = 1e-6
    numeric = (value(eps) - value(-eps)) / (2 * eps)
    exact = sum(float((t.grad.numpy() * directions[id(t)]).sum()) for t in moving if t.grad is not None)
    assert exact == pytest.approx(numeric, rel=2e-5, abs=2e-6)


def check_second_order(op: Op, sample: Sample, seed: int = 0) -> None:
    """The gradient of <vjp(ct), d> is that which central differences of it show, in float64."""
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(a, np.float64) if a.dtype.kind == "f" else a for a in sample.inputs]
    floats = [i for i, a in enumerate(arrays) if a.dtype == np.float64]
    if not sum(arrays[i].size for i in floats):
        return
    given = [Tensor._wrap(a) for a in arrays]
    shapes = [o.shape for o in results(apply(op, *given, **sample.attrs)) if o.dtype == np.float64]
    cts = [np.asarray(rng.standard_normal(s)) for s in shapes]
    directions = {i: np.asarray(rng.standard_normal(arrays[i].shape)) for i in floats}
    onward = {i: np.asarray(rng.standard_normal(arrays[i].shape)) for i in floats}

    def slope(step: float, *, differentiate: bool = False) -> float:
        """<vjp(ct), d> at a step along the second direction, or its derivative there by the rules."""
        inputs = [Tensor._wrap(a + step * onward[i]) if i in onward else Tensor._wrap(a) for i, a in enumerate(arrays)]
        moving = [inputs[i] for i in floats]
        outer, inner = GradManager().attach(moving), GradManager().attach(moving)
        with outer:
            with inner:
                outs = [o for o in results(apply(op, *inputs, **sample.attrs)) if o.dtype == np.float64]
                inner.backward(outs, [Tensor._wrap(ct) for ct in cts])
            pairs = [(inputs[i].grad, directions[i]) for i in floats if inputs[i].grad is not None]
            for t in moving:
                t.grad = None
            parts = [(g * Tensor._wrap(d)).sum() for g, d in pairs]
            if not differentiate:
                return sum(float(p.numpy()) for p in parts)
            if parts:
                outer.backward(parts, [Tensor._wrap(np.float64(1)) for _ in parts])
        return sum(float((inputs[i].grad.numpy() * onward[i]).sum()) for i in floats if inputs[i].grad is not None)

    eps = 1e-5
    numeric = (slope(eps) - slope(-eps)) / (2 * eps)
    assert slope(0.0, differentiate=True) == pytest.approx(numeric, rel=2e-4, abs=1e-5)
