"""Calls that both MegEngines answer: `record.py` asks the real one, `tests/functional/test_recorded.py` asks ours.

A case is a name, a function of the module `megengine.functional` and of tensors, and the input arrays; those of float
dtype are differentiated. Only NumPy is needed here, and any Python from 3.8.
"""

import zlib
from collections import namedtuple

import numpy as np

Case = namedtuple("Case", "name call inputs grad")
CASES = {}


def case(name, call, *inputs, grad=True):
    """Enter a case; `grad=False` where the result is not differentiated."""
    assert name not in CASES, name
    CASES[name] = Case(name, call, inputs, grad)


def f(*shape, low=-2.0, high=2.0, seed=0):
    """float32 numbers; the same on every NumPy."""
    state = np.random.RandomState(zlib.crc32(repr((shape, seed)).encode()) % 2**31)
    return state.uniform(low, high, shape).astype(np.float32)


def distinct(*shape):
    """float32 numbers without ties, some negative."""
    size = int(np.prod(shape))
    return (np.random.RandomState(size).permutation(size).reshape(shape) / 4.0 - size / 8.0).astype(np.float32)


def i(*shape, low=0, high=5, seed=0):
    """int32 numbers in [low, high)."""
    return np.random.RandomState(7 + seed).randint(low, high, shape).astype(np.int32)


def cotangent(shape):
    """The weights with which a result is summed before it is differentiated."""
    return f(*shape, low=0.5, high=1.5, seed=99)


SHAPES = ((), (1,), (5,), (3, 17), (2, 0, 3))

# ---------------------------------------------------------------- elementwise
UNARY = {
    "abs": (-2, 2), "acos": (-0.9, 0.9), "acosh": (1.1, 3), "asin": (-0.9, 0.9), "asinh": (-2, 2), "atan": (-2, 2),
    "atanh": (-0.9, 0.9), "ceil": (-2, 2), "cos": (-2, 2), "cosh": (-2, 2), "exp": (-2, 2), "expm1": (-2, 2),
    "floor": (-2, 2), "log": (0.1, 3), "log1p": (-0.5, 3), "neg": (-2, 2), "round": (-3, 3), "sin": (-2, 2),
    "sinh": (-2, 2), "sqrt": (0.1, 3), "square": (-2, 2), "tan": (-1, 1), "tanh": (-2, 2),
    "gelu": (-3, 3), "hsigmoid": (-5, 5), "hswish": (-5, 5), "leaky_relu": (-2, 2), "logsigmoid": (-3, 3),
    "relu": (-2, 2), "relu6": (-2, 8), "sigmoid": (-3, 3), "silu": (-3, 3), "softplus": (-3, 3), "sign": (-2, 2),
    "isnan": (-2, 2), "isinf": (-2, 2), "zeros_like": (-2, 2), "ones_like": (-2, 2), "copy": (-2, 2),
}  # fmt: skip
_FLAT = ("ceil", "floor", "round", "sign", "isnan", "isinf", "zeros_like", "ones_like")
for _name, (_low, _high) in UNARY.items():
    for _shape in SHAPES[1:4] if _name in _FLAT else SHAPES[:4]:
        _x = f(*_shape, low=_low, high=_high) if _shape else np.float32((_low + 2 * _high) / 3)
        case("%s/%s" % (_name, _shape), lambda F, x, n=_name: getattr(F, n)(x), _x, grad=_name not in _FLAT)
for _name in ("abs", "neg", "sign", "square", "floor", "ceil", "round", "relu", "sigmoid", "exp", "sqrt", "gelu"):
    case(_name + "/int32", lambda F, x, n=_name: getattr(F, n)(x), i(2, 3, low=1))
for _name in ("abs", "exp", "relu", "sigmoid", "tanh", "hswish", "round", "silu"):
    case(_name + "/float16", lambda F, x, n=_name: getattr(F, n)(x), f(2, 3).astype(np.float16), grad=False)
case("round/ties", lambda F, x: F.round(x), np.float32([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]), grad=False)
case("isnan/nan", lambda F, x: F.isnan(x), np.float32([1, np.nan, np.inf]), grad=False)
case("isinf/inf", lambda F, x: F.isinf(x), np.float32([1, np.nan, np.inf, -np.inf]), grad=False)
case("abs/kink", lambda F, x: F.abs(x), np.float32([0.0, -1, 2]))
case("relu/kink", lambda F, x: F.relu(x), np.float32([0.0, -1, 2]))
case("relu6/kink", lambda F, x: F.relu6(x), np.float32([0.0, 6, 2]))
case("softplus/large", lambda F, x: F.softplus(x), np.float32([-100, 0, 100]))
case("logsigmoid/large", lambda F, x: F.logsigmoid(x), np.float32([-100, 0, 100]))
case("leaky_relu/slope", lambda F, x: F.leaky_relu(x, 0.3), f(4))
case("prelu/one", lambda F, x, y: F.prelu(x, y), f(2, 3, 2, 2), np.float32([0.2]))
case("prelu/channels", lambda F, x, y: F.prelu(x, y), f(2, 3, 2, 2), f(1, 3, 1, 1))

BINARY = ("add", "sub", "mul", "div", "floor_div", "mod", "pow", "atan2", "maximum", "minimum", "logaddexp")
COMPARE = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
for _name in BINARY + COMPARE:
    for _a, _b in (((3, 4), (3, 4)), ((2, 3, 1, 5), (1, 3, 4, 1)), ((1,), (4,)), ((3, 17), (17,))):
        case(
            "%s/%s%s" % (_name, _a, _b),
            lambda F, x, y, n=_name: getattr(F, n)(x, y),
            f(*_a, low=0.5, high=3),
            f(*_b, low=0.5, high=3, seed=1),
            grad=_name not in COMPARE + ("floor_div", "mod"),
        )
for _name in ("add", "sub", "mul", "div", "floor_div", "mod", "pow", "maximum", "minimum") + COMPARE:
    _ints = (i(3, 4, low=1, high=7), i(4, low=1, high=4, seed=1))
    case(_name + "/int32", lambda F, x, y, n=_name: getattr(F, n)(x, y), *_ints, grad=False)
    case(_name + "/int32 and float32", lambda F, x, y, n=_name: getattr(F, n)(x, y), _ints[0], f(4, low=1, high=3))
    case(_name + "/int32 and a float", lambda F, x, n=_name: getattr(F, n)(x, 2.5), _ints[0], grad=False)
    case(_name + "/float32 and an int", lambda F, x, n=_name: getattr(F, n)(x, 2), f(4, low=1, high=3), grad=False)
    case(
        _name + "/int8 and int32",
        lambda F, x, y, n=_name: getattr(F, n)(x, y),
        _ints[0].astype(np.int8),
        _ints[1],
        grad=False,
    )
    case(_name + "/uint8 and an int", lambda F, x, n=_name: getattr(F, n)(x, 3), _ints[0].astype(np.uint8), grad=False)
    case(
        _name + "/float16 and float32",
        lambda F, x, y, n=_name: getattr(F, n)(x, y),
        f(4, low=1, high=3).astype(np.float16),
        f(4, low=1, high=3, seed=2),
        grad=False,
    )
case(
    "floor_div/signs", lambda F, x, y: F.floor_div(x, y), np.int32([7, -7, 7, -7]), np.int32([2, 2, -2, -2]), grad=False
)
case(
    "floor_div/float signs",
    lambda F, x, y: F.floor_div(x, y),
    np.float32([7, -7, 7, -7]),
    np.float32([2, 2, -2, -2]),
    grad=False,
)
case("mod/signs", lambda F, x, y: F.mod(x, y), np.int32([7, -7, 7, -7]), np.int32([2, 2, -2, -2]), grad=False)
case("mod/float signs", lambda F, x, y: F.mod(x, y), np.float32([7, -7, 7, -7]), np.float32([2, 2, -2, -2]), grad=False)
case("maximum/ties", lambda F, x, y: F.maximum(x, y), np.float32([1, 2, 3]), np.float32([1, 1, 4]))
case("minimum/ties", lambda F, x, y: F.minimum(x, y), np.float32([1, 2, 3]), np.float32([1, 1, 4]))
case("pow/2", lambda F, x: F.pow(x, 2), f(5))
case("pow/0.5", lambda F, x: F.pow(x, 0.5), f(5, low=0.5))
case("pow/3.0", lambda F, x: x**3.0, f(5))
case("pow/negative", lambda F, x: x**-1, f(5, low=0.5))
case("pow/base", lambda F, x: 2.0**x, f(5))
for _name in ("logical_and", "logical_or", "logical_xor"):
    case(_name, lambda F, x, y, n=_name: getattr(F, n)(x, y), i(3, 4, high=2) > 0, i(4, high=2, seed=1) > 0, grad=False)
case("logical_not", lambda F, x: F.logical_not(x), i(3, 4, high=2) > 0, grad=False)
for _name in ("left_shift", "right_shift"):
    case(_name, lambda F, x, y, n=_name: getattr(F, n)(x, y), i(6, low=-9, high=90), i(6, high=4, seed=1), grad=False)
    case(_name + "/number", lambda F, x, n=_name: getattr(F, n)(x, 2), i(6, low=-9, high=90), grad=False)
for _bounds in ((-1, 1), (None, 0.5), (-0.5, None), (0, 0)):
    case("clip/%s" % (_bounds,), lambda F, x, b=_bounds: F.clip(x, *b), f(3, 5))
case("clip/int", lambda F, x: F.clip(x, 1, 3), i(7), grad=False)
case("clip/tensors", lambda F, x, a, b: F.clip(x, a, b), f(3, 5), f(5, low=-1, high=0), f(5, low=0.2, high=1))
case("clip/edges", lambda F, x: F.clip(x, -1, 1), np.float32([-1, 0, 1, 2]))

# ---------------------------------------------------------------- reductions
for _name in ("sum", "mean", "prod", "max", "min", "var", "std"):
    for _axis in (None, 0, -1, 1, (0, 2)):
        for _keep in (False, True):
            if (_name in ("var", "std") and isinstance(_axis, tuple)) or (_axis is None and _keep):
                continue
            case(
                "%s/%s%s" % (_name, _axis, " keepdims" * _keep),
                lambda F, x, n=_name, a=_axis, k=_keep: getattr(F, n)(x, axis=a, keepdims=k),
                distinct(2, 3, 4) + np.float32(0.1),
            )
    case(_name + "/one axis", lambda F, x, n=_name: getattr(F, n)(x), f(4))
for _name in ("sum", "mean", "prod", "max", "min"):
    case(_name + "/int32", lambda F, x, n=_name: getattr(F, n)(x, axis=1), i(3, 4), grad=False)
    case(_name + "/uint8", lambda F, x, n=_name: getattr(F, n)(x, axis=0), i(3, 4).astype(np.uint8), grad=False)
    case(_name + "/float16", lambda F, x, n=_name: getattr(F, n)(x), f(3, 4).astype(np.float16), grad=False)
    case(_name + "/Tensor", lambda F, x, n=_name: getattr(x, n)(0), f(3, 4))
case("prod/zero", lambda F, x: F.prod(x, 1), np.float32([[1, 0, 3], [0, 0, 2], [1, 2, 3]]))
case("sum/bool", lambda F, x: F.sum(x), i(3, 4, high=2) > 0, grad=False)
case("sum/empty", lambda F, x: F.sum(x, axis=0), f(0, 3), grad=False)
case("max/ties", lambda F, x: F.max(x), np.float32([1, 3, 3, 2]))
case("min/ties", lambda F, x: F.min(x, axis=1), np.float32([[1, 1, 3], [4, 2, 2]]))
for _name in ("argmax", "argmin"):
    for _axis in (None, 0, 1, -1):
        case("%s/%s" % (_name, _axis), lambda F, x, n=_name, a=_axis: getattr(F, n)(x, a), distinct(3, 4), grad=False)
    case(_name + "/keepdims", lambda F, x, n=_name: getattr(F, n)(x, 1, True), distinct(3, 4), grad=False)
    case(_name + "/axes", lambda F, x, n=_name: getattr(F, n)(x, (1, 2)), distinct(2, 3, 4), grad=False)
    case(_name + "/ties", lambda F, x, n=_name: getattr(F, n)(x, 0), np.float32([1, 0, 1, 0]), grad=False)
for _ord in (None, 1, 2, 3, np.inf, -np.inf):
    for _axis in (None, 1):
        case("norm/%s %s" % (_ord, _axis), lambda F, x, o=_ord, a=_axis: F.norm(x, o, a), distinct(3, 4) + 0.1)
case("norm/keepdims", lambda F, x: F.norm(x, 2, 0, True), f(3, 4))
case("normalize/None", lambda F, x: F.normalize(x), f(3, 4))
case("normalize/axis", lambda F, x: F.normalize(x, axis=1), f(3, 4))
case("normalize/ord", lambda F, x: F.normalize(x, ord=1, axis=0), f(3, 4))
for _descending in (False, True):
    case("sort/%s" % _descending, lambda F, x, d=_descending: F.sort(x, d), distinct(3, 5))
    case("argsort/%s" % _descending, lambda F, x, d=_descending: F.argsort(x, d), distinct(3, 5), grad=False)
    case("topk/%s" % _descending, lambda F, x, d=_descending: F.topk(x, 2, descending=d), distinct(3, 5))
    case(
        "topk/kth %s" % _descending,
        lambda F, x, d=_descending: F.topk(x, 2, descending=d, kth_only=True),
        distinct(3, 5),
    )
case("topk/default", lambda F, x: F.topk(x, 3), distinct(5))
case("topk/int32", lambda F, x: F.topk(x, 3), (distinct(5) * 8).astype("int32"), grad=False)
case("sort/one axis", lambda F, x: F.sort(x), distinct(7))
case("cumsum", lambda F, x: F.cumsum(x, 1), f(3, 4))
case("cumsum/0", lambda F, x: F.cumsum(x, axis=0), f(3, 4))
case("cumsum/int", lambda F, x: F.cumsum(x, 0), i(5), grad=False)
case("matinv", lambda F, x: F.matinv(x), f(2, 3, 3) + 4 * np.eye(3, dtype=np.float32))
case("svd/values", lambda F, x: F.svd(x, compute_uv=False), f(4, 3), grad=False)
case("svd/shapes", lambda F, x: [p.shape[0] for p in F.svd(x)], f(4, 3), grad=False)
case("svd/product", lambda F, x: (lambda u, s, v: F.matmul(u * s, v))(*F.svd(x)), f(4, 3), grad=False)
case("dot", lambda F, x, y: F.dot(x, y), f(5), f(5, seed=1))
for _ta in (False, True):
    for _tb in (False, True):
        case(
            "matmul/%s%s" % (_ta, _tb),
            lambda F, a, b, s=_ta, t=_tb: F.matmul(a, b, s, t),
            f(*((4, 3) if _ta else (3, 4))),
            f(*((5, 4) if _tb else (4, 5)), seed=1),
        )
for _a, _b in (((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4,), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((3, 4), (2, 4, 5)), ((2, 3, 4), (4,))):  # fmt: skip
    case("matmul/%s%s" % (_a, _b), lambda F, a, b: F.matmul(a, b), f(*_a), f(*_b, seed=1))
case("linear", lambda F, x, w, b: F.linear(x, w, b), f(2, 3, 4), f(5, 4), f(5))
case("linear/no bias", lambda F, x, w: F.linear(x, w), f(3, 4), f(5, 4))
case("logsumexp", lambda F, x: F.logsumexp(x, 1), f(3, 4))
case("logsumexp/keepdims", lambda F, x: F.logsumexp(x, (0, 1), True), f(3, 4))
case("softmax", lambda F, x: F.softmax(x, 1), f(3, 4))
case("softmax/None", lambda F, x: F.softmax(x), f(2, 3, 2, 2))
case("softmax/None 2", lambda F, x: F.softmax(x), f(2, 3))
case("softmax/None 3", lambda F, x: F.softmax(x), f(2, 3, 4))
case("logsoftmax", lambda F, x: F.logsoftmax(x, -1), f(3, 4))
