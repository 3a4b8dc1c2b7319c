"""Launches for arrays of millions of rows, columns or pictures: within the limits of grids, without their memory."""

import pytest
from cuda_checks import narrowed, parts
from paper_gpu import grown, launched

import megengine.functional
import megengine.quantization  # noqa: F401
from megengine.core.spec import TensorSpec
from megengine.dispatch import registry

LARGE = 64 * 65535 + 72  # more than a grid has blocks of 64 along y


def _specs(sample) -> list[TensorSpec]:
    return [TensorSpec(*(array.shape, dtype), "gpu0") for array, dtype in (parts(narrowed(x)) for x in sample.inputs)]


def _walk(name: str) -> int:
    """How many calls were tried, each sample of an op with one of its lengths grown."""
    tried = 0
    for sample in registry[name].samples():
        specs = _specs(sample)
        for length in {n for spec in specs for n in spec.shape}:
            tried += len(launched(name, grown(specs, length, LARGE), sample.attrs))
    return tried


@pytest.mark.parametrize(("name", "kernels"), [("qmatmul", 2), ("recurrent", 1), ("matmul", 1)])
def test_products_and_states(name, kernels):
    """Many columns of a product, and many samples of a recurrent layer."""
    assert _walk(name) >= kernels


# resize_backward launches as the others do, but its tables of millions of taps take as long as all other ops
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(registry.keys() - {"resize_backward"}))
def test_every_op(name):
    _walk(name)
