"""HTML of values for notebooks; names from files are escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from megengine.core.text import printable

_CELL = "padding:2px 8px;white-space:nowrap;font-variant-numeric:tabular-nums;text-align:"


def html_text(text: str, title: str = "") -> str:
    """Lines of text as they stand, below a title."""
    return f'{_head(title)}<pre style="margin:0;line-height:1.3">{_escaped(text)}</pre>'


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: int, title: str = "") -> str:
    """A table of texts, the last `numbers` columns of which are numbers, below a title; it scrolls."""
    sides = ["left"] * (len(headings) - numbers) + ["right"] * numbers
    lines = [_row("th", headings, sides), *(_row("td", row, sides) for row in rows)]
    return f'{_head(title)}<div style="overflow:auto;max-height:32em"><table>{"".join(lines)}</table></div>'


def html_picture(svg: str, title: str = "") -> str:
    """An SVG element below a title; it scrolls where it is larger than the page."""
    return f'{_head(title)}<div style="overflow:auto;max-height:40em">{svg}</div>'


def _head(title: str) -> str:
    return f"<div><b>{_escaped(title)}</b></div>" if title else ""


def _row(tag: str, cells: Sequence[str], sides: Sequence[str]) -> str:
    texts = (f'<{tag} style="{_CELL}{s}">{_escaped(c)}</{tag}>' for s, c in zip(sides, cells, strict=True))
    return f"<tr>{''.join(texts)}</tr>"


def _escaped(text: str) -> str:
    return escape(printable(text, keep="\n", mark="\ufffd"))
