"""The cost of a network: parameters, operations and results, layer by layer.

Operations are counted for the layers in `hook_modules` by the function registered for their class. As in MegEngine a
multiply-accumulate is one operation, a bias adds one for each result, and normalisations take 7 for each element.
For every call of every kind of layer, functions included, see `megengine.traced_module.pictures.summary`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from megengine import module as M
from megengine.core.dtype import QuantizedDType
from megengine.core.errors import ArgumentError, OptionError
from megengine.core.exports import own_names
from megengine.core.tensor.dtype import get_dtype_bit
from megengine.dispatch.refusal import checked, shown
from megengine.module.adaptive_pooling import _AdaptivePoolNd
from megengine.module.batchnorm import _BatchNorm
from megengine.module.conv import _ConvNd
from megengine.module.pooling import _PoolNd
from megengine.tensor import Parameter, Tensor
from megengine.utils import stats_tables
from megengine.utils.module_utils import set_module_mode_safe
from megengine.utils.stats_tables import *  # noqa: F403  (MegEngine has them here)
from megengine.utils.stats_tables import Row

Counter = Callable[[Any, Any, Any], Any]
_flops: dict[type, Counter] = {}
_fields: dict[type, Counter] = {}
_fields_enabled = [False]
hook_modules: list[type] = [
    _ConvNd,
    M.Linear,
    M.BatchMatMulActivation,
    _BatchNorm,
    M.LayerNorm,
    M.GroupNorm,
    M.InstanceNorm,
    _PoolNd,
    _AdaptivePoolNd,
]


class TotalStats(NamedTuple):
    """Sums: bytes and elements of parameters, operations, bytes and elements of results."""

    param_size: int
    param_dims: int
    flops: int
    act_size: int
    act_dims: int


class ModuleStats(NamedTuple):
    """Rows of parameters, operations and results, each with a row "total" last."""

    params: list[Row]
    flops: list[Row]
    activations: list[Row]


def _registering(table: dict[type, Counter], modules: tuple[type, ...]) -> Callable[[Counter], Counter]:
    def declare(counter: Counter) -> Counter:
        table.update(dict.fromkeys(modules, counter))
        return counter

    return declare


def register_flops(*modules: type) -> Callable[[Counter], Counter]:
    """Decorator: `counter(module, inputs, outputs)` gives the operations of these classes and of those below them."""
    return _registering(_flops, modules)


def register_receptive_field(*modules: type) -> Callable[[Counter], Counter]:
    """Decorator: `counter(module, inputs, outputs)` gives window and stride, each (height, width), of these classes."""
    return _registering(_fields, modules)


def register_hook_module(module: type) -> None:
    """Count the layers of another class too."""
    if module not in hook_modules:
        hook_modules.append(module)


def enable_receptive_field() -> None:
    """Let rows of operations carry the receptive field and stride of each result."""
    _fields_enabled[0] = True


def disable_receptive_field() -> None:
    """Leave receptive fields out again."""
    _fields_enabled[0] = False


@register_flops(M.Conv1d, M.Conv2d, M.Conv3d, M.LocalConv2d, M.DeformableConv2d)
def flops_convNd(module: Any, inputs: Any, outputs: Any) -> int:  # noqa: N802 (MegEngine's name)
    """Elements of the result times (input channels of a group x kernel, and 1 for a bias)."""
    window = module.in_channels // module.groups * math.prod(np.atleast_1d(module.kernel_size).tolist())
    return outputs[0].size * (window + (module.bias is not None))


@register_flops(M.ConvTranspose2d, M.ConvTranspose3d)
def flops_convNdTranspose(module: Any, inputs: Any, outputs: Any) -> int:  # noqa: N802 (MegEngine's name)
    """Elements of the input times output channels of a group x kernel, and 1 for each result for a bias."""
    window = module.out_channels // module.groups * math.prod(np.atleast_1d(module.kernel_size).tolist())
    return inputs[0].size * window + (outputs[0].size if module.bias is not None else 0)


@register_flops(M.Linear)
def flops_linear(module: Any, inputs: Any, outputs: Any) -> int:
    """Elements of the result times input features, and the bias once."""
    return outputs[0].size * module.in_features + (module.out_features if module.bias is not None else 0)


@register_flops(M.BatchMatMulActivation)
def flops_batchmatmul(module: Any, inputs: Any, outputs: Any) -> int:
    """Elements of the result times (input features, and 1 for a bias)."""
    return outputs[0].size * (module.in_features + (module.bias is not None))


@register_flops(_BatchNorm, M.SyncBatchNorm, M.LayerNorm, M.GroupNorm, M.InstanceNorm)
def flops_norm(module: Any, inputs: Any, outputs: Any) -> int:
    """7 for each element."""
    return inputs[0].size * 7


@register_flops(_PoolNd)
def flops_pool(module: Any, inputs: Any, outputs: Any) -> int:
    """Elements of the result times those of the window."""
    return outputs[0].size * math.prod(_pair(module.kernel_size))


@register_flops(_AdaptivePoolNd)
def flops_adaptivePool(module: Any, inputs: Any, outputs: Any) -> int:  # noqa: N802 (MegEngine's name)
    """Elements of the result, as MegEngine counts them."""
    return outputs[0].size


def _pair(value: Any) -> tuple[int, int]:
    items = np.atleast_1d(value).tolist()
    return (items[0], items[0]) if len(items) == 1 else (items[0], items[1])


@register_receptive_field(M.Conv2d, M.MaxPool2d, M.AvgPool2d)
def _window(module: Any, inputs: Any, outputs: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    size, dilation = _pair(module.kernel_size), _pair(getattr(module, "dilation", 1))
    stride = size if module.stride is None else _pair(module.stride)
    return ((size[0] - 1) * dilation[0] + 1, (size[1] - 1) * dilation[1] + 1), stride


def _registered(table: dict[type, Counter], module: Any) -> Counter | None:
    return next((table[cls] for cls in type(module).__mro__ if cls in table), None)


def preprocess_receptive_field(module: Any, inputs: Any, outputs: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Window and stride, each (height, width), of one layer on its own; (1, 1) for classes without a counter."""
    counter = _registered(_fields, module)
    return ((1, 1), (1, 1)) if counter is None else counter(module, inputs, outputs)


def _described(tensor: Any, dim: str, between: Row | None = None) -> Row:
    dtype, count = tensor.dtype, math.prod(tensor.shape)
    bits = get_dtype_bit(dtype.name) if isinstance(dtype, QuantizedDType) else np.dtype(dtype).itemsize * 8
    kind = {"dtype": dtype, "shape": tuple(tensor.shape)}
    return {**kind, **(between or {}), dim: count, "nbits": bits, "size": count * bits // 8}


def _moments(tensor: Any) -> Row:
    values = np.asarray(tensor.numpy() if isinstance(tensor, Tensor) else tensor, np.float64)
    if values.size == 0:
        return {"mean": "-", "std": "-"}
    return {"mean": f"{values.mean():.3g}", "std": f"{values.std():.3g}"}


def get_param_stats(param: Tensor) -> Row:
    """dtype, shape, mean, std, elements, bits of an element, and bytes of a parameter."""
    return _described(param, "param_dim", _moments(param))


def get_activation_stats(output: Any, has_input: bool = False) -> Row:
    """dtype, shape, elements, bits of an element, and bytes of a result; with `has_input` its mean and std too."""
    return {**_described(output, "act_dim"), **(_moments(output) if has_input else {})}


def get_op_stats(module: Any, inputs: Any, outputs: Any) -> Row | None:
    """Shapes and operations of one call of a layer, with one tensor or several; None for classes not counted."""
    inputs, outputs = ((t,) if isinstance(t, Tensor) else t for t in (inputs, outputs))
    counter = _registered(_flops, module)
    if counter is None:
        return None
    shapes = {"input_shapes": [tuple(t.shape) for t in inputs], "output_shapes": [tuple(t.shape) for t in outputs]}
    return {**shapes, "flops_num": counter(module, inputs, outputs)}


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))


class _Count:
    """Rows of one run, from hooks that are removed afterwards."""

    def __init__(self, has_input: bool) -> None:
        self.has_input = has_input
        self.params: list[Row] = []
        self.flops: list[Row] = []
        self.activations: list[Row] = []
        self.seen: set[int] = set()
        self.fields: dict[int, tuple[Tensor, tuple[int, int], tuple[int, int]]] = {}

    def run(self, model: M.Module, args: tuple) -> None:
        handlers = [
            m.register_forward_hook(self._hook(name))
            for name, m in model.named_modules()
            if isinstance(m, tuple(hook_modules))
        ]
        try:
            with set_module_mode_safe(model):
                model(*args)
        finally:
            for handler in handlers:
                handler.remove()

    def _hook(self, name: str) -> Callable[[Any, Any, Any], None]:
        def hook(module: Any, inputs: Any, outputs: Any) -> None:
            inputs, outputs = list(_tensors(inputs)), list(_tensors(outputs))
            for what in ("weight", "bias"):
                self.param(f"{name}-{what[0]}", getattr(module, what, None))
            labels = {"name": name, "class_name": type(module).__name__}
            row = get_op_stats(module, inputs, outputs)
            if row is not None:
                field = self._field(module, inputs, outputs) if _fields_enabled[0] else {}
                self.flops.append({**row, **field, **labels})
            self.activations += [{**get_activation_stats(t, self.has_input), **labels} for t in outputs]

        return hook

    def param(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter) and id(value) not in self.seen:
            self.seen.add(id(value))
            self.params.append({**get_param_stats(value), "name": name})

    def _field(self, module: Any, inputs: list[Tensor], outputs: list[Tensor]) -> Row:
        # the result of a function has no entry of its own: its field is at most the largest so far
        known = [self.fields[id(t)][1:] for t in inputs if id(t) in self.fields]
        known = known or [f[1:] for f in self.fields.values()] or [((1, 1), (1, 1))]
        (height, width), (down, across) = max(f for f, _ in known), max(s for _, s in known)
        window, stride = preprocess_receptive_field(module, inputs, outputs)
        field = (height + (window[0] - 1) * down, width + (window[1] - 1) * across)
        steps = (down * stride[0], across * stride[1])
        self.fields.update((id(t), (t, field, steps)) for t in outputs)
        return {"receptive_field": field, "stride": steps}


def _random_inputs(shapes: Any) -> Any:
    """Random float32 arrays: of a shape or of several as a list, of a dict of shapes as a dict."""
    random = np.random.default_rng(0)

    def make(shape: Any) -> np.ndarray:
        if not isinstance(shape, (tuple, list)) or not all(isinstance(n, (int, np.integer)) for n in shape):
            raise ArgumentError(f"module_stats: input_shapes holds {shown(shape)}; expected shapes such as (1, 3)")
        return random.standard_normal(tuple(shape)).astype(np.float32)

    if isinstance(shapes, Mapping):
        return {name: make(shape) for name, shape in shapes.items()}
    several = isinstance(shapes, (tuple, list)) and all(isinstance(s, (tuple, list)) for s in shapes)
    return [make(shape) for shape in (shapes if several else [shapes])]


def _arguments(inputs: Any, input_shapes: Any) -> tuple:
    if inputs is None and input_shapes is None:
        raise OptionError("module_stats: expected inputs or input_shapes")
    if inputs is None:
        inputs = _random_inputs(input_shapes)

    def as_tensors(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: as_tensors(v) for k, v in value.items()}
        return value if isinstance(value, Tensor) else Tensor(value)

    if isinstance(inputs, Mapping):
        return (as_tensors(inputs),)
    return tuple(as_tensors(i) for i in (inputs if isinstance(inputs, (list, tuple)) else [inputs]))


@checked
def module_stats(
    model: M.Module,
    inputs: Any = None,
    input_shapes: Any = None,
    cal_params: bool = True,
    cal_flops: bool = True,
    cal_activations: bool = True,
    logging_to_stdout: bool = True,
    bar_length_max: int = 20,
) -> tuple[TotalStats, ModuleStats]:
    """Run a network once, in evaluation mode, and count the cost of its layers.

    Args:
        model: the network; its mode and hooks are the same afterwards.
        inputs: an array or tensor, a list of them, or a dict that the network takes as its one argument.
        input_shapes: without inputs, a shape, a list of shapes, or a dict of shapes, for random float32 inputs.
        cal_params: sum the parameters; without it they only have rows.
        cal_flops: count operations.
        cal_activations: count results.
        logging_to_stdout: log the tables; the summary is logged always.
        bar_length_max: characters of the longest bar.

    Returns:
        Sums, and rows. Parameters used twice are counted once.

    Raises:
        OptionError: neither inputs nor input_shapes are given.

    >>> total, rows = module_stats(net, input_shapes=(1, 3, 224, 224))
    """
    if not isinstance(model, M.Module):
        raise ArgumentError(f"module_stats: model is {shown(model)}; expected a Module")
    count = _Count(inputs is not None)
    count.run(model, _arguments(inputs, input_shapes))
    for name, parameter in model.named_parameters():  # those of layers that were not counted
        path, _, last = name.rpartition(".")
        count.param(f"{path}-{last[0] if last in ('weight', 'bias') else last}", parameter)
    sums, rows, summary = _summed(
        count, bar_length_max, params=cal_params, flops=cal_flops, activations=cal_activations
    )
    if logging_to_stdout and rows["params"] and cal_params:
        stats_tables.print_param_stats(rows["params"])
    if logging_to_stdout and rows["flops"]:
        stats_tables.print_op_stats(rows["flops"])
    if logging_to_stdout and rows["activations"]:
        stats_tables.print_activations_stats(rows["activations"], inputs is not None)
    stats_tables.print_summary(**summary)
    return TotalStats(**sums), ModuleStats(**rows)


def _summed(
    count: _Count, bar_length_max: int, params: bool, flops: bool, activations: bool
) -> tuple[dict[str, int], dict[str, list[Row]], dict[str, Any]]:
    """The sums of `TotalStats`, the rows of `ModuleStats`, and the lines of the summary."""
    sums = dict.fromkeys(TotalStats._fields, 0)
    rows: dict[str, list[Row]] = {"params": count.params, "flops": [], "activations": []}
    summary: dict[str, Any] = {}
    if params:
        summary["#params"] = len(count.params)
        sums["param_dims"], sums["param_size"], rows["params"] = stats_tables.sum_param_stats(
            count.params, bar_length_max
        )
        summary["total_param_dims"] = stats_tables.sizeof_fmt(sums["param_dims"], "")
        summary["total_param_size"] = stats_tables.sizeof_fmt(sums["param_size"])
    if flops:
        sums["flops"], rows["flops"] = stats_tables.sum_op_stats(count.flops, bar_length_max)
        summary["total_flops"] = stats_tables.sizeof_fmt(sums["flops"], "OPs")
    if activations:
        sums["act_dims"], sums["act_size"], rows["activations"] = stats_tables.sum_activations_stats(
            count.activations, bar_length_max
        )
        summary["total_act_dims"] = stats_tables.sizeof_fmt(sums["act_dims"], "")
        summary["total_act_size"] = stats_tables.sizeof_fmt(sums["act_size"])
    if flops and sums["param_size"]:
        summary["flops/param_size"] = f"{sums['flops'] / sums['param_size']:3.3f}"
    return sums, rows, summary


__all__ = [*own_names(globals()), *stats_tables.__all__]
