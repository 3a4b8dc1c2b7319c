"""Damage to the structure of pickles: operations left out, repeated, moved, and hostile ones put in between."""

from __future__ import annotations

import io
import pickle
import pickletools
import random
from typing import Any

RUN: list[Any] = []  # what ran because a file asked for it


def strike(*args: Any, **options: Any) -> dict[str, Any]:
    """What no file may call."""
    RUN.append(args)
    return {}


class Strike:
    """What no file may make."""

    def __new__(cls, *args: Any, **options: Any) -> Strike:
        """It is noted that one was made."""
        RUN.append(args)
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """It is noted that one was filled."""
        RUN.append(state)


_STRIKE, _CLASS = (f"c{__name__}\n{name}\n".encode() for name in ("strike", "Strike"))
_HOSTILE = (
    _STRIKE + b")R",
    _STRIKE + b"(tR0",
    _CLASS + b")\x81",
    _CLASS + b")}\x92",
    _CLASS + b")\x81}b",
    f"(i{__name__}\nstrike\n".encode(),
    b"(" + _STRIKE + b"o",
    f"\x8c\x0f{__name__[:15]:15}\x8c\x06strike\x93)R".encode(),
    _STRIKE,
    b"cbuiltins\neval\n",
    b"cbuiltins\ngetattr\n",
    b"\x82\x01",  # EXT1
    b"Pname\n",
    b"Q",
    b"R",
    b"\x81",
    b"b",
    b"0",
    b"1",
    b"2",
    b"(",
    b"u",
    b"e",
    b"t",
    b"d",
    b"\x90",
    b"\x97",  # NEXT_BUFFER
    b"(" * 5000,
    b"]" * 3000 + b"a" * 2999,
    b"2\x86" * 40,  # 2 ** 40 values, if they are walked
    b"r\xff\xff\xff\x7f",  # a place of the memo
    b"j\xff\xff\xff\x7f",
    b"\x8e" + b"\xff" * 7 + b"\x7f",  # BINBYTES8 of so many bytes
    b"\x96" + b"\xff" * 7 + b"\x7f",  # BYTEARRAY8
    b"\x95" + b"\xff" * 7 + b"\x7f",  # FRAME
    b"\x8b\xff\xff\xff\x7f",  # LONG4
    b"I" + b"9" * 5000 + b"\n",
    b"L" + b"9" * 5000 + b"L\n",
    b"F1e999\n",
    b"N",
    b"}",
    b"]",
    b"K\xff",
)


def damaged_pickle(content: bytes, rng: random.Random) -> bytes:
    """The first pickle of a file with some of its operations changed; it still consists of operations."""
    stream = io.BytesIO(content)
    starts = [place for _, _, place in pickletools.genops(stream) if place is not None]
    ends = [*starts[1:], stream.tell()]
    pieces = [content[a:b] for a, b in zip(starts, ends, strict=True) if content[a] != pickle.FRAME[0]]
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at, other = rng.randrange(len(pieces)), rng.randrange(len(pieces))
        kind = rng.randrange(6)
        if kind == 0:
            pieces[at] = b""
        elif kind == 1:
            pieces[at] *= rng.choice((2, 3, 50))
        elif kind == 2:
            pieces[at], pieces[other] = pieces[other], pieces[at]
        elif kind == 3:
            pieces[at] = pieces[other]
        else:
            pieces.insert(at, rng.choice(_HOSTILE))
    return b"".join(pieces) + content[stream.tell() :]
