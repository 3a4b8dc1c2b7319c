"""Modules of PyTorch as traced modules, by way of torch's own exporter (`torch.export`, then ONNX)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from megengine.convert.onnx import load
from megengine.convert.torch_bags import bags_by_axes
from megengine.convert.torch_examples import Examples
from megengine.convert.torch_missing import exported_again
from megengine.convert.torch_results import nesting_of
from megengine.convert.torch_small_numbers import optimized
from megengine.convert.torch_types import in_their_type
from megengine.core.errors import ArgumentError, MegEngineError, MissingImportError, UnsupportedError
from megengine.core.text import one_line
from megengine.tensor import Tensor
from megengine.traced_module import TracedModule

_NEEDED = (
    "from_torch: needs the packages torch, onnx and onnxscript; run `pip install torch onnx onnxscript`, or write the "
    "file elsewhere with torch.onnx.export(module, inputs, 'net.onnx', dynamo=True) and read it with "
    "megengine.convert.onnx.load('net.onnx')"
)
_BRANCHES = "data-dependent"  # what torch says of networks that ask values before they go on
_ONE_BY_ONE = "; the example is a tuple: where it holds the arguments of forward, call from_torch(module, *inputs)"
_TRACED = (
    "; or, where it takes the same way for all inputs, write it by torch.onnx.export(module, inputs, 'net.onnx', "
    "dynamo=False), which follows the example, and read that with megengine.convert.onnx.load"
)
_LONGEST = 300  # characters of torch's message; the whole one is the cause


def from_torch(
    module: Any, *inputs: Any, kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None
) -> TracedModule:
    """A `torch.nn.Module` in evaluation mode, as a module that is called, edited, quantized and compiled.

    Args:
        module: the module; it stays as it is, its mode too.
        inputs: example arguments: tensors of torch or of ours, arrays, or what else its `forward` takes.
        kwargs: example arguments by name.
        dynamic_shapes: which axes stay open, as `torch.export.export` takes it: `({0: torch.export.Dim("n")},)`, for
            example. Else shapes are those of the examples; `traced_module.open_batch` can open the batch afterwards.

    Returns:
        A TracedModule of ops with weights of its own. Its results nest as those of torch (dicts as
        `OrderedDict`). `meta["module"]` of each op
        is the path of the torch module that it comes from.

    A UserWarning tells of results that differ from torch's on the examples, where torch's exporter writes a function
    otherwise.

    Raises:
        ArgumentError: `module` is no `torch.nn.Module`.
        MissingImportError: torch, onnx or onnxscript is not installed.
        UnsupportedError: torch cannot export the module.
        FileFormatError: an operator that torch wrote is not supported.

    Example:
        >>> net = from_torch(torchvision.models.resnet18(), np.zeros((1, 3, 224, 224), "float32"))  # doctest: +SKIP
    """
    try:
        import onnxscript  # noqa: F401  (torch's exporter needs it)
        import torch
    except ImportError:
        raise MissingImportError(_NEEDED) from None
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"from_torch: module is a {type(module).__name__}; expected a torch.nn.Module")
    first = next(iter(module.parameters()), None)
    place = "cpu" if first is None else first.device
    arguments = tuple(_of_torch(torch, value, place) for value in inputs)
    named = {name: _of_torch(torch, value, place) for name, value in (kwargs or {}).items()}
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore", (DeprecationWarning, FutureWarning))  # of torch about its own code
            return _read(torch, module, arguments, named, dynamic_shapes)
    except MegEngineError:  # what the importer says
        raise
    except Exception as error:
        text = one_line(" ".join(str(error.__cause__ or error).split()))
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
        raise UnsupportedError(
            f"from_torch: torch cannot export {type(module).__name__}: {text}; change what it names, or convert the "
            f"parts of the module one by one{_TRACED if _BRANCHES in text.lower() else ''}"
            f"{_ONE_BY_ONE if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)) else ''}"
        ) from error
    finally:
        for part, training in modes:
            part.training = training


def _read(torch: Any, module: Any, inputs: tuple[Any, ...], named: dict[str, Any], dynamic_shapes: Any) -> TracedModule:
    """The module as torch's exporter writes it, or else by way of functions that it translates.

    The first that gives torch's results on the examples; without one the first that can be read, with a warning.
    Raises what the exporter, or the importer, has to say of the module as it stands.
    """
    examples = Examples.of(torch, module, inputs, named)
    made: list[tuple[float, TracedModule]] = []
    errors: list[Exception] = []
    for export in (_exported, exported_again):
        try:
            with bags_by_axes(torch), in_their_type(torch):
                program = optimized(export(torch, module, inputs, named, dynamic_shapes))
            net = load(program.model_proto)
            away = examples.distance(net)
            net.graph.out_def = nesting_of(torch, program.exported_program, len(net.graph.outputs))
        except Exception as error:  # a translation is missing, or wrong
            errors.append(error)
            continue
        if away <= examples.limit:
            return net
        made.append((away, net))
    if not made:
        raise errors[0]
    away, net = min(made, key=lambda one: one[0])
    warnings.warn(
        f"from_torch: results of {type(module).__name__} differ from torch's by {away:.2g} of the largest: torch's "
        "exporter writes a function otherwise; compare the parts of the module with `from_torch` of each",
        UserWarning,
        stacklevel=3,
    )
    return net


def _exported(torch: Any, module: Any, inputs: tuple[Any, ...], named: dict[str, Any], dynamic_shapes: Any) -> Any:
    options = {"dynamo": True, "optimize": False, "verbose": False, "dynamic_shapes": dynamic_shapes}
    return torch.onnx.export(module, inputs, kwargs=named, **options)


def _of_torch(torch: Any, value: Any, place: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.numpy()
    return torch.tensor(value, device=place) if isinstance(value, np.ndarray) else value


__all__ = ["from_torch"]
