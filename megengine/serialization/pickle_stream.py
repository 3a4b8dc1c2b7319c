"""Values read from a pickle, and the machine that its opcodes (`pickle_opcodes`) work on.

Sizes are compared with the file before memory is taken. Long byte strings are read from the file directly into the
memory where they stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from megengine.core.errors import FileFormatError
from megengine.core.files import read_into
from megengine.core.text import counted

ATOMS = (str, int, float, bool, bytes, type(None))
_CHUNK = 1 << 14
_SLACK = 300  # more than the longest opcode without a long argument: itself, a length byte, 255 bytes
_BLOB = 256  # longer byte strings get memory of their own


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a class or function in a pickle; only a name."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"[:200]


@dataclass(slots=True, eq=False)
class Record:
    """An object that the pickle describes: the callable, its arguments, and the state set afterwards."""

    target: Any
    args: Any
    state: Any = None
    items: list[Any] | None = None
    entries: list[tuple[Any, Any]] | None = None

    def __repr__(self) -> str:
        # NOTE: records may refer to each other in circles; printing their contents would not end
        return f"<record of {self.target if isinstance(self.target, Global) else type(self.target).__name__}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Persistent:
    """A reference to something outside the pickle (torch: a storage)."""

    value: Any


class Blob:
    """A long byte string in memory of its own: the first taker owns it, later ones get copies.

    The copies of all blobs of a file together may be as large as the file.
    """

    __slots__ = ("_allowance", "_memory", "_taken")

    def __init__(self, memory: np.ndarray, allowance: list[int]) -> None:
        self._memory, self._allowance, self._taken = memory, allowance, False

    def __len__(self) -> int:
        return len(self._memory)

    def take(self) -> np.ndarray:
        """The bytes as a writable array that no other object refers to."""
        if not self._taken:
            self._taken = True
            return self._memory
        return self._spend().copy()

    def copy_bytes(self) -> bytes:
        """The bytes as a Python object."""
        return self._spend().tobytes()

    def _spend(self) -> np.ndarray:
        self._allowance[0] -= len(self._memory)
        if self._allowance[0] < 0:
            raise FileFormatError("pickle: its arrays share so many bytes that they would take more than the file")
        return self._memory


class _Memo(dict[int, Any]):
    def __missing__(self, index: int) -> Any:
        raise FileFormatError(f"pickle: entry {index} is used before it is stored; the file is damaged")


class Machine:
    """A window on the file, the stack, the stacks below marks, the memo."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, start = file, file.tell()
        self.size = file.seek(0, 2)
        file.seek(start)
        self.left = self.size - start  # bytes of the file behind the window
        self.allowance = [self.left]
        self.data = b""
        self.end = 0  # bytes of the window that come from the file
        self.limit = -1  # an opcode beyond it may reach over the end of the window
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo = _Memo()

    def run(self, ops: Sequence[Opcode], stop: int) -> Any:
        """Read opcodes until the one that ends the pickle, and leave the file there."""
        at = 0
        while True:
            if at > self.limit:
                at = self.refill(at)
            code = self.data[at]
            if code == stop:
                break
            at = ops[code](self, at + 1)
        self.file.seek(self.size - self.left - (self.end - at - 1))
        return self.stack.pop()

    def refill(self, at: int, need: int = 0) -> int:
        """Begin the window at `at`, with `need` bytes in it at least; the new place of `at`."""
        rest = self.data[at : self.end]
        fresh = self.file.read(min(max(_CHUNK, need - len(rest)), self.left))
        self.left -= len(fresh)
        self.data = rest + fresh
        self.end = len(self.data)
        if self.left and fresh:
            self.limit = self.end - _SLACK
        else:
            self.left = 0
            self.data += bytes(_SLACK)  # no opcode is zero, so none is read behind the file's end
            self.limit = self.end
        return 0

    def check(self, at: int, count: int) -> None:
        """Refuse a length that the file does not have."""
        have = self.end - at + self.left
        if not 0 <= count <= have:
            raise FileFormatError(
                f"not a readable pickle: {counted(count, 'byte')} of text or data expected, {max(have, 0)} are left"
            )

    def take(self, at: int, count: int) -> tuple[bytes, int]:
        """Bytes of the file and the place behind them."""
        if at + count > self.end:
            self.check(at, count)
            at = self.refill(at, count)
        return self.data[at : at + count], at + count

    def line(self, at: int) -> tuple[bytes, int]:
        """Bytes up to the end of a line, and the place behind it."""
        while (stop := self.data.find(b"\n", at, self.end)) < 0:
            if not self.left:
                raise FileFormatError("not a readable pickle: the file ends in the middle")
            at = self.refill(at, 2 * (self.end - at) + _CHUNK)
        return self.data[at:stop], stop + 1

    def blob(self, at: int, count: int) -> int:
        """Push a byte string; the place behind it."""
        if count <= _BLOB:
            value, at = self.take(at, count)
            self.stack.append(value)
            return at
        self.check(at, count)
        memory = np.empty(count, np.uint8)
        have = min(count, self.end - at)
        memory[:have] = np.frombuffer(self.data, np.uint8, have, at)
        if have < count and not read_into(self.file, memory[have:].data):
            raise FileFormatError("not a readable pickle: the file ends in the middle")
        self.left -= count - have
        self.stack.append(Blob(memory, self.allowance))
        return self.refill(at + have)

    def pop_mark(self) -> list[Any]:
        """The values above the last mark."""
        values, self.stack = self.stack, self.below.pop()
        return values


Opcode = Callable[[Machine, int], int]  # (machine, place behind the opcode) -> place of the next one
