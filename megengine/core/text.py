"""Text for terminals, pages and logs: names from files may contain control characters."""

from __future__ import annotations

import math

FEW = 100  # of fewer things a percentage looks more certain than it is


def printable(text: str, *, keep: str = "\n\t", mark: str = "") -> str:
    r"""The text with `\x1b` and the like for each character that is not visible: control, bidi, zero width, halves.

    Line ends and tabs stay, or what `keep` holds; with a `mark`, that stands instead of the escapes.
    """
    if text.isprintable():
        return text
    hidden = {c for c in text if not c.isprintable() and c not in keep}
    return text.translate({ord(c): mark or c.encode("unicode_escape").decode("ascii") for c in hidden})


def one_line(text: str) -> str:
    """`printable` for a name: line ends are escaped too, so that a name cannot pass for several lines."""
    return printable(text, keep="\t")


def plural(word: str) -> str:
    """`axes` for `axis`: the word for several."""
    for ending, several in (("is", "es"), ("ex", "ices"), ("ch", "ches"), ("ss", "sses"), ("x", "xes")):
        if word.endswith(ending):
            return word.removesuffix(ending) + several
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"


def in_bytes(count: float) -> str:
    """A size with its unit and three digits: 512 B, 21.8 kB, 1.26 MB."""
    power = 0 if count < 1000 else min(int(math.log10(count * 1.0005)) // 3, 3)
    number = count / 1000**power
    digits = 0 if power == 0 or number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f} {('B', 'kB', 'MB', 'GB')[power]}"


def counted(count: float, word: str, spec: str = "") -> str:
    """1 layer, 2 layers: a number, formatted by `spec`, and the word in singular or plural."""
    return f"{count:{spec}} {word if count == 1 else plural(word)}"


def share_of(share: float, count: int) -> str:
    """A part of so many things: `15 of 16` of few, `93.75 %` of a hundred or more, or of a number that is not known."""
    return f"{round(share * count)} of {count}" if 0 < count < FEW else f"{100 * share:.4g} %"
