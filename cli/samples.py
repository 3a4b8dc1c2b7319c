"""The samples of a run: which calibrate, which are held out to score the result, and what they were."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from megengine.cli.output import Output
from megengine.cli.readers import Batch, Reader
from megengine.core.text import counted

EVERY = 10  # one of so many samples is held out


@dataclass(slots=True)
class Samples:
    """What calibrates: all samples of a reader but the ones held out; can be read more than once.

    The tenth, twentieth, ... sample is held out, or with another `every` the one at its multiples, at most `most` of
    them. The first pass over the data counts them and takes their digests.
    """

    reader: Reader
    most: int
    every: int = EVERY
    digests: list[bytes] = field(default_factory=list)

    def __iter__(self) -> Iterator[Batch]:
        first = not self.digests
        seen = []
        for number, batch in enumerate(self.reader):
            if first:
                seen.append(_digest(batch))
            if not self._held(number):
                yield batch
        if first:
            self.digests = seen

    def _held(self, number: int) -> bool:
        return number % self.every == self.every - 1 and number // self.every < self.most

    def held_out(self) -> list[Batch]:
        """The samples that score the result; the first ones of calibration where none is held out."""
        first = islice(self.reader, self.every * self.most)
        chosen = [batch for number, batch in enumerate(first) if self._held(number)]
        return chosen or list(islice(self.reader, self.most or EVERY))

    def _read(self) -> None:
        if not self.digests:
            for _ in self:
                pass

    @property
    def counts(self) -> dict[str, int]:
        """How many samples calibrate and how many are held out."""
        self._read()
        held = sum(map(self._held, range(len(self.digests))))
        return {"calibration": len(self.digests) - held, "held out": held}

    @property
    def digest(self) -> str:
        """SHA-256 of all samples as the network gets them, in their order."""
        self._read()
        return hashlib.sha256(b"".join(self.digests)).hexdigest()

    def scored_on(self) -> str:
        """Which samples score the result, in words."""
        held = self.counts["held out"]
        if not held:
            return "samples that calibrated it too: none is held out"
        numbers = [str(self.every * (i + 1)) for i in range(held)]
        which = ", ".join(numbers if held < 4 else [*numbers[:2], "...", numbers[-1]])
        return f"{counted(held, 'sample')} held out of calibration (number {which})"

    def warnings(self) -> list[str]:
        """What is suspicious about the data."""
        self._read()
        return suspicious(len(self.digests), equal=len(set(self.digests)) == 1)


def suspicious(count: int, *, equal: bool) -> list[str]:
    """Warnings about data of so many samples, which are all `equal` or not."""
    if count == 1:
        return ["the data is one sample: its ranges say little about others; give a hundred or so"]
    return [f"all {counted(count, 'sample')} of the data are equal; give different ones"] if count and equal else []


def tell_suspicious(out: Output, warnings: list[str]) -> None:
    """Print warnings about the data."""
    for warning in warnings:
        out.say(f"warning: {warning}", "yellow")


def _digest(batch: Batch) -> bytes:
    hashed = hashlib.sha256()
    for array in batch:
        hashed.update(f"{array.dtype} {array.shape};".encode())
        hashed.update(np.ascontiguousarray(array).data)
    return hashed.digest()
