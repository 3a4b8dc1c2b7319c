"""Tables of text for a terminal: no wider than it, and without control characters."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from megengine.traced_module.pictures.texts import printable, shortened

LONGEST_CELL = 48
_LEAST = 6  # characters that a column of text keeps
_GAP = "  "


def terminal_width() -> int | None:
    """Characters in a line of the terminal that output goes to; None if it goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def clean(text: str) -> str:
    """One line without control characters: names may come from files."""
    return printable(text).replace("\n", "\ufffd")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: int, width: int | None = None) -> list[str]:
    """Lines of a table: headings, a rule, the rows.

    Args:
        headings: one for each column.
        rows: cells; they are cleaned, and cut to 48 characters.
        numbers: how many of the last columns are aligned right and never cut.
        width: characters in a line at most; the widest columns of text are cut to fit. None for no limit.
    """
    texts = len(headings) - numbers
    cells = [[shortened(clean(c), LONGEST_CELL) if i < texts else c for i, c in enumerate(row)] for row in rows]
    cells.insert(0, list(headings))
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    if width is not None:
        while sum(widths) + len(_GAP) * (len(widths) - 1) > width:
            widest = max(range(texts), key=widths.__getitem__)
            if widths[widest] <= _LEAST:
                break
            widths[widest] -= 1
    lines = [
        _GAP.join(
            shortened(cell, size).ljust(size) if i < texts else cell.rjust(size)
            for i, (cell, size) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    lines.insert(1, _GAP.join("-" * size for size in widths))
    return lines
