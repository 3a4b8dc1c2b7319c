"""Texts of names, which may come from files: without control characters, and cut to a length."""

from __future__ import annotations

from collections.abc import Sequence

from megengine.core import text as text_module


def printable(text: str) -> str:
    """The text with a mark for every character that is neither visible nor a line end."""
    return text_module.printable(text, keep="\n", mark="\ufffd")


def shortened(text: str, limit: int = 34) -> str:
    """The text without control characters, cut to a length."""
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shape_text(shape: Sequence[int]) -> str:
    """A shape as 1x3x64x64."""
    return "x".join(map(str, shape)) or "scalar"


def fitted(text: str, limit: int) -> str:
    """A callee and a name, cut to a length; of the name the end is kept, in which names of one module differ."""
    callee, gap, name = printable(text).partition("  ")
    room = max(limit - len(callee) - 3, 6)
    return shortened(f"{callee}{gap}{name if len(name) <= room + 1 else '…' + name[-room:]}", limit)
