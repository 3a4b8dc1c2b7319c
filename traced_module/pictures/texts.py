"""Texts of names, which may come from files: without control characters, and cut to what there is room for."""

from __future__ import annotations

from megengine.core import text as text_module


def printable(text: str) -> str:
    """The text with a mark for every character that is neither visible nor a line end."""
    return text_module.printable(text, keep="\n", mark="\ufffd")


def shortened(text: str, limit: int = 34) -> str:
    """The text without control characters, cut to a length."""
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def fitted(text: str, limit: int) -> str:
    """What is called and its name, cut to a length: of the name the end, which tells names of a module apart."""
    called, gap, name = printable(text).partition("  ")
    room = max(limit - len(called) - 3, 6)
    return shortened(f"{called}{gap}{name if len(name) <= room + 1 else '…' + name[-room:]}", limit)
