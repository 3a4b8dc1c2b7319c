"""Models named on the command line: .onnx, .tm, .mgt, or module.py:function."""

import shlex
from pathlib import Path
from typing import Any

import click
import numpy as np

from megengine.cli.readers import load_function
from megengine.convert import onnx
from megengine.convert.onnx.reading import OpenShapeError, read_model
from megengine.core.errors import FileFormatError, OptionError, ShapeError, nearest
from megengine.core.text import counted
from megengine.module import Module
from megengine.serialization.mge_file import ADVICE as MGE_ADVICE
from megengine.tensor import Tensor
from megengine.traced_module import InternalGraph, TracedModule, lower, trace_module
from megengine.traced_module.formats import native as files
from megengine.traced_module.formats.tm_reading import load_tm
from megengine.traced_module.ir.node import TensorNode

SUFFIXES = (".onnx", ".tm", ".mgt")
STATE_DICTS = (".pth", ".pt", ".pkl", ".ckpt", ".safetensors")
Shapes = dict[str, tuple[int, ...]]


class ShapeOption(click.ParamType):
    """`name=1,3,224,224`, or only the numbers for the single input."""

    name = "[NAME=]N,C,H,W"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, tuple]:
        """A pair of name ("" for the only input) and shape."""
        if isinstance(value, tuple):
            return value
        name, _, numbers = value.rpartition("=")
        try:
            shape = tuple(int(part) for part in numbers.replace("x", ",").split(","))
        except ValueError:
            self.fail(f"{value!r} is no shape; write for example input=1,3,224,224", param, ctx)
        if min(shape) < 1:
            self.fail(f"{value!r}: sizes are positive", param, ctx)
        return name, shape


shape_option = click.option(
    "--input-shape",
    "shapes",
    multiple=True,
    type=ShapeOption(),
    help="Fixes the shape of an input that the model leaves open, or, as LENGTH=128, takes another example for an open "
    "axis by its name; repeat for several.",
)


graph_option = click.option(
    "--graph",
    "number",
    type=click.IntRange(1),
    metavar="N",
    help="Which graph, of a module that was traced with several kinds of arguments.",
)


def load_model(source: str, shapes: tuple[tuple[str, tuple], ...] = (), number: int | None = None) -> TracedModule:
    """An op-level graph of the model, or of one of its graphs. Raises as `load_calls` and `chosen_graph`."""
    return lower(chosen_graph(load_calls(source, shapes), number))


def chosen_graph(model: TracedModule, number: int | None) -> InternalGraph:
    """The only graph of a model, or that of a number from 1. Raises OptionError if the choice is open or wrong."""
    graphs = model.graphs
    if not graphs:
        raise FileFormatError("a model without a graph")
    if number is None and len(graphs) == 1:
        return graphs[0]
    if number is None or number > len(graphs):
        listed = "; ".join(
            f"--graph {i}: ({', '.join(n.name for n in graph.inputs if isinstance(n, TensorNode))})"
            for i, graph in enumerate(graphs, 1)
        )
        prefix = "" if number is None else f"--graph {number}: "
        raise OptionError(f"{prefix}the model has {counted(len(graphs), 'graph')}; expected one of: {listed}")
    return graphs[number - 1]


def load_calls(source: str, shapes: tuple[tuple[str, tuple], ...] = ()) -> TracedModule:
    """The calls of a .tm file or a function, the ops of other files. Raises OptionError and FileFormatError."""
    by_name = dict(shapes)
    path = Path(source)
    if ".py:" in source:
        return _from_function(source, by_name)
    if path.suffix in STATE_DICTS:
        raise OptionError(
            f"model {source!r}: a {path.suffix} file holds weights without a network; give module.py:function, a "
            "function that builds the network and loads the weights, or export the network as .onnx"
        )
    if path.suffix not in SUFFIXES:
        hint = nearest(path.suffix, SUFFIXES) or nearest(path.name, _models_beside(path))
        if path.suffix == ".mge":
            raise OptionError(f"model {source!r}: {MGE_ADVICE}")
        if path.suffix == ".py":
            hint = f"; add the function that gives the model, {source}:FUNCTION"
        raise OptionError(f"model {source!r}: expected {', '.join(SUFFIXES)} or module.py:function{hint}")
    if not path.is_file():
        raise FileFormatError(f"model {source!r}: no such file{nearest(path.name, _models_beside(path))}")
    if path.suffix == ".onnx":
        try:
            inputs = {item.name for item in read_model(path)[0].graph.input} if by_name else set()
            axes = [name for name, shape in by_name.items() if name and name not in inputs and len(shape) == 1]
            sizes = {name: by_name[name][0] for name in axes}
            fixed = {name: shape for name, shape in by_name.items() if name not in axes}
            return onnx.load(path, fixed[""] if list(fixed) == [""] else fixed or None, example_sizes=sizes)
        except OpenShapeError as error:
            sizes = error.shape.replace(" ", "").replace("?", "224") or "1,3,224,224"
            raise FileFormatError(
                f"the input {error.name!r} has the open shape ({error.shape}); give it, for example with "
                f"--input-shape {shlex.quote(f'{error.name}={sizes}')}"
            ) from error
        except (OptionError, ShapeError) as error:
            message = str(error).replace("input_shapes:", "--input-shape:").replace("example_sizes:", "--input-shape:")
            raise type(error)(message) from error
    if path.suffix == ".tm":
        return load_tm(path)
    return files.load(path)


def _models_beside(path: Path) -> list[str]:
    """Names of the models in the folder of a path."""
    try:
        return [one.name for one in path.parent.iterdir() if one.suffix in SUFFIXES]
    except OSError:
        return []


def _from_function(source: str, shapes: Shapes) -> TracedModule:
    """The function returns a TracedModule, a Module (with --input-shape), or a Module and its example inputs."""
    function = load_function(source)
    try:
        result = function()
    except Exception as error:
        raise OptionError(f"model {source!r}: the function raised {type(error).__name__}: {error}") from error
    if isinstance(result, TracedModule):
        return result
    module, *inputs = result if isinstance(result, tuple) else (result,)
    if not isinstance(module, Module):
        raise OptionError(f"model {source!r}: gave {type(module).__name__}; expected a Module, or (Module, *inputs)")
    if not inputs:
        if not shapes:
            raise OptionError(f"model {source!r}: gave no example input; add --input-shape 1,3,224,224")
        inputs = [Tensor(np.zeros(shape, np.float32)) for shape in shapes.values()]
    module.eval()
    tensors = [one if isinstance(one, Tensor) else Tensor(np.asarray(one)) for one in inputs]
    return trace_module(module, *tensors)
