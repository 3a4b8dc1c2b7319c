"""What a file and the caller say of a model's inputs: shapes, dtypes, values that are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from megengine.convert.onnx.context import Group
from megengine.convert.onnx.examples import Examples
from megengine.convert.onnx.reading import DATA_TYPES, OpenShapeError, data_type_name, dtype_of
from megengine.core.dtype import storage_of
from megengine.core.errors import FileFormatError, OptionError, ShapeError
from megengine.core.spec import TensorSpec

if TYPE_CHECKING:
    import onnx

Lengths = tuple[int | str | None, ...]


def known_input(name: str, kind: onnx.TypeProto, value: Any) -> Any:
    """The given value of an input: a list for a sequence, None for an optional value that is not there."""
    import onnx

    if kind.WhichOneof("value") == "optional_type":
        return Group([], optional=True) if value is None else known_input(name, kind.optional_type.elem_type, value)
    if kind.WhichOneof("value") == "sequence_type":
        if not isinstance(value, (list, tuple)):
            raise OptionError(f"input_values: {name!r} is a sequence; expected a list, got a {type(value).__name__}")
        return Group([known_input(name, kind.sequence_type.elem_type, one) for one in value])
    array = np.asarray(value)
    spec = input_spec(onnx.ValueInfoProto(name=name, type=kind), array.shape)
    return array.astype(storage_of(spec.dtype))


def of_group(value: Group) -> str:
    """What a value is that is no tensor, in messages."""
    return "an optional value that is not there" if value.optional else "a sequence"


def has_formula(item: onnx.ValueInfoProto) -> bool:
    """Whether a length of an input is written as more than a name."""
    dims = item.type.tensor_type.shape.dim
    return any(dim.dim_param and not dim.dim_param.isidentifier() for dim in dims)


def input_spec(item: onnx.ValueInfoProto, wanted: Lengths | None, examples: Examples | None = None) -> TensorSpec:
    """The spec of an input, from the file, the wanted shape, and examples of open lengths.

    Raises FileFormatError and ShapeError where these do not make one.
    """
    kind = item.type.tensor_type
    if item.type.WhichOneof("value") != "tensor_type":
        raise FileFormatError(
            f"the input {item.name!r} is a sequence or an optional value; give what it is with "
            f"input_values={{{item.name!r}: ...}} (a list, or None), or export the model with tensors"
        )
    dtype = dtype_of(kind.elem_type)
    if dtype is None:
        name = data_type_name(kind.elem_type)
        raise FileFormatError(f"the input {item.name!r} has the data type {name}, which is not supported; {DATA_TYPES}")
    # some exporters write an open size as -1
    stated = [dim.dim_value if dim.HasField("dim_value") and dim.dim_value != -1 else None for dim in kind.shape.dim]
    if wanted is not None:
        fits = len(wanted) == len(stated) and all(
            s is None or w in (None, s) for s, w in zip(stated, wanted, strict=True)
        )
        if not fits and kind.HasField("shape"):
            text = ", ".join("any" if size is None else str(size) for size in stated)
            raise ShapeError(f"input {item.name!r}: shape {wanted} does not fit the model's ({text})")
        stated = [w if s is None else s for s, w in zip(stated, wanted, strict=True)] if fits else list(wanted)
    if examples is not None and not all(isinstance(size, int) for size in stated):
        stated = examples.sizes(item, stated)
    if (not kind.HasField("shape") and wanted is None) or any(not isinstance(n, int) or n < 0 for n in stated):
        text = ", ".join("?" if size is None else str(size) for size in stated)
        raise OpenShapeError(item.name, text)
    return TensorSpec(tuple(size for size in stated if isinstance(size, int)), dtype)


def lengths_of(shape: Sequence[int | str | None]) -> Lengths:
    """What a caller says of the lengths of an input: numbers, names of open axes, None for one without a name."""
    return tuple(
        size if size is None or (isinstance(size, str) and size.isidentifier()) else int(size) for size in shape
    )
