"""What fuzzed calls are made of: a right call of everything public, as data. Most come from valid_calls.py; layers are
made and run in one call here, optimizers take their steps, tensors are copied, stored and read in every way.
"""

from __future__ import annotations

import collections
import copy
import inspect
import io
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import valid_calls
from drawn_calls import Array, Key, Left, Odd, Tree
from valid_calls import Call, _inputs, _literal

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core import dtype as dtypes
from megengine.core.errors import MegEngineError
from megengine.dispatch import public_functions
from megengine.dispatch.public import watched_function
from megengine.functional import quantized
from megengine.module import quantized as module_quantized
from megengine.quantization import ema_fakequant_qconfig, fake_quant, observer, quantize, quantize_qat
from megengine.quantization.modules.layer_rules import BATCH_NORMS


@dataclass(frozen=True)
class Subject:
    """What is called, with the objects that its right arguments held. A `bound` one is called on a tensor only; what
    refuses a call names it, unless the subject is none of ours.
    """

    call: Call
    tree: Tree
    objects: tuple[Any, ...]
    bound: bool = False
    ours: bool = True


def as_data(call: Call, name: str, *, bound: bool) -> Subject:
    """A right call as data; what is left out of it stands there as such."""
    objects: list[Any] = []

    def data(value: Any) -> Any:
        if isinstance(value, (mge.Tensor, np.ndarray)):
            objects.append(value.numpy() if isinstance(value, mge.Tensor) else value)
            kind = type(value).__name__
            known = value.dtype if isinstance(value.dtype, np.dtype) else value.dtype.name
            return Array(tuple(value.shape), str(known), values="given", kind=kind, place=len(objects) - 1)
        if isinstance(value, slice):
            return Key(value.start, value.stop, value.step)
        if type(value) in (tuple, list):
            return type(value)(map(data, value))
        if type(value) is dict:
            return {k: data(v) for k, v in value.items()}
        if value is None or value is Ellipsis or isinstance(value, (bool, int, float, str)):
            return value
        objects.append(value)
        return Odd("given", len(objects) - 1)

    args, kwargs = tuple(map(data, call.args)), {k: data(v) for k, v in call.kwargs.items()}
    names, left_out = _names(call)
    kwargs.update((n, Left()) for n in left_out)
    ours = not bound and getattr(call.make(), "__module__", "") != __name__
    return Subject(call, Tree(name, args, kwargs, names), tuple(objects), bound, ours)


def _names(call: Call) -> tuple[tuple[str, ...], list[str]]:
    """The parameters of the arguments that are given by place, as far as they have a name; those that are left out."""
    try:
        signature = inspect.signature(call.make())
        bound = signature.bind(*call.args, **call.kwargs).arguments
    except (TypeError, ValueError):
        return (), []
    either, by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = signature.parameters
    placed = tuple(n for n, _ in zip(parameters, call.args, strict=False))
    left_out = [n for n, p in parameters.items() if n not in bound and p.kind in (either, by_name)]
    return placed if all(parameters[n].kind is either for n in placed) else (), left_out


# ---------------------------------------------------------------- layers, optimizers


def _layer(name: str) -> Callable[..., Any]:
    def run(args: list, kwargs: dict, inputs: tuple, training: bool) -> Any:
        """Make a layer and run it."""
        layer = getattr(M, name)(*_several(args), **(kwargs if isinstance(kwargs, dict) else {}))
        layer.train(training)
        return layer(*_several(inputs))

    run.__module__ = M.__name__
    return run


def _several(value: Any) -> Any:
    return value if isinstance(value, (tuple, list)) else [value]


def layers() -> Iterator[Call]:
    """Every layer that the recorded ones hold, with an input that it takes."""
    for text in valid_calls.LAYERS:
        name, args, kwargs = _literal(text)
        run = _layer(name)
        for inputs in _inputs():
            try:
                run(args, kwargs, inputs, True)
            except MegEngineError:
                continue
            yield Call(name, lambda run=run: run, (list(args), kwargs, inputs, True), {})
            break


class _Stubbed(M.Module):
    """A layer between the stubs that make its input quantized and its output real."""

    def __init__(self, layer: M.Module) -> None:
        super().__init__()
        self.quant, self.layer, self.dequant = M.QuantStub(), layer, M.DequantStub()

    def forward(self, *inputs: Any) -> Any:
        return self.dequant(self.layer(*map(self.quant, inputs)))


def _quantized_layer(name: str) -> Callable[..., Any]:
    def run(args: list, kwargs: dict, inputs: tuple) -> Any:
        """Make a layer; run it as it is simulated, and as it is with integers."""
        layer = getattr(M, name)(*_several(args), **(kwargs if isinstance(kwargs, dict) else {}))
        net = quantize_qat(_Stubbed(layer), qconfig=ema_fakequant_qconfig)
        simulated = net(*_several(inputs))
        net.eval()
        return [simulated, quantize(net)(*_several(inputs))]

    return run


def quantized_layers() -> Iterator[Call]:
    """Every layer that has a quantized twin, but batch norms: few samples, normalized, lie between two integers."""
    for call in layers():
        if call.name in module_quantized.__all__ and call.name not in BATCH_NORMS:
            name, (args, kwargs, inputs, _) = call.name, call.args
            yield Call(f"quantized_{name}", lambda n=name: _quantized_layer(n), (args, kwargs, inputs), {})


def _optimizer(kind: Any) -> Callable[..., Any]:
    def run(params: list, grads: list, options: dict) -> Any:
        """Two steps on parameters with gradients."""
        options = options if isinstance(options, dict) else {}
        params, grads = _several(params), _several(grads)
        params = [p if isinstance(p, mge.Parameter) else mge.Parameter(p) for p in params]
        made = kind(params, **options)
        for _ in range(2):
            for p, g in zip(params, grads, strict=False):
                p.grad = g
            made.step()
        made.load_state_dict(made.state_dict())
        made.clear_grad()
        return params

    return run


def optimizers() -> Iterator[Call]:
    """Every optimizer on two parameters, with each of its options."""
    params = [mge.Parameter(np.linspace(-1, 1, n, dtype=np.float32).reshape(s)) for n, s in ((6, (2, 3)), (17, (17,)))]
    grads = [mge.tensor(np.linspace(1, 2, p.size, dtype=np.float32).reshape(p.shape)) for p in params]
    for name, kind in valid_calls.optimizers().items():
        signature = inspect.signature(kind).parameters.values()
        options = {p.name: p.default for p in signature if p.default is not p.empty}
        run = _optimizer(kind)
        yield Call(name, lambda run=run: run, (params, grads, {**options, "lr": 0.1}), {})


# ---------------------------------------------------------------- tensors


def _copies(x: Any) -> list[Any]:
    file = io.BytesIO()
    mge.save({"x": x}, file)
    file.seek(0)
    return [copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x)), mge.load(file)["x"], mge.Tensor(x)]


def _texts(x: Any) -> list[Any]:
    return [repr(x), str(x), f"{x}", np.asarray(x), x.numpy(), x.tolist()]


def _kept(x: Any) -> list[Any]:
    from megengine.utils.dlpack import from_dlpack, to_dlpack

    return [from_dlpack(to_dlpack(x)), np.from_dlpack(x)]


def _with_dtype(x: Any, name: str, scale: float, zero: int) -> Any:
    """To a quantized dtype and back."""
    return x.astype(dtypes.quantized(name, scale, zero)).astype("float32")


def tensors(heard: set[str]) -> Iterator[Call]:
    """What happens to tensors as values: copies, files, texts, other dtypes and devices; operators and methods."""
    x = mge.tensor([[1.0, 2, 3], [4, 5, 6]])
    for function in (_copies, _texts, _kept):
        yield Call(function.__name__, lambda f=function: f, (x,), {})
    for function in (bool, int, float, complex, len, list):
        yield Call(f"_{function.__name__}", lambda f=function: lambda x: f(x), (x,), {})
    yield Call("_with_dtype", lambda: _with_dtype, (x, "qint8", 0.1, 3), {})
    for name in sorted(dir(mge.Tensor)):
        method = getattr(mge.Tensor, name)
        if name in heard or name in dir(object) or not callable(method) or name.startswith("_") is not _operator(name):
            continue
        for args in ((x,), (x, x), (x, "float32"), (x, "cpu0"), (x, 1, 2), (x, 0), (x, 3, 2)):
            try:
                method(*[mge.Tensor(a) if a is x else a for a in args])
            except (MegEngineError, TypeError, NotImplementedError):
                continue
            yield Call(name, lambda m=method: m, args, {})
            break


def _operator(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def others(heard: set[str]) -> Iterator[Call]:
    """Quantized layers as functions, observers, simulated quantization; functions that no recorded case calls."""
    x, w = np.ones((1, 4, 5, 6), np.float32), np.ones((3, 4, 2, 2), np.float32)
    qx = mge.Tensor(x * 3, dtype=dtypes.qint8(0.1))
    qw = mge.Tensor(w * 2, dtype=dtypes.qint8(0.2))
    bias = mge.tensor(np.zeros((1, 3, 1, 1), np.float32))
    yield Call("conv_bias_activation", lambda: _quantized_conv, (qx, qw, bias, 1, 0, 1, 1, "relu"), {})
    yield Call(
        "batch_conv_bias_activation", lambda: _batch_conv, (qx, mge.Tensor(qw.numpy()[None], qw.dtype), bias), {}
    )
    yield Call(
        "conv_transpose2d", lambda: _quantized_transpose, (qx, mge.Tensor(qw.numpy().swapaxes(0, 1), qw.dtype), 2), {}
    )
    for name in ("MinMaxObserver", "ExponentialMovingAverageObserver", "HistogramObserver"):
        yield Call(name, lambda n=name: _observed(n), ("qint8", mge.tensor(x)), {})
    for name in ("FakeQuantize", "TQT", "LSQ"):
        yield Call(name, lambda n=name: _simulated(n), ("quint8", mge.tensor(x), mge.tensor(0.1), mge.tensor(2.0)), {})
    for record in public_functions.values():
        if record.name not in heard and not record.methods and not record.home.startswith("megengine.random"):
            needed = [p for p in record.signature.parameters.values() if p.default is p.empty]
            args = tuple(mge.tensor(np.ones((2, 3), np.float32)) for _ in needed)
            yield Call(record.name, lambda r=record: watched_function(r), args, {})


def _quantized_conv(x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, groups: Any, mode: Any) -> Any:
    target = dtypes.qint8(0.3)
    return quantized.conv_bias_activation(x, w, b, target, stride, padding, dilation, groups, nonlinear_mode=mode)


def _batch_conv(x: Any, w: Any, b: Any) -> Any:
    return quantized.batch_conv_bias_activation(x, w, b, dtypes.qint8(0.3))


def _quantized_transpose(x: Any, w: Any, stride: Any) -> Any:
    return quantized.conv_transpose2d(x, w, dtype=dtypes.qint8(0.3), stride=stride)


def _observed(name: str) -> Callable[..., Any]:
    def run(dtype: str, x: Any) -> Any:
        made = getattr(observer, name)(dtype=dtype)
        made(x)
        made(x)
        return [made.get_qparams().scale]

    return run


def _simulated(name: str) -> Callable[..., Any]:
    def run(dtype: str, x: Any, scale: Any, zero: Any) -> Any:
        made = getattr(fake_quant, name)(dtype=dtype)
        from megengine.quantization.ranges.qparams import QuantMode, create_qparams

        return made(x, create_qparams(QuantMode.ASYMMERTIC, dtype, scale, zero))

    return run


def _planted(what: str) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        match what:
            case "error":
                raise ZeroDivisionError("planted error")
            case "silence":
                raise MegEngineError
            case "crash":
                os.abort()
            case "memory":
                bytearray(8 << 30)
            case "hang":
                end = time.process_time() + 2 * PLANTED_SECONDS
                while time.process_time() < end:
                    pass
            case "nameless":
                raise MegEngineError("an axis is wrong")
            case "writes":
                x._value = x._value + 1
            case "differs" if "MEGENGINE_FORCE_KERNEL" in os.environ and x.ndim == 2:
                return x + 1
        return x

    run.__module__ = M.__name__
    return run


PLANTED = "planted_"
PLANTED_SECONDS = 1.0  # of CPU that a planted fault may take


def planted() -> Iterator[Call]:
    """Faults of every kind: what the fuzzer itself is tried with."""
    for what in ("error", "silence", "crash", "memory", "hang", "nameless", "writes", "differs", "nothing"):
        yield Call(PLANTED + what, lambda w=what: _planted(w), (mge.tensor(np.ones((2, 3), np.float32)),), {})


def subjects(*, only_planted: bool = False) -> dict[str, Subject]:
    """name/number -> subject, the same in every process."""
    if only_planted:
        return _numbered({planted: planted()})
    functions = list(valid_calls.function_calls(4))
    heard = {call.name for call in functions}
    sources = (
        layers,
        quantized_layers,
        optimizers,
        valid_calls.training_calls,
        valid_calls.data_calls,
        valid_calls.random_calls,
        valid_calls.tensor_calls,
    )
    made = {source: source() for source in sources}
    return _numbered({None: functions, **made, tensors: tensors(heard), others: others(heard), planted: planted()})


def _numbered(sources: dict[Any, Iterable[Call]]) -> dict[str, Subject]:
    found: dict[str, Subject] = {}
    numbers: collections.Counter[str] = collections.Counter()
    for source, made in sources.items():
        for call in made:
            name = f"{call.name}/{numbers[call.name]}"
            numbers[call.name] += 1
            found[name] = as_data(call, name, bound=source is tensors)
    return found


__all__ = ["F", "Subject", "subjects"]
