"""A difference as text, picture and page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from megengine.core.text import counted
from megengine.traced_module.comparing.changes import KINDS, Change, sentence
from megengine.traced_module.comparing.drawing import COLOURS, FAINT, drawn
from megengine.traced_module.comparing.matching import Matching
from megengine.traced_module.pictures.boxes import legend_svg, legend_width, svg
from megengine.traced_module.pictures.texts import printable

Matchings = Sequence[tuple[str, Matching]]  # (module path, the matched graphs)
_MARKS = {"added": "+", "removed": "-", "changed": "~", "rewired": "~", "renamed": "=", "moved": ">", "result": "."}
_FOLDED, _MOST = ("renamed", "moved", "result"), 12
EQUAL = "no differences"
_HEAD = 30  # pixels of a picture's headline
_EDGES = (("kept", FAINT, False), ("new", COLOURS["added"].stroke, False), ("gone", COLOURS["removed"].stroke, True))
_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em;color:#1c2330}"
    "pre{background:#f6f7f9;padding:1em;white-space:pre-wrap;line-height:1.5}svg{max-width:none}"
)


def counts(changes: Sequence[Change]) -> dict[str, int]:
    by_kind = Counter(change.kind for change in changes)
    return {kind: by_kind[kind] for kind in KINDS if by_kind[kind]}


def lines(changes: Sequence[Change]) -> Iterator[tuple[str, str]]:
    """(kind, line): a headline without a kind, then the changes by module."""
    if not changes:
        yield "", EQUAL
        return
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts(changes).items())
    yield "", f"{counted(len(changes), 'difference')}: {kinds}"
    by_module: dict[str, list[Change]] = {}
    for change in changes:
        by_module.setdefault(change.where, []).append(change)
    for where in by_module:
        yield "", ""
        yield "", _clean(where) or "top"
        count: Counter[str] = Counter()
        for change in by_module[where]:
            count[change.kind] += 1
            if change.kind not in _FOLDED or count[change.kind] <= _MOST:
                yield change.kind, f"  {_MARKS[change.kind]} {_clean(sentence(change))}"
        for kind in _FOLDED:
            if count[kind] > _MOST:
                yield kind, f"  {_MARKS[kind]} {count[kind] - _MOST} more of kind {kind!r}"


def _clean(text: str) -> str:
    """One line without control characters: names may come from files."""
    return printable(text.replace("\n", " "))


# ---------------------------------------------------------------- pictures


# (fill, stroke, kinds) of each look of boxes
_BOXES = [
    (look.fill, look.stroke, ", ".join(kind for kind, other in COLOURS.items() if other == look))
    for look in dict.fromkeys(COLOURS.values())
]


def to_svg(changes: Sequence[Change], matchings: Matchings) -> str:
    """See `GraphDiff.to_svg`. Graphs without a change of their own are shown only if no graph has one."""
    touched = {change.where for change in changes}
    with_changes = [pair for pair in matchings if pair[0] in touched] or (matchings[:1] if changes else [])
    parts, top, width = [], 0, 200
    for where, matching in with_changes:
        wide, high, inner = drawn(changes, where, matching)
        parts.append(
            f'<text x="14" y="{top + 20}" font-weight="600" fill="#1c2330">{escape(_clean(where) or "top")}</text>'
            f'<g transform="translate(0,{top + _HEAD})">\n{inner}\n</g>'
        )
        top, width = top + _HEAD + high, max(width, wide)
    if not parts:
        parts.append(f'<text x="14" y="20">{EQUAL}</text>')
        return svg(width, _HEAD, parts)
    parts.append(legend_svg(14, top + 4, _BOXES))
    for left, (meaning, colour, dashed) in enumerate(_EDGES):
        style = ' stroke-dasharray="4 3"' if dashed else ""
        parts.append(
            f'<path d="M{14 + 80 * left},{top + 34} h24" fill="none" stroke="{colour}" stroke-width="1.6"{style}/>'
            f'<text x="{44 + 80 * left}" y="{top + 38}" fill="#5b6576">{meaning}</text>'
        )
    return svg(max(width, legend_width(_BOXES) + 14, 330), top + 2 * _HEAD, parts)


def to_html(changes: Sequence[Change], matchings: Matchings) -> str:
    rows = []
    for kind, line in lines(changes):
        colour = COLOURS[kind].stroke if kind in COLOURS else ""
        text = escape(line)
        rows.append(f'<span style="color:{colour}">{text}</span>' if colour else f"<b>{text}</b>")
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>differences</title>',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{_STYLE}</style></head><body>',
            "<pre>" + "\n".join(rows) + "</pre>",
            to_svg(changes, matchings) if changes else "",
            "</body></html>",
        ]
    )
