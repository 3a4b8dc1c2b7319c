"""Habits of mixed precision: the dtypes of results under `autocast` and `amp.enabled` (see habits.py)."""

import numpy as np

HABITS = {}

UNARY = "abs acos asinh ceil clip cos exp expm1 gelu hsigmoid hswish log log1p logsigmoid mean relu round sigmoid silu "
UNARY += "sin softplus sqrt square sum tan tanh var"
BINARY = "add sub mul div pow maximum atan2 logaddexp"


def habit(function):
    """Keep a function under its name."""
    HABITS[function.__name__] = function
    return function


def dtypes(calls):
    """The dtypes of the results of calls, by their names."""
    return [[name, str(np.dtype(call().dtype))] for name, call in sorted(calls.items())]


def layers(mge, x, last):
    """Calls of layers with `x` as a maker of inputs and weights, and `last` as one of biases."""
    F = mge.functional
    return {
        "linear": lambda: F.linear(x(2, 3), x(4, 3)),
        "linear and bias": lambda: F.linear(x(2, 3), x(4, 3), last(4)),
        "matmul": lambda: F.matmul(x(2, 2, 3), last(2, 3, 4)),
        "operator": lambda: x(2, 3) @ last(3, 2),
        "conv2d": lambda: F.conv2d(x(1, 2, 4, 4), x(3, 2, 3, 3), last(1, 3, 1, 1)),
        "conv1d": lambda: F.conv1d(x(1, 2, 4), x(3, 2, 3), last(1, 3, 1)),
        "conv_transpose2d": lambda: F.conv_transpose2d(x(1, 2, 4, 4), x(2, 3, 3, 3), last(1, 3, 1, 1)),
        "layer": lambda: mge.module.LinearRelu(3, 4)(x(2, 3)),
        "batch norm": lambda: mge.module.BatchNorm2d(2)(x(1, 2, 2, 2)),
    }


def functions(mge, x, last):
    """Calls of functions of one and two tensors."""
    F = mge.functional
    found = {name: lambda name=name: getattr(F, name)(*[x(2, 2)] + [0] * (name == "clip")) for name in UNARY.split()}
    found.update({name: lambda name=name: getattr(F, name)(x(2, 2), last(2, 2)) for name in BINARY.split()})
    found.update({name + " 2": lambda name=name: getattr(F, name)(x(2, 2), 2.0) for name in BINARY.split()})
    return dict(found, square=lambda: x(2, 2) ** 2, twice=lambda: x(2, 2) * 2)


def normed(mge, half):
    """Calls of norms of halves, that work under mixed precision alone."""
    M = mge.module
    return {"layer": lambda: M.LayerNorm(2)(half(2, 2)), "group": lambda: M.GroupNorm(1, 2)(half(1, 2, 2, 2))}


@habit
def dtypes_under_mixed_precision(mge):
    def full(*shape):
        return mge.tensor(np.full(shape, 0.5, np.float32))

    def half(*shape):
        return full(*shape).astype("float16")

    found = []
    plain = [dtypes(make(mge, x, y)) for make in (layers, functions) for x in (full, half) for y in (full, half)]
    with mge.amp.autocast():
        for make in (layers, functions):
            found += [dtypes(make(mge, x, y)) for x in (full, half) for y in (full, half)]
        found.append(dtypes(normed(mge, half)))
    mge.amp.enabled = True
    found += [dtypes(layers(mge, full, full)), dtypes(functions(mge, half, half))]
    mge.amp.enabled = False
    return plain, found, dtypes(layers(mge, full, full))


@habit
def settings_of_mixed_precision(mge):
    half = mge.tensor(np.ones((2, 2), np.float16))

    def now():
        words = [mge.amp.enabled, mge.amp.low_prec_dtype, mge.amp.high_prec_dtype]
        return [*words, str(np.dtype(mge.functional.exp(half).dtype))]

    found = [now()]
    with mge.amp.autocast():
        found.append(now())
        mge.amp.enabled = False
        found.append(now())
    found.append(now())
    mge.amp.enabled = True
    with mge.amp.autocast():
        found.append(now())
    found.append(now())
    mge.amp.enabled = False
    return [*found, now()]


@habit
def batch_norm_under_mixed_precision(mge):
    norm, x = mge.module.BatchNorm2d(2), mge.tensor(np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2) / 8)
    with mge.amp.autocast():
        y = norm(x)
        norm.eval()
        return y.astype("float32"), norm.running_mean, norm.running_var, norm(x).astype("float32")
