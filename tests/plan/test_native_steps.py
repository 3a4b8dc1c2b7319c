"""No step of a plan of the test zoo is Python or NumPy."""

import warnings

import numpy as np
import pytest
from zoo import ZOO

import megengine.functional as F
from megengine import plan
from megengine.core.pytree import flatten
from megengine.dispatch import apply, registry
from megengine.module import Module
from megengine.quantization import quantize_model
from megengine.tensor import Tensor, tensor
from megengine.traced_module import lower, record, trace_module


def not_native(made):
    return sorted({info.op for info in made.steps if info.kernel == "reference" or info.kernel.startswith("python:")})


@pytest.mark.parametrize("name", [name for name in ZOO if name != "autoencoder"])  # takes an argument by name
def test_every_step_of_the_zoo_is_native(name):
    net, arguments = ZOO[name]()
    made = plan.compile(trace_module(net, *arguments))
    assert not_native(made) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ZOO if name != "autoencoder"])
def test_every_step_of_the_zoo_in_integers_is_native(name):
    net, arguments = ZOO[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of loops over lengths
        graph = lower(trace_module(net, *arguments)).graph
    data = tuple(x.numpy() for x in flatten(arguments)[0] if isinstance(x, Tensor))
    made = plan.compile(quantize_model(graph, [data if len(data) > 1 else data[0]]).integer_graph)
    assert not_native(made) == []


class Inverse(Module):
    def forward(self, x):
        return F.matinv(x)


def test_what_is_not_native_is_seen():
    assert not_native(plan.compile(trace_module(Inverse(), tensor(np.eye(3, dtype=np.float32))))) == ["matinv"]


_LAPACK, _COMPLEX, _REGIONS = "NumPy's LAPACK", "complex numbers are moved, not made", "cells depend on values"
_TRAINING = "only training applies it"
_ROUNDING = "MegEngine's rounding of eager calls; integer networks have the specification's ops"
LEFT = {  # op -> why its steps call Python
    **dict.fromkeys(("det", "matinv", "svd"), _LAPACK),
    **dict.fromkeys(("roi_pooling", "roi_pooling_chosen"), _REGIONS),
    **dict.fromkeys(("batch_norm_training", "fake_quant", "running_statistics"), _TRAINING),
    **dict.fromkeys(("quantize_away", "fake_quant_away"), _ROUNDING),
    "complex": _COMPLEX,
    "logical_not": "its samples are numbers; public calls refuse them",
    "quantize": "one of its samples has scales along an axis, as weights have",
    "qlinear": "one of its samples has a result of another type than its kernels",
}


def _samples(op):
    """Inputs of the samples with elements, in float32 where they are float64."""
    for sample in op.samples():
        values = [a if isinstance(a, Tensor) else np.asarray(a) for a in sample.inputs]
        values = [a if isinstance(a, Tensor) else tensor(a, "float32" if a.dtype == "f8" else a.dtype) for a in values]
        if all(v.size for v in values):
            yield values, sample.attrs


def _is_native(op, values, attrs):
    """Whether plans have steps of their own for all operands, or for those whose parameters are constants."""
    return any(
        not not_native(
            plan.compile(record(lambda *x, n=n: apply(op, *x, *values[n:], **attrs), [v.spec for v in values[:n]]))
        )
        for n in dict.fromkeys((len(values), 1))
    )


@pytest.mark.parametrize("name", [name for name in sorted(registry) if "backward" not in name])
def test_every_op_has_a_native_step(name):
    found = [_is_native(registry[name], values, attrs) for values, attrs in _samples(registry[name])]
    assert all(found) != (name in LEFT), LEFT.get(name, "a step of this op calls Python")
