"""Parameters of operators: which field of a table holds which option.

Fields come in the order in which MegEngine's op classes list their options, so most tables follow from the class that
`megengine.core.ops.builtin` has here: numbers, truth values of one byte, choices as the place of the word in its list
(`Elemwise` 37 is FUSE_ADD_RELU). A field that is left out has the default of the class. Others:

| parameters | fields |
|---|---|
| axis (2) | 0 axis |
| optional axis (54) | 0 axis, 7 for none |
| axes in another order (64) | 0 their numbers, -1 for a new one; 1 how many the operand has |
| axes added or removed (65) | 0 list of 8 bytes each: 0 or 1 (removed) in byte 0, the axis in bytes 4 to 7 |
| index (66) | 0 list of 5 bytes each: axis, and whether begin, end, step, position are operands |
| dtype (67) | a dtype table |
| power (19) | 0 exponent |
| linspace (29) | 0 whether the end is part of it |
"""

from __future__ import annotations

import struct
from typing import Any

from megengine.compat.opdef import Choice, OpDef
from megengine.convert.mge.flatbuffer import Table
from megengine.convert.mge.reading import Operator

_ELSEWHERE = ("strategy", "dtype", "shape", "keepdim")  # options that no field of these tables holds
_WIDE = ("normalized_dim", "normalized_size")  # 8 bytes


def table_of(operator: Operator, number: int) -> Table:
    """The table of parameters. Raises FileFormatError if it is of another kind, or missing."""
    if operator.parameters != number or operator.options is None:
        raise operator.fail(f"its parameters are of kind {operator.parameters}; expected kind {number}")
    return operator.options


def options_of(operator: Operator, number: int, kind: type[OpDef], only: int | None = None) -> dict[str, Any]:
    """The options of an op class that a table of parameters stands for, the first few of them if `only` says so."""
    table = table_of(operator, number)
    names = [name for name in kind._defaults if name not in _ELSEWHERE][:only]
    return {name: _option(operator, table, k, name, kind._defaults[name]) for k, name in enumerate(names)}


def _option(operator: Operator, table: Table, index: int, name: str, default: Any) -> Any:
    if isinstance(default, Choice):
        words = list(type(default).__members__)
        number = table.integer(index, "I", words.index(default.value))
        if number >= len(words):
            raise operator.fail(f"its {name} is number {number}; expected one below {len(words)}")
        return words[number]
    if isinstance(default, bool):
        return bool(table.integer(index, "B", default))
    if isinstance(default, float):
        return float(table.number(index, "f", default))
    return table.integer(index, "Q" if name in _WIDE else "i", default)


def axes_of(table: Table) -> list[tuple[bool, int]]:
    """Axes that are added or removed, one after the other: whether it is removed, and which."""
    return [(bool(gone), axis) for gone, axis in struct.iter_unpack("<?3xi", table.raw(0, 8))]


def items_of(table: Table) -> list[tuple[int, bool, bool, bool, bool]]:
    """The parts of an index: the axis, and which of begin, end, step and position are operands."""
    return list(struct.iter_unpack("<b????", table.raw(0, 5)))
