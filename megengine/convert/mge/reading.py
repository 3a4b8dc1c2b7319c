"""The records of a .mge file of version 2: operators, values and what the graph returns.

What the fields hold was learned from files that MegEngine 1.13 wrote. The file is one FlatBuffer behind its length (4
bytes), with the identifier `mgv2`; where inputs for its load_and_run were dumped too, `mgbtest0` and their number (4
bytes) come first, and the inputs, one FlatBuffer each, behind it.

| table | fields |
|---|---|
| model | 0 version of MegEngine, 1 version of the format (2), 2 operators, 3 values, 4 results, 7 metadata |
| operator | 0 type, 3 kind of parameters, 4 parameters, 7 operands and 8 results (numbers of values), 10 dtype of the \
results, 11 stored tensors, 12 version |
| value | 0 name, 1 shape |
| result | 0 number of a value |
| tensor | 0 name, 1 shape, 3 dtype, 6 bytes |
| dtype | 0 number of the type, 2 scale and zero point: a table with 0 scale, 1 zero point |

The metadata holds a pickle of the user's; it is not opened.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from megengine.convert.mge.flatbuffer import Table, integer_at
from megengine.core.dtype import QuantizedDType, quantized
from megengine.core.errors import FileFormatError, OptionError, brief, nearest_file
from megengine.core.text import counted

FIRST, WITH_INPUTS = b"mgv2", b"mgbtest0"
VERSION_1 = (b"MGBC", b"MGBS")
MAX_AXES = 7  # of MegEngine's tensors
MAX_ELEMENTS = 1 << 40
_PLAIN: dict[int, Any] = {
    0: np.float32,
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    9: np.float16,
    17: ml_dtypes.bfloat16,
    18: np.bool_,
    19: np.uint16,
}
_QUANTIZED = {11: "quint8", 12: "qint32", 13: "qint8"}
_NAMES = [
    "Float32",
    "Uint8",
    "Int8",
    "Int16",
    "Int32",
    "IntB1",
    "IntB2",
    "IntB4",
    "Byte",
    "Float16",
    "UintB4",
    "Quantized8Asymm",
    "QuantizedS32",
    "QuantizedS8",
    "Quantized4Asymm",
    "QuantizedS4",
    "QuantizedS16",
    "BFloat16",
    "Bool",
    "Uint16",
    "QuantizedS1",
    "Complex64",
]
DType = np.dtype | QuantizedDType


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in the file: an input without bytes, or a constant."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    data: memoryview


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: operands and results are numbers of values."""

    kind: str
    place: int
    parameters: int
    options: Table | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dtype: DType | None
    tensors: tuple[Stored, ...]
    label: str

    def fail(self, message: str) -> FileFormatError:
        """The error to raise: it names the operator."""
        return FileFormatError(f"operator {self.place} ({brief(self.kind)}) that makes {brief(self.label)}: {message}")


@dataclass(frozen=True, slots=True)
class Model:
    """The records of a file."""

    operators: tuple[Operator, ...]
    names: tuple[str, ...]
    results: tuple[int, ...]


def content_of(source: str | Path | bytes) -> bytes:
    """The bytes of a file. Raises OptionError for anything else."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if isinstance(source, (str, Path)):
        path = Path(source)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise FileFormatError(f"{path}: no such file{nearest_file(path, ('.mge',))}") from None
        except OSError as error:
            raise FileFormatError(f"{path}: cannot be read ({error.strerror})") from error
    raise OptionError(f"mge.load: got {type(source).__name__}; expected the path of a .mge file, or its bytes")


def read_model(content: bytes) -> Model:
    """The records of a .mge file. Raises FileFormatError for other files, and for damaged ones."""
    data = memoryview(content)
    begin = len(WITH_INPUTS) + 4 if content.startswith(WITH_INPUTS) else 0
    if content[begin:].startswith(VERSION_1):
        raise FileFormatError(
            "a .mge file of version 1 (dump_format='FBS'); expected version 2: dump it again with "
            "dump_format='FBS_V2', the default of MegEngine 1.13"
        )
    if content[begin + 8 : begin + 12] != FIRST:
        raise FileFormatError("not a .mge file: the identifier 'mgv2' is missing")
    size = integer_at(data, begin)
    if begin + 4 + size > len(content):
        raise FileFormatError(
            f"the file is cut: its graph takes {counted(size, 'byte')}, and {len(content) - begin - 4} follow"
        )
    return _Reader(data[begin + 4 : begin + 4 + size]).model()


class _Reader:
    """Reads the records. Lists and tensors together are at most as long as the file, which may name one many times."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.left = len(data)

    def _claim(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise FileFormatError("the file is damaged: its lists and tensors together are longer than the file")

    def model(self) -> Model:
        root = Table(self.data, integer_at(self.data, 0))
        if (version := root.integer(1, "I")) != 2:
            raise FileFormatError(f"the file has version {version} of the format; expected 2")
        values, operators = root.tables(3), root.tables(2)
        results = tuple(one.integer(0, "I") for one in root.tables(4))
        self._claim(4 * (len(values) + len(operators) + len(results)))
        names = tuple(self._name(one, 0) for one in values)
        made = tuple(self._operator(one, place, names) for place, one in enumerate(operators))
        for number in results:
            if number >= len(names):
                raise FileFormatError(
                    f"the file is damaged: result {number} is no value; expected a number below {len(names)}"
                )
        if not results:
            raise FileFormatError("the graph has no result; expected one or more")
        return Model(made, names, results)

    def _name(self, table: Table, index: int) -> str:
        self._claim(len(table.raw(index)))
        return table.text(index)

    def _numbers(self, table: Table, index: int) -> tuple[int, ...]:
        self._claim(len(table.raw(index, 4)))
        return tuple(table.numbers(index, "I"))

    def _operator(self, table: Table, place: int, names: tuple[str, ...]) -> Operator:
        inputs, outputs, kind = self._numbers(table, 7), self._numbers(table, 8), self._name(table, 0)
        if any(number >= len(names) for number in (*inputs, *outputs)):
            raise FileFormatError(f"the file is damaged: operator {place} names a value that there is not")
        dtype = table.table(10)
        tensors = table.tables(11)
        self._claim(4 * len(tensors))
        return Operator(
            kind=kind,
            place=place,
            parameters=table.integer(3, "B"),
            options=table.table(4),
            inputs=inputs,
            outputs=outputs,
            dtype=None if dtype is None else dtype_of(dtype),
            tensors=tuple(map(self._tensor, tensors)),
            label=names[outputs[0]] if outputs else "nothing",
        )

    def _tensor(self, table: Table) -> Stored:
        name, shape = self._name(table, 0), self._numbers(table, 1)
        if len(shape) > MAX_AXES or math.prod(shape) > MAX_ELEMENTS:
            raise FileFormatError(f"the tensor {brief(name)} has the shape {brief(shape)}, larger than any memory")
        data = table.raw(6)
        self._claim(len(data))
        return Stored(name, shape, dtype_of(table.needed(3, f"the dtype of tensor {name!r}")), data)


def dtype_of(table: Table) -> DType:
    """The dtype that a table stands for."""
    number = table.integer(0, "b")
    if number in _PLAIN:
        return np.dtype(_PLAIN[number])
    if number not in _QUANTIZED:
        name = _NAMES[number] if 0 <= number < len(_NAMES) else f"number {number}"
        known = ", ".join(_NAMES[n] for n in sorted((*_PLAIN, *_QUANTIZED)))
        raise FileFormatError(f"holds values of the dtype {name}, which is not supported; expected one of {known}")
    scales = table.needed(2, "the scale of a quantized dtype")
    scale = float(scales.number(0, "f"))
    if not (math.isfinite(scale) and scale >= np.finfo(np.float32).tiny):
        raise FileFormatError(f"a quantized dtype has the scale {scale}; expected a positive, normal, finite number")
    return quantized(_QUANTIZED[number], scale, scales.integer(1, "B") if number == 11 else 0)


def clean(name: str) -> str:
    """The part of the name of a value that a node takes; "" for names that MegEngine makes up from others."""
    found = re.fullmatch(r"([A-Za-z_][\w.]*)(\[\d+\])?", name[:200])
    return found[1] if found else ""
