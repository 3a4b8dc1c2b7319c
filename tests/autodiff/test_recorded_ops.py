"""Gradients of ops as the recorded cases call them, with every combination of attributes that occurs there: first and
second order against central differences, forward against reverse mode. The samples of the records are fewer.
"""

import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from op_contract import check_gradient, check_second_order, results

import megengine
import megengine.functional as F
from megengine.autodiff import GradManager, jvp
from megengine.core.errors import MegEngineError
from megengine.dispatch import Sample, apply, registry
from megengine.dispatch.apply import Listener, interpose
from megengine.ops.ordered import ORDERED
from megengine.tensor import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "recording"))
import edge_cases  # noqa: F401
from cases import CASES

pytestmark = pytest.mark.slow
LARGEST, OF_EACH = 3000, 12  # elements of a call, calls of an op
STRAIGHT = {"fake_quant", "fake_quant_away"}  # their gradients are no derivatives
# occur in gradients alone, or take complex numbers: samples of the records and test_gradients.py check them
RARE = {"imag", "real", "resize_backward", "roi_pooling_backward", "roi_pooling_chosen"}
RARE |= {*ORDERED.values()}  # of integer networks
RARE |= {"elementwise"}  # of plans, and of gradients on GPUs
RARE |= {"det", "gather_elements", "scatter_elements", "scatter_nd", "pool"}  # ONNX's, of no function
STEEP = {"batch_norm"}  # with integers for variances, some of them 0


class Calls(Listener):
    """Notes one call of each op for each combination of attributes, dtypes and numbers of axes."""

    def __init__(self):
        self.found = {}

    def observe(self, op, tensors, attrs, out):
        plain = all(isinstance(t.dtype, np.dtype) for t in tensors)
        if not callable(op.vjp) or op.name in STRAIGHT or not plain or sum(t.size for t in tensors) > LARGEST:
            return
        if attrs.get("full") or not any(t.dtype.kind == "f" for t in tensors):
            return  # vectors of full singular value decompositions have no gradient
        if op.name in STEEP and any(t.dtype.kind in "iu" for t in tensors):
            return
        kind = (str(sorted(attrs.items(), key=str)), *[(t.dtype.kind, t.ndim, 0 in t.shape) for t in tensors])
        calls = self.found.setdefault(op.name, {})
        if kind not in calls and len(calls) < OF_EACH:
            calls[kind] = Sample(tuple(moved(t.numpy()) for t in tensors), dict(attrs))


def moved(x):
    """Numbers aside of where functions bend, as float64; indices and masks as they are, infinities large."""
    if x.dtype.kind != "f":
        return x
    rng = np.random.default_rng(zlib.crc32(str(x.shape).encode()))
    return np.clip(x.astype(np.float64), -100, 100) + rng.uniform(1e-3, 2e-3, x.shape)


@pytest.fixture(scope="module")
def calls():
    heard = Calls()
    for name, entry in CASES.items():
        if name.startswith(("optimizer ", "init ")):
            continue
        try:
            with interpose(heard):
                entry.call(F, *[megengine.tensor(x, dtype=x.dtype) for x in entry.inputs])
        except MegEngineError:
            continue
    return heard.found


def check_forward(op, sample):
    """<ct, jvp(d)> equals <vjp(ct), d>."""
    rng = np.random.default_rng(0)
    inputs = [Tensor._wrap(a) for a in sample.inputs]
    floats = [i for i, t in enumerate(inputs) if t.dtype == np.float64]
    directions = [Tensor._wrap(np.asarray(rng.standard_normal(inputs[i].shape))) for i in floats]

    def function(*given):
        args = list(inputs)
        for i, value in zip(floats, given, strict=True):
            args[i] = value
        return tuple(o for o in results(apply(op, *args, **sample.attrs)) if o.dtype == np.float64)

    points = [inputs[i].detach() for i in floats]
    with GradManager().attach(points) as manager:
        outputs = function(*points)
        cts = [Tensor._wrap(np.asarray(rng.standard_normal(o.shape))) for o in outputs]
        manager.backward(list(outputs), cts)
    if not outputs:
        return
    _, tangents = jvp(function, points, directions)
    forward = sum(float((t.numpy() * ct.numpy()).sum()) for t, ct in zip(tangents, cts, strict=True))
    pairs = [(p.grad, d) for p, d in zip(points, directions, strict=True) if p.grad is not None]
    assert forward == pytest.approx(sum(float((g.numpy() * d.numpy()).sum()) for g, d in pairs), rel=1e-8, abs=1e-8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("check", [check_gradient, check_second_order, check_forward])
def test_gradients_of_recorded_calls(calls, check):
    wrong = []
    for name in sorted(calls):
        for sample in calls[name].values():
            try:
                check(registry[name], sample)
            except (AssertionError, MegEngineError) as error:
                shapes = [(a.dtype.name, a.shape) for a in sample.inputs]
                wrong.append(f"{name} {sample.attrs} {shapes}: {str(error)[:200]}")
    assert wrong == []


def test_they_are_of_every_op(calls):
    rules = {name for name, op in registry.items() if callable(op.vjp)}
    assert rules - set(calls) - STRAIGHT - RARE == set()
    assert sum(map(len, calls.values())) > 400
