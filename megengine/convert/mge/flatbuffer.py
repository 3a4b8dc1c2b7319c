"""Tables of a FlatBuffer, read where they lie; every place is compared with the ends of the buffer.

A table begins with the distance back to its list of fields, which holds for each field its distance from the beginning
of the table, or 0 for one that has its default. Strings, vectors and tables are at distances from the place that names
them; a vector begins with its length. Everything is little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from megengine.core.errors import FileFormatError, brief

SIZES = {"b": 1, "B": 1, "?": 1, "H": 2, "i": 4, "I": 4, "f": 4, "q": 8, "Q": 8}  # letters of `struct`


def number_at(data: memoryview, place: int, kind: str) -> int | float:
    """The number at a place. Raises FileFormatError if it lies outside of the buffer."""
    if place < 0 or place + SIZES[kind] > len(data):
        raise FileFormatError(f"the file is damaged or cut: a number at byte {place} lies behind its end, {len(data)}")
    return struct.unpack_from(f"<{kind}", data, place)[0]


def integer_at(data: memoryview, place: int, kind: str = "I") -> int:
    """The integer at a place."""
    return int(number_at(data, place, kind))


@dataclass(frozen=True, slots=True)
class Table:
    """A table at a place of a buffer. A field that is not there, also behind the last one, has its default."""

    data: memoryview
    place: int

    def _field(self, index: int) -> int:
        """The place of a field; 0 if it has its default."""
        fields = self.place - integer_at(self.data, self.place, "i")
        if 4 + 2 * index >= integer_at(self.data, fields, "H"):
            return 0
        distance = integer_at(self.data, fields + 4 + 2 * index, "H")
        return self.place + distance if distance else 0

    def number(self, index: int, kind: str, default: int | float = 0) -> int | float:
        """A number."""
        place = self._field(index)
        return number_at(self.data, place, kind) if place else default

    def integer(self, index: int, kind: str, default: int = 0) -> int:
        """An integer."""
        return int(self.number(index, kind, default))

    def _target(self, index: int) -> int:
        """The place that a field names; 0 if it has its default."""
        place = self._field(index)
        return place + integer_at(self.data, place) if place else 0

    def table(self, index: int) -> Table | None:
        """Another table, None if there is none."""
        place = self._target(index)
        return Table(self.data, place) if place else None

    def raw(self, index: int, size: int = 1) -> memoryview:
        """The bytes of a vector of elements of some bytes each; none if there is no vector."""
        place = self._target(index)
        if not place:
            return self.data[:0]
        count = integer_at(self.data, place)
        if place + 4 + count * size > len(self.data):
            raise FileFormatError(
                f"the file is damaged or cut: a list at byte {place}, of length {count}, goes beyond its end"
            )
        return self.data[place + 4 : place + 4 + count * size]

    def numbers(self, index: int, kind: str) -> list[int]:
        """A vector of integers."""
        return [int(value) for (value,) in struct.iter_unpack(f"<{kind}", self.raw(index, SIZES[kind]))]

    def text(self, index: int) -> str:
        """A string, "" if there is none."""
        return bytes(self.raw(index)).decode("utf-8", "replace")

    def tables(self, index: int) -> list[Table]:
        """A vector of tables."""
        distances, place = self.numbers(index, "I"), self._target(index) + 4
        return [Table(self.data, place + 4 * k + distance) for k, distance in enumerate(distances)]

    def needed(self, index: int, what: str) -> Table:
        """A table that must be there."""
        if (found := self.table(index)) is None:
            raise FileFormatError(f"the file is damaged: {brief(what)} is missing")
        return found
