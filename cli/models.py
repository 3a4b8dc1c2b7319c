"""Models named on the command line: .onnx, .tm, .mgt, .mge, or module.py:function."""

import functools
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from megengine.cli.readers import load_function
from megengine.convert import from_torch, mge, onnx
from megengine.convert.onnx.reading import OpenShapeError, read_model
from megengine.core.errors import FileFormatError, OptionError, ShapeError, nearest, nearest_file
from megengine.core.text import counted
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module import InternalGraph, TracedModule, lower, open_batch, trace_module
from megengine.traced_module.formats import native as files
from megengine.traced_module.formats.tm_reading import load_tm
from megengine.traced_module.ir.node import TensorNode

STORED = (".tm", ".mgt", ".mge")  # files that store graphs of ours and of MegEngine: shapes of inputs are part of them
SUFFIXES = (".onnx", *STORED)
# suffixes of files of other kinds, which no mistyped suffix of a model is
OTHER_KINDS = {
    **dict.fromkeys((".html", ".svg", ".png", ".dot", ".pdf"), "a page or picture"),
    **dict.fromkeys((".npy", ".npz"), "data, as --data takes"),
    ".stats": "statistics, as ptq --statistics takes",
    ".log": "edits, as edit --log takes",
    ".toml": "a recipe, as --recipe takes",
    ".c": "C source, which a compiler reads",
}
STATE_DICTS = (".pth", ".pt", ".pkl", ".ckpt", ".safetensors")
Shape = tuple[int | str, ...]
Shapes = dict[str, Shape]
_AXIS = re.compile(r"[^\W\d]\w*")  # a name of an open axis


def suffix_of(source: str | Path) -> str:
    """The suffix of a path, in small letters."""
    return Path(source).suffix.lower()


class ShapeOption(click.ParamType):
    """`name=1,3,224,224`, or only the lengths for the single input; a name in the place of a length leaves it open."""

    name = "[NAME=]N,C,H,W"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, tuple]:
        """A pair of name ("" for the only input) and shape."""
        if isinstance(value, tuple):
            return value
        name, _, lengths = value.rpartition("=")
        parts = [part.strip() for part in (lengths if "," in lengths else lengths.replace("x", ",")).split(",")]
        try:
            shape = tuple(part if len(parts) > 1 and _AXIS.fullmatch(part) else int(part) for part in parts)
        except ValueError:
            self.fail(f"{value!r} is no shape; write for example input=1,3,224,224, or input=n,3,224,224", param, ctx)
        if any(isinstance(size, int) and size < 1 for size in shape):
            self.fail(f"{value!r}: sizes are positive", param, ctx)
        return name, shape


@dataclass(frozen=True, slots=True)
class InputChoices:
    """What the command line says of a model's inputs: shapes (or example lengths of axes) and values, by name.

    With `any_batch` a network with a fixed batch is made to take any.
    """

    shapes: tuple[tuple[str, Shape], ...] = ()
    values: tuple[str, ...] = ()
    any_batch: bool = False

    def known(self) -> dict[str, Any]:
        """The values: None, a number, or an array. Raises OptionError for a text that is none."""
        return dict(map(_known_value, self.values))

    def words(self) -> list[str]:
        """The options that say the same."""
        shapes = [f"{name}=" * bool(name) + ",".join(map(str, shape)) for name, shape in self.shapes]
        options = (("--input-shape", shapes), ("--input-value", self.values))
        return [word for option, texts in options for text in texts for word in (option, text)] + (
            ["--open-batch"] * self.any_batch
        )


NO_CHOICES = InputChoices()
_VALUES = "expected NAME=16000, NAME=1,2.5, NAME=true, NAME=none or NAME=file.npy"


def _known_value(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        if name and equals and value == "none":
            return name, None
        if name and value.endswith(".npy"):
            return name, np.load(value, allow_pickle=False)
        numbers = [_number(part.strip()) for part in value.split(",")]
        if name:
            return name, np.array(numbers) if "," in value else numbers[0]
    except (ValueError, OSError, EOFError) as error:
        near = nearest_file(value) if isinstance(error, FileNotFoundError) else ""
        raise OptionError(f"--input-value {text!r}: {error}{near}; {_VALUES}") from error
    raise OptionError(f"--input-value {text!r}: {_VALUES}")


def _number(text: str) -> float:
    """true, false, a whole number or a float. Raises ValueError."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return float(text)


def takes_choices(command: Callable[..., Any]) -> Callable[..., Any]:
    """Makes one argument, `shapes`, an `InputChoices`, of the options of `shape_option`."""

    @functools.wraps(command)
    def call(*args: Any, shapes: tuple, values: tuple[str, ...], any_batch: bool, **options: Any) -> Any:
        return command(*args, shapes=InputChoices(shapes, values, any_batch), **options)

    return call


def shape_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that fix inputs of a model, or open their batch."""
    opened = click.option(
        "--open-batch",
        "any_batch",
        is_flag=True,
        help="Makes a network with a fixed batch take any, if its samples do not depend on each other.",
    )
    value = click.option(
        "--input-value",
        "values",
        multiple=True,
        metavar="NAME=VALUE",
        help="Fixes an input of an ONNX model to a number, numbers (1,2), true, false, none (an optional input that is "
        "left out) or an array (.npy): a sampling rate that chooses a branch, for example. The network does not have "
        "this input then; repeat for several.",
    )
    shape = click.option(
        "--input-shape",
        "shapes",
        multiple=True,
        type=ShapeOption(),
        help="Fixes the shape of an input that the model leaves open; names in it, as in x=batch,3,224,224, stay open, "
        "and axes of one name are equal. As LENGTH=128, takes another example for an open axis by its name; repeat "
        "for several.",
    )
    return shape(value(opened(takes_choices(command))))


graph_option = click.option(
    "--graph",
    "number",
    type=click.IntRange(1),
    metavar="N",
    help="Which graph, of a module that was traced with several kinds of arguments.",
)


def load_model(source: str, shapes: InputChoices = NO_CHOICES, number: int | None = None) -> TracedModule:
    """An op-level graph of the model, or of one of its graphs. Raises as `load_calls` and `chosen_graph`."""
    return lower(chosen_graph(load_calls(source, shapes), number))


def load_models(sources: Sequence[str], shapes: InputChoices) -> list[TracedModule]:
    """Models that are looked at side by side: what the command line fixes holds for those that have such an input.

    Raises as `load_model`; what no model has is an error of the first one.
    """
    inputs = [_names_of_inputs(source) for source in sources]
    held = frozenset().union(*inputs)
    alone = all(suffix_of(source) in STORED for source in sources)
    return [
        load_model(source, shapes if alone else _choices_of(source, shapes, held - own))
        for source, own in zip(sources, inputs, strict=True)
    ]


def _choices_of(source: str, choices: InputChoices, others: AbstractSet[str]) -> InputChoices:
    """What holds for one of several models: no value and, for files, no shape of what other models alone have."""
    values = tuple(text for text in choices.values if text.partition("=")[0] not in others)
    suffix = suffix_of(source)
    if suffix in STORED:
        return replace(choices, shapes=(), values=values)
    kept = tuple(pair for pair in choices.shapes if suffix != ".onnx" or pair[0] not in others)
    return replace(choices, shapes=kept, values=values)


def _names_of_inputs(source: str) -> frozenset[str]:
    """Names of the inputs of an .onnx file and of their open axes; no name of other models."""
    path = Path(source)
    if suffix_of(path) != ".onnx" or not path.is_file():
        return frozenset()
    inputs = read_model(path)[0].graph.input
    axes = {axis.dim_param for item in inputs for axis in item.type.tensor_type.shape.dim}
    return frozenset(item.name for item in inputs) | axes


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


def listing(model: str, shapes: InputChoices, *, ops: bool = False) -> str:
    """The line that lists the names of a model's values and layers."""
    return shlex.join(["mge-quantize", "inspect", model, *["--calls"] * (not ops), *shapes.words(), "--find", "*"])


def load_calls(source: str, shapes: InputChoices = NO_CHOICES, *, dynamic: bool = True) -> TracedModule:
    """The calls of a .tm file or a function, the ops of other files, and of those whose batch is opened.

    Raises OptionError, FileFormatError, and ShapeError for a batch that cannot be opened.

    Args:
        dynamic: see `megengine.convert.onnx.load`; commands that calibrate read real values.
    """
    model = _read(source, shapes, dynamic=dynamic)
    return open_batch(chosen_graph(model, None)) if shapes.any_batch else model


def _read(source: str, shapes: InputChoices, *, dynamic: bool) -> TracedModule:
    by_name, known = dict(shapes.shapes), shapes.known()
    path = Path(source)
    suffix = suffix_of(path)
    if known and suffix != ".onnx":
        raise OptionError(f"--input-value: the inputs of {source!r} cannot be fixed; expected an .onnx file")
    if by_name and suffix in STORED:
        raise OptionError(
            f"--input-shape: the inputs of {source!r} keep the shapes that they have; expected an .onnx file or "
            "module.py:function"
        )
    if ".py:" in source:
        return _from_function(source, by_name)
    if suffix in STATE_DICTS:
        raise OptionError(
            f"model {source!r}: a {suffix} file holds weights without a network; give module.py:function, a "
            "function that builds the network and loads the weights, or export the network as .onnx"
        )
    if suffix not in SUFFIXES:
        kind, hint = OTHER_KINDS.get(suffix), nearest_file(path, SUFFIXES)
        if kind and path.is_file():
            raise OptionError(f"model {source!r}: {kind}; expected {', '.join(SUFFIXES)} or module.py:function{hint}")
        hint = hint if kind else nearest(suffix, SUFFIXES) or hint
        if suffix == ".py":
            hint = f"; add the function that gives the model, {source}:FUNCTION"
        raise OptionError(f"model {source!r}: expected {', '.join(SUFFIXES)} or module.py:function{hint}")
    if "://" in source:
        raise OptionError(f"model {source!r}: an address; expected a file, so download it first")
    if not path.is_file():
        raise FileFormatError(f"model {source!r}: no such file{nearest_file(path, SUFFIXES)}")
    if suffix == ".onnx":
        try:
            inputs = {item.name for item in read_model(path)[0].graph.input} if by_name else set()
            axes = [name for name, shape in by_name.items() if name and name not in inputs and len(shape) == 1]
            examples: Any = {name: by_name[name][0] for name in axes}
            fixed = {name: shape for name, shape in by_name.items() if name not in axes}
            shape = fixed[""] if list(fixed) == [""] else fixed or None
            return onnx.load(path, shape, known, example_sizes=examples, dynamic=dynamic)
        except OpenShapeError as error:
            sizes = error.shape.replace(" ", "").replace("?", "224") or "1,3,224,224"
            raise FileFormatError(
                f"the input {error.name!r} has the open shape ({error.shape}); give it, for example with "
                f"--input-shape {shlex.quote(f'{error.name}={sizes}')}"
            ) from error
        except (FileFormatError, OptionError, ShapeError) as error:
            told = type(error)(_in_options(str(error)))
            for note in getattr(error, "__notes__", ()):
                told.add_note(_in_options(note))
            raise told from error
    if suffix == ".tm":
        return load_tm(path)
    if suffix == ".mge":
        return mge.load(path)
    return files.load(path)


def _in_options(text: str) -> str:
    """A message about arguments of `onnx.load` in the words of the command line."""
    text = re.sub(r"input_values=\{'([^']*)': \.\.\.\}", r"--input-value \1=...", text)
    text = re.sub(r"example_sizes=\{'([^']*)': \.\.\.\}", r"--input-shape \1=...", text)
    return re.sub(r"\b(input_shapes|example_sizes)\b", "--input-shape", text).replace("input_values", "--input-value")


def _numbers(source: str, shape: Shape) -> list[int]:
    """The shape of an input of a module. Raises OptionError for a name in it."""
    if names := [size for size in shape if isinstance(size, str)]:
        raise OptionError(
            f"model {source!r}: --input-shape names the axis {names[0]!r}; expected numbers, since a module is traced "
            "with them: --open-batch opens its batch"
        )
    return [size for size in shape if isinstance(size, int)]


def _from_function(source: str, shapes: Shapes) -> TracedModule:
    """The function returns a TracedModule, a Module (with --input-shape), or a Module and its example inputs.

    A Module may be one of torch.
    """
    function = load_function(source)
    try:
        result = function()
    except Exception as error:
        raise OptionError(f"model {source!r}: the function raised {type(error).__name__}: {error}") from error
    if isinstance(result, TracedModule):
        return result
    module, *inputs = result if isinstance(result, tuple) else (result,)
    torch = sys.modules.get("torch")  # a function that gives one of its modules has imported it
    of_torch = torch is not None and isinstance(module, torch.nn.Module)
    if not of_torch and not isinstance(module, Module):
        raise OptionError(
            f"model {source!r}: gave {type(module).__name__}; expected a Module of megengine or torch, or "
            "(Module, *inputs)"
        )
    if not inputs:
        if not shapes:
            raise OptionError(f"model {source!r}: gave no example input; add --input-shape 1,3,224,224")
        inputs = [Tensor(np.zeros(_numbers(source, shape), np.float32)) for shape in shapes.values()]
    if of_torch:
        return from_torch(module, *inputs)
    module.eval()
    tensors = [one if isinstance(one, Tensor) else Tensor(np.asarray(one)) for one in inputs]
    return trace_module(module, *tensors)
