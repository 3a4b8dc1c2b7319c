"""Own convolutions of 3 x 3 by Winograd's algorithm F(4 x 4, 3 x 3), in plans: float32.

Of its products a quarter is left, for additions that transform tiles of the input and of the result, and weights that
are four times as large (A. Lavin, S. Gray: Fast Algorithms for Convolutional Neural Networks, 2015). Errors are about
twice those of sums of the products as they are; one number that is not finite makes its whole tile NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.text import counted
from megengine.kernels import _core, isa
from megengine.kernels.kernel import StepKernel
from megengine.kernels.problem import Problem, float32_only
from megengine.kernels.products import fused_layer

_WORTH = 0.88  # of the time of the direct convolution
_WAIT = {"avx512": 80, "avx2": 30}  # pixels in whose time weights come; direct sums of AVX2 take twice as long


def time_of(channels: int, outputs: int, batch: int, size: tuple[int, ...]) -> float:
    """About how long it takes, where 1 is the direct convolution: fitted to figures with cold caches.

    A quarter of the products, of whole tiles; their transforms, which each channel of the input and of the result pays
    once; and weights, which few pixels must wait for.
    """
    pixels = batch * size[0] * size[1]
    whole = batch * 16 * -(-size[0] // 4) * -(-size[1] // 4)
    bytes_of_weights = 36 * 4 * channels * outputs
    wait = _WAIT["avx512" if isa.has("avx512") else "avx2"] * (1 + bytes_of_weights / 20e6)
    return 0.25 * whole / pixels + 8 * (1 / channels + 1 / outputs) + wait / pixels


def _usable(problem: Problem) -> str | None:
    a, kernel = problem.attrs, problem.inputs[1].shape[2:]
    if (kernel, tuple(a.stride), tuple(a.dilation), a.groups) != ((3, 3), (1, 1), (1, 1), 1):
        return "not a convolution of 3 x 3 neighbours, in one group"
    if not isa.has("avx2"):
        return f"needs AVX2, active is {isa.active()}"
    if (reason := float32_only(problem)) is not None:
        return reason
    (n, c, *_), (outputs, *out) = problem.inputs[0].shape, problem.outputs[0].shape[1:]
    if time_of(c, outputs, n, (*out,)) > _WORTH:
        return f"{c} to {counted(outputs, 'channel')} on {counted(n * out[0] * out[1], 'pixel')}: as fast directly"
    return None


def _step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    (n, c, *size), (outputs, *out), a = problem.inputs[0].shape, problem.outputs[0].shape[1:], problem.attrs
    return _core.winograd_step(
        sizes=(n, c, outputs),
        in_size=size,
        out_size=out,
        before=[start for start, _ in a.padding],
        threads=threads,
        **fused_layer(problem, constants),
    )


own_winograd_conv2d = StepKernel("own_winograd_conv2d", _step, _usable, packs=(1, 2), inplace_input=3, free=True)
