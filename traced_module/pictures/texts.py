"""Texts of names, which may come from files: without control characters, and cut to a length."""

from __future__ import annotations

from collections.abc import Sequence

from megengine.core import text as text_module
from megengine.core.sizes import is_open


def printable(text: str) -> str:
    """The text with a mark for every character that is neither visible nor a line end."""
    return text_module.printable(text, keep="\n", mark="\ufffd")


def shortened(text: str, limit: int = 34) -> str:
    """The text without control characters, cut to a length."""
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shape_text(shape: Sequence[int | str]) -> str:
    """A shape as 1x3x64x64; with open sizes, or their names, as batch x 3 x 64 x 64."""
    sizes = [f"({n})" if " " in n and n[0] + n[-1] != "()" else n for n in map(str, shape)]
    return (" x " if is_open(shape) or str in map(type, shape) else "x").join(sizes) or "scalar"


def fitted(text: str, limit: int) -> str:
    """A callee and a name, cut to a length; of the name the end is kept, in which names of one module differ."""
    callee, gap, name = printable(text).partition("  ")
    room = max(limit - len(callee) - 3, 6)
    return shortened(f"{callee}{gap}{name if len(name) <= room + 1 else '…' + name[-room:]}", limit)
