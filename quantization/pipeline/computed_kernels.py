"""Convolutions whose weights are computed as products of the weights and the windows, which are integers then."""

import math

from megengine.quantization.modules import Product, spread
from megengine.traced_module.ir.expr import Constant
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.rewriting import Found, Rule
from megengine.traced_module.patterns import any_, call

# of a window; each is a part of the input, and the product reads them all
MOST_TAPS = 64

_X, _W, _B = any_(), any_(), any_()
_LAYER = call("conv2d", _X, _W) | call("conv2d", _X, _W, _B)
_RAISED = call("conv_transpose2d", _X, _W) | call("conv_transpose2d", _X, _W, _B)


def _computed(m: Found) -> bool:
    """Whether no integer layer takes the weight, and its window has a fixed size."""
    taps = m[_W].shape[2:]
    known = all(type(n) is int for n in taps) and math.prod(taps) <= MOST_TAPS
    return known and not isinstance(m[_W].expr, Constant)


def _windows(m: Found) -> TensorNode:
    """A convolution [N,C,H,W] with [O,C/G,kh,kw] as a product [G,O/G,C/G*kh*kw] @ [N,G,C/G*kh*kw,H*W]."""
    attrs = m.root.expr.attrs
    return _product(m, m[_X], m[_W], {k: attrs[k] for k in ("stride", "padding", "dilation", "groups")})


def _raised_windows(m: Found) -> TensorNode:
    """A transposed one: the convolution of the input with zeros between its pixels, with turned weights."""
    attrs, name, w = m.root.expr.attrs, m.root.name, m[_W]
    layer = Product("conv_transpose2d", **attrs)
    taps, groups = w.shape[2:], attrs["groups"]
    x, padding = spread(layer, m[_X], taps, lambda op, x, **a: m.apply(op, x, attrs=a, name=f"{name}_spread"))
    ins, outs = w.shape[0] // groups, w.shape[1]
    bounds = {"starts": (None,) * 4, "stops": (None,) * 4, "steps": (1, 1, -1, -1)}
    w = m.apply("slice", w, attrs=bounds, name=f"{name}_turned")
    w = m.apply("reshape", w, attrs={"shape": (groups, ins, outs, *taps)}, name=f"{name}_turned")
    w = m.apply("transpose", w, attrs={"perm": (0, 2, 1, 3, 4)}, name=f"{name}_turned")
    w = m.apply("reshape", w, attrs={"shape": (groups * outs, ins, *taps)}, name=f"{name}_turned")
    window = {"stride": (1, 1), "padding": padding, "dilation": attrs["dilation"], "groups": groups}
    return _product(m, x, w, window)


def _product(m: Found, x: TensorNode, w: TensorNode, window: dict) -> TensorNode:
    name, groups, (outs, inner, kh, kw) = m.root.name, window["groups"], w.shape
    n, channels, height, width = m.root.shape[0], x.shape[1], *m.root.shape[2:]
    if any(end for ends in window["padding"] for end in ends):
        widths = ((0, 0), (0, 0), *window["padding"])
        x = m.apply("pad", x, attrs={"widths": widths, "mode": "constant", "value": 0.0}, name=f"{name}_padded")
    (sh, sw), (dh, dw) = window["stride"], window["dilation"]
    taps = []
    for i in range(kh):
        for j in range(kw):
            top, left = i * dh, j * dw
            stops = (n, channels, top + (height - 1) * sh + 1, left + (width - 1) * sw + 1)
            cut = {"starts": (0, 0, top, left), "stops": stops, "steps": (1, 1, sh, sw)}
            tap = m.apply("slice", x, attrs=cut, name=f"{name}_tap")
            taps.append(m.apply("reshape", tap, attrs={"shape": (n, channels, 1, height * width)}, name=f"{name}_tap"))
    wide = taps[0] if len(taps) == 1 else m.apply("concat", *taps, attrs={"axis": 2}, name=f"{name}_taps")
    depth = inner * len(taps)
    windows = m.apply("reshape", wide, attrs={"shape": (n, groups, depth, height * width)}, name=f"{name}_windows")
    rows = m.apply("reshape", w, attrs={"shape": (1, groups, outs // groups, depth)}, name=f"{name}_rows")
    plain = {"transpose_a": False, "transpose_b": False}
    y = m.apply("matmul", rows, windows, attrs=plain, name=f"{name}_product")
    y = m.apply("reshape", y, attrs={"shape": m.root.shape}, name=f"{name}_picture")
    if _B not in m:
        return y
    bias = m.apply("reshape", m[_B], attrs={"shape": (1, outs, 1, 1)}, name=f"{name}_bias")
    return m.apply("add", y, bias, name=f"{name}_sum")


COMPUTED_KERNELS = (
    Rule("windows_of_computed_kernel", _LAYER, _windows, when=_computed),
    Rule("raised_windows_of_computed_kernel", _RAISED, _raised_windows, when=_computed),
)
