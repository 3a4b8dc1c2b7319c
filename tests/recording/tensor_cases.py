"""Cases of shapes, indexing and creation."""

import numpy as np
from cases import case, distinct, f, i

# ---------------------------------------------------------------- creation
case("arange/5", lambda F: F.arange(5), grad=False)
case("arange/1 7 2", lambda F: F.arange(1, 7, 2), grad=False)
case("arange/float", lambda F: F.arange(0, 1, 0.25), grad=False)
case("arange/int32", lambda F: F.arange(3, dtype="int32"), grad=False)
case("arange/down", lambda F: F.arange(5, 0, -2), grad=False)
case("linspace", lambda F: F.linspace(0, 10, 5), grad=False)
case("linspace/1", lambda F: F.linspace(3, 10, 1), grad=False)
case("linspace/int32", lambda F: F.linspace(0, 10, 3, dtype="int32"), grad=False)
case("full/int", lambda F: F.full((2, 3), 7), grad=False)
case("full/float", lambda F: F.full((2, 3), 1.5), grad=False)
case("full/bool", lambda F: F.full(3, True), grad=False)
case("full/dtype", lambda F: F.full((2,), 2, dtype="float32"), grad=False)
case("full_like", lambda F, x: F.full_like(x, 2), f(2, 3), grad=False)
case("full_like/int32", lambda F, x: F.full_like(x, 2), i(2, 3), grad=False)
case("zeros", lambda F: F.zeros((2, 0)), grad=False)
case("ones/int", lambda F: F.ones(3, dtype="int32"), grad=False)
case("eye", lambda F: F.eye(3), grad=False)
case("eye/2 4", lambda F: F.eye(2, 4, dtype="int32"), grad=False)
case("zeros_like/int32", lambda F, x: F.zeros_like(x), i(3), grad=False)
for _k in (-1, 0, 2):
    case("diag/vector %d" % _k, lambda F, x, k=_k: F.diag(x, k), f(3), grad=False)
    case("diag/matrix %d" % _k, lambda F, x, k=_k: F.diag(x, k), f(3, 4), grad=False)
case("meshgrid/xy", lambda F, x, y: F.meshgrid(x, y), f(3), f(2))
case("meshgrid/ij", lambda F, x, y, z: F.meshgrid(x, y, z, indexing="ij"), f(3), f(2), f(4))

# ---------------------------------------------------------------- shapes
case("reshape", lambda F, x: F.reshape(x, (4, -1)), f(2, 6))
case("reshape/method", lambda F, x: x.reshape(3, 4), f(2, 6))
case("reshape/method tuple", lambda F, x: x.reshape((3, -1)), f(2, 6))
case("flatten", lambda F, x: F.flatten(x), f(2, 3, 4))
case("flatten/1 -1", lambda F, x: F.flatten(x, 1, -1), f(2, 3, 4))
case("flatten/method", lambda F, x: x.flatten(), f(2, 3, 4))
case("expand_dims", lambda F, x: F.expand_dims(x, 1), f(2, 3))
case("expand_dims/several", lambda F, x: F.expand_dims(x, [0, -1]), f(2, 3))
case("squeeze", lambda F, x: F.squeeze(x), f(1, 2, 1, 3))
case("squeeze/axis", lambda F, x: F.squeeze(x, 2), f(1, 2, 1, 3))
case("squeeze/axes", lambda F, x: F.squeeze(x, [0, -2]), f(1, 2, 1, 3))
case("transpose", lambda F, x: F.transpose(x, (2, 0, 1)), f(2, 3, 4))
case("transpose/negative", lambda F, x: F.transpose(x, (-1, 0, 1)), f(2, 3, 4))
case("transpose/x", lambda F, x: F.transpose(x, (1, "x", 0)), f(2, 3))
case("transpose/method", lambda F, x: x.transpose(1, 0), f(2, 3))
case("transpose/method none", lambda F, x: x.transpose(), f(2, 3, 4))
case("transpose/T", lambda F, x: x.T, f(2, 3, 4))
case("swapaxes", lambda F, x: F.swapaxes(x, 0, 2), f(2, 3, 4))
case("broadcast_to", lambda F, x: F.broadcast_to(x, (2, 3, 4)), f(3, 1))
case("broadcast_to/number", lambda F, x: F.broadcast_to(x, 4), f(1))
case("concat/0", lambda F, x, y: F.concat([x, y]), f(2, 3), f(1, 3))
case("concat/-1", lambda F, x, y: F.concat([x, y], axis=-1), f(2, 3), f(2, 1))
case("concat/empty", lambda F, x, y: F.concat([x, y], 0), f(2, 3), f(0, 3))
case("stack", lambda F, x, y: F.stack([x, y]), f(2, 3), f(2, 3, seed=1))
case("stack/-1", lambda F, x, y: F.stack([x, y], axis=-1), f(2, 3), f(2, 3, seed=1))
case("split/2", lambda F, x: F.split(x, 2), f(4, 3))
case("split/uneven", lambda F, x: F.split(x, 3, axis=1), f(2, 7))
case("split/sections", lambda F, x: F.split(x, [1, 4], axis=1), f(2, 6))
case("tile", lambda F, x: F.tile(x, (2, 3)), f(2, 3))
case("tile/longer", lambda F, x: F.tile(x, (2, 1, 3)), f(2, 3))
case("tile/shorter", lambda F, x: F.tile(x, (2,)), f(2, 3))
case("repeat", lambda F, x: F.repeat(x, 2), f(2, 3))
case("repeat/axis", lambda F, x: F.repeat(x, 3, axis=1), f(2, 3))
case("roll", lambda F, x: F.roll(x, 1), f(2, 3))
case("roll/axis", lambda F, x: F.roll(x, -1, 0), f(3, 2))
case("roll/axes", lambda F, x: F.roll(x, (1, 4), (0, 1)), f(3, 3))
for _mode in ("constant", "reflect", "replicate"):
    case("pad/" + _mode, lambda F, x, m=_mode: F.nn.pad(x, ((1, 2), (0, 2)), m, 1.5), f(3, 4))
    case("pad/4d " + _mode, lambda F, x, m=_mode: F.nn.pad(x, ((0, 0), (0, 0), (1, 1), (2, 1)), m), f(1, 2, 3, 4))

# ---------------------------------------------------------------- choosing
_MASK = i(3, 4, high=2, seed=3) > 0
case("where", lambda F, m, x, y: F.where(m, x, y), _MASK, f(3, 4), f(3, 4, seed=1))
case("where/broadcast", lambda F, m, x, y: F.where(m, x, y), _MASK, f(3, 4), f(1))
case("cond_take", lambda F, m, x: F.cond_take(m, x), _MASK, f(3, 4))
case("cond_take/none", lambda F, m, x: F.cond_take(m, x), _MASK & False, f(3, 4), grad=False)
for _axis in (0, 1, -1):
    case("gather/%d" % _axis, lambda F, x, n, a=_axis: F.gather(x, a, n), f(3, 3), i(3, 3, high=3))
case("gather/shorter", lambda F, x, n: F.gather(x, 0, n), f(3, 4), i(2, 4, high=3))
_ORDER = np.int32([[2, 0, 1, 1], [0, 1, 2, 0]])
case("scatter/0", lambda F, x, n, s: F.scatter(x, 0, n, s), f(3, 4), _ORDER, f(2, 4, seed=1), grad=False)
case(
    "scatter/1", lambda F, x, n, s: F.scatter(x, 1, n, s), f(3, 4), np.int32([[3, 0], [1, 2], [0, 3]]), f(3, 2, seed=1)
)
case("indexing_one_hot", lambda F, x, n: F.indexing_one_hot(x, n), f(3, 4), i(3, high=4))
case("indexing_one_hot/keepdims", lambda F, x, n: F.indexing_one_hot(x, n, 1, True), f(3, 4), i(3, high=4))
case("indexing_one_hot/axis 2", lambda F, x, n: F.indexing_one_hot(x, n, axis=2), f(2, 3, 4), i(2, 3, high=4))
case("one_hot", lambda F, x: F.one_hot(x, 5), i(2, 3), grad=False)
case("embedding", lambda F, x, w: F.embedding(x, w), i(2, 3), f(5, 4))
case(
    "complex/parts", lambda F, a, b: [F.real(F.complex(a, b)), F.imag(F.complex(a, b))], f(3), f(3, seed=1), grad=False
)
case("polar", lambda F, a, b: [F.real(F.polar(a, b)), F.imag(F.polar(a, b))], f(3), f(3, seed=1), grad=False)
case("topk_accuracy", lambda F, x, y: F.topk_accuracy(x, y), distinct(4, 5), i(4), grad=False)
case("topk_accuracy/several", lambda F, x, y: F.topk_accuracy(x, y, (1, 3)), distinct(4, 5), i(4), grad=False)

# ---------------------------------------------------------------- square brackets
X = f(4, 5, 3)
GETS = {
    "1": 1, "-1": -1, "1:3": slice(1, 3), "::2": slice(None, None, 2), "::-1": slice(None, None, -1), "...,0": (Ellipsis, 0),
    "1,2": (1, 2), "1,2,0": (1, 2, 0), ":,None": (slice(None), None), "None": None, "None,1": (None, 1), "3:1": slice(3, 1),
    "1:,...,:2": (slice(1, None), Ellipsis, slice(None, 2)), "-3:-1": slice(-3, -1), "list": [0, 2, 2],
    "lists": ([0, 1], [2, 3]), ":,list": (slice(None), [4, 0]), "list,:,list": ([0, 1], slice(None), [2, 0]),
    "list,1": ([0, 3], 1), "matrix": np.int32([[0, 1], [2, -1]]), "broadcast": (np.int32([[0], [1]]), np.int32([2, 3])),
    "list,slice": ([1, 2], slice(1, 4)), "slice,list,slice": (slice(1, 3), [1, 0], slice(None, None, 2)),
    "mask": i(4, high=2, seed=2) > 0, "mask 2": i(4, 5, high=2, seed=2) > 0, "slice,mask": (slice(0, 2), i(5, high=2, seed=1) > 0),
    "mask all": i(4, 5, 3, high=2, seed=2) > 0,
    "slice,1": (slice(1, 3), 1), "bool list": [True, False, True, True],
}  # fmt: skip
for _name, _key in GETS.items():
    case("getitem/" + _name, lambda F, x, k=_key: x[k], X)
    if _name in ("None", "None,1", ":,None"):
        continue

    def _assign(F, x, k=_key):
        y = x * 1
        y[k] = 7.0
        return y

    case("setitem/" + _name, _assign, X, grad=False)


def _assign_tensor(F, x, v):
    y = x * 1
    y[1:3, :, 0] = v
    return y


def _assign_list(F, x, v):
    y = x * 1
    y[[0, 2]] = v
    return y


case("setitem/tensor", _assign_tensor, X, f(2, 5))
case("setitem/tensor broadcast", _assign_tensor, X, f(5))
case("setitem/list tensor", _assign_list, X, f(2, 5, 3))
case("getitem/tensor index", lambda F, x, n: x[n], X, i(3, high=4))
case("getitem/tensor indices", lambda F, x, n, m: x[n, :, m], X, i(3, high=4), i(3, high=3))
case("getitem/scalar tensor", lambda F, x, n: x[n], X, np.int32(2))

# ---------------------------------------------------------------- operators
for _name, _call in {
    "x + 1": lambda F, x: x + 1, "1 - x": lambda F, x: 1 - x, "x * 2.5": lambda F, x: x * 2.5, "1 / x": lambda F, x: 1 / x,
    "x // 2": lambda F, x: x // 2, "7 // x": lambda F, x: 7 // x, "x % 2": lambda F, x: x % 2, "7 % x": lambda F, x: 7 % x,
    "-x": lambda F, x: -x, "abs": abs, "+x": lambda F, x: +x, "x > 1": lambda F, x: x > 1,
    "x == 2": lambda F, x: x == 2, "x != 2": lambda F, x: x != 2, "x ** 2": lambda F, x: x**2, "2 ** x": lambda F, x: 2**x,
    "round": round,
}.items():  # fmt: skip
    _call = _call if _name not in ("abs", "round") else (lambda F, x, c=_call: c(x))
    case(
        "operator/" + _name,
        _call,
        f(2, 3, low=0.6, high=3),
        grad=not any(o in _name for o in ("//", "%", ">", "=", "round")),
    )
    case("operator int/" + _name, _call, i(2, 3, low=1, high=6), grad=False)
for _name, _call in {
    "x & y": lambda F, x, y: x & y, "x | y": lambda F, x, y: x | y, "x ^ y": lambda F, x, y: x ^ y,
}.items():  # fmt: skip
    case("operator/" + _name, _call, _MASK, ~_MASK, grad=False)
case("operator/~x", lambda F, x: ~x, _MASK, grad=False)
case("operator/x << 2", lambda F, x: x << 2, i(5), grad=False)
case("operator/x >> 1", lambda F, x: x >> 1, i(5, high=90), grad=False)
case("operator/1 << x", lambda F, x: 1 << x, i(5), grad=False)
case("operator/90 >> x", lambda F, x: 90 >> x, i(5), grad=False)
case("operator/x @ y", lambda F, x, y: x @ y, f(3, 4), f(4, 2))
for _from in ("float32", "int32", "uint8", "bool", "float16"):
    for _to in ("float32", "int32", "uint8", "int8", "bool", "float16", "int16"):
        case(
            "astype/%s %s" % (_from, _to),
            lambda F, x, t=_to: x.astype(t),
            f(5, low=0, high=3).astype(_from),
            grad=False,
        )
