"""Pooling of regions, on the emulated GPU, beside NumPy."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, problem_of, same
from emulated_gpu import EmulatedGpu

from megengine.core.errors import IndexOutOfRangeError
from megengine.dispatch import get_op
from megengine.kernels.cuda import regions
from megengine.kernels.cuda.runtime import installed
from megengine.kernels.registry import family

MODES = ("max", "average")


def pictures(seed=0):
    return np.random.default_rng(seed).standard_normal((2, 3, 9, 8)).astype(np.float32)


ROIS = np.array(
    [
        [0, 0.5, 0.6, 4.2, 4.4],
        [1, 1, 1, 9, 9],
        [0, 3, 2, 1, 5],
        [1, -7, -7, -3, -3],
        [0, 0, 0, 20, 20],
        [1, 3, 3, 3, 3],
    ],
    np.float32,
)


@pytest.mark.parametrize("op", regions.KERNELS)
def test_samples(op):
    for sample in get_op(op).samples():
        for inputs in ([narrowed(x) for x in sample.inputs], sample.inputs):
            found, wanted = on_gpu(op, inputs, sample.attrs), by_reference(op, inputs, sample.attrs)
            same(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 4)])
def test_regions_inside_across_and_outside(mode, size):
    x, attrs = pictures(), {"size": size, "mode": mode, "scale": 1.0}
    found, wanted = on_gpu("roi_pooling", (x, ROIS), attrs), by_reference("roi_pooling", (x, ROIS), attrs)
    same(found[1:], wanted[1:])
    same(found[:1], wanted[:1], **({} if mode == "max" else {"rtol": 1e-6, "atol": 1e-6}))
    ct, cells = np.random.default_rng(1).standard_normal(wanted[0].shape).astype(np.float32), wanted[1]
    rest = (x, ROIS, cells)
    same(
        on_gpu("roi_pooling_backward", (ct, *rest), {"mode": mode}),
        by_reference("roi_pooling_backward", (ct, *rest), {"mode": mode}),
    )
    attrs = {"size": size, "mode": mode}
    found = on_gpu("roi_pooling_chosen", (pictures(2), *rest), attrs)
    same(found, by_reference("roi_pooling_chosen", (pictures(2), *rest), attrs), rtol=1e-5, atol=1e-6)


def test_not_a_number_is_the_largest():
    x = pictures()
    x[0, 0, 2, 2] = np.nan
    attrs = {"size": (2, 2), "mode": "max", "scale": 1.0}
    wanted = by_reference("roi_pooling", (x, ROIS), attrs)
    same(on_gpu("roi_pooling", (x, ROIS), attrs), wanted)
    ct = np.ones_like(wanted[0])
    inputs = (ct, x, ROIS, wanted[1])
    same(
        on_gpu("roi_pooling_backward", inputs, {"mode": "max"}),
        by_reference("roi_pooling_backward", inputs, {"mode": "max"}),
    )


@pytest.mark.parametrize("picture, named", [(2, 2), (7, 7), (-1, 0)])
def test_pictures_that_do_not_exist_are_refused(picture, named):
    rois = ROIS.copy()
    rois[1, 0] = picture
    with pytest.raises(IndexOutOfRangeError, match=f"roi_pooling: picture {named} is out of range for 2 pictures"):
        on_gpu("roi_pooling", (pictures(), rois), {"size": (2, 2), "mode": "max", "scale": 1.0})


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_behind_a_refused_picture_reads_no_other_memory(mode):
    """It is launched before the program waits and sees the error; reading outside would end the use of the GPU."""
    rois = ROIS.copy()
    rois[0, 0], rois[1, 0] = 1000, -1000
    with installed(EmulatedGpu()) as gpu:
        x, of_rois = gpu.upload(pictures()), gpu.upload(rois)
        problem = problem_of("roi_pooling", (pictures(), rois), {"size": (2, 3), "mode": mode, "scale": 1.0})
        y, cells = family("roi_pooling").candidates(problem)[0].run(problem, x, of_rois)
        given = [np.ones(y.shape, np.float32), pictures(), rois, np.zeros(cells.shape, np.int32)]
        backward = problem_of("roi_pooling_backward", given, {"mode": mode})
        family("roi_pooling_backward").candidates(backward)[0].run(backward, gpu.upload(given[0]), x, of_rois, cells)
        with pytest.raises(IndexOutOfRangeError, match="picture 1000 is out of range"):
            gpu.synchronize()
