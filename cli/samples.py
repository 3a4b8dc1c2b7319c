"""The samples of a run: which calibrate, which are held out to score the result, and what they were.

Nothing here follows from the order of the data: samples are told apart by their digests.
"""

import base64
import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from megengine.cli.output import Output
from megengine.cli.readers import Batch, Reader
from megengine.core.errors import CalibrationError, listed
from megengine.core.text import counted
from megengine.quantization.ranges import Progress

EVERY = 10  # one of so many samples is held out
QUARTER, LEAST = 4, 8  # one of so many until as many score the result; with fewer samples none is held out
_SHORT = 4  # bytes of a digest that a record keeps, so that a sample which differs can be named
_LISTED = 4096  # samples; of more, a record keeps their common digest alone


@dataclass(frozen=True, slots=True)
class Index:
    """The digests of all samples in the order in which they were read, and the name of each place."""

    digests: tuple[bytes, ...]
    name: Callable[[int], str]

    @property
    def digest(self) -> str:
        """SHA-256 of all samples as the network gets them, in the order of their digests."""
        return hashlib.sha256(b"".join(sorted(self.digests))).hexdigest()

    @property
    def short(self) -> str:
        """The beginnings of the digests, sorted, in base64; "" for many samples."""
        few = self.digests if len(self.digests) <= _LISTED else ()
        return base64.b64encode(b"".join(sorted(one[:_SHORT] for one in few))).decode()

    def differing(self, short: str) -> str:
        """How the samples differ from those of another index, by its `short`, in words; "" if that does not tell."""
        try:
            before = base64.b64decode(short)
        except ValueError:
            before = b""
        if not before or len(self.digests) > _LISTED:
            return ""
        old = Counter(before[i : i + _SHORT] for i in range(0, len(before), _SHORT))
        new = Counter(one[:_SHORT] for one in self.digests)
        missing, left = [one.hex() for one in (old - new).elements()], new - old
        more = []
        for place, one in reversed([*enumerate(self.digests)]):  # of copies the last ones are new
            if left[one[:_SHORT]] > 0:
                left[one[:_SHORT]] -= 1
                more.insert(0, self.name(place))
        parts = [f"{listed(more)} {'is' if len(more) == 1 else 'are'} new or changed"] if more else []
        if missing:
            parts.append(
                f"{counted(len(missing), 'sample')} of the record {'is' if len(missing) == 1 else 'are'} missing "
                f"(digest {listed(missing)})"
            )
        return " and ".join(parts) or "the samples are the same, and what they are labelled with is not"


@dataclass(slots=True)
class Samples:
    """What calibrates: all samples of a reader but the ones held out; can be read more than once.

    `held_out_share` of the different samples are held out, at most `most`: those with the smallest digests, so that the
    order of the data makes no difference. Copies of them do not calibrate either. A pass before all others takes the
    digests and keeps those samples; `progress` is told about it.
    """

    reader: Reader
    most: int
    every: int = EVERY
    progress: Progress | None = None
    _index: Index | None = None
    _smallest: list[tuple[bytes, Batch]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Batch]:
        known, held, count = set(self.index.digests), self._held, 0
        for place, batch in enumerate(self.reader.canonical()):
            digest = digest_of(batch)
            if digest not in known:
                self._refuse(f"{self.index.name(place)} was another one in the first reading")
            count += 1
            if digest not in held:
                yield batch
        if count != len(self.index.digests):
            first = counted(len(self.index.digests), "sample")
            self._refuse(f"the first reading gave {first}, the next one {count}")

    def _refuse(self, what: str) -> None:
        raise CalibrationError(
            f"data {self.reader.name!r}: {what}, and it is read more than once; give the same samples each time, in "
            "any order (a function: a new iterable for each call, with a fixed seed)"
        )

    @property
    def index(self) -> Index:
        """The digests; read before all else."""
        if self._index is None:
            most, digests = self.most or EVERY, []
            kept: dict[bytes, Batch] = {}
            for batch in self.reader.canonical():
                digests.append(digest := digest_of(batch))
                if digest not in kept and (len(kept) < most or digest < max(kept)):
                    kept[digest] = tuple(np.array(array) for array in batch)
                    if len(kept) > most:
                        del kept[max(kept)]
                if self.progress is not None:
                    self.progress("read", len(digests), self.reader.count)
            self._smallest = sorted(kept.items())
            self._index = Index(tuple(digests), self.reader.named)
        return self._index

    @property
    def _held(self) -> set[bytes]:
        """The digests that are held out."""
        count = min(self.most, held_out_share(len(set(self.index.digests)), self.every))
        return {digest for digest, _ in self._smallest[:count]}

    def held_out(self) -> list[Batch]:
        """The samples that score the result, each once; some of calibration where none is held out."""
        held = self._held
        return [batch for digest, batch in self._smallest if not held or digest in held]

    @property
    def counts(self) -> dict[str, int]:
        """How many samples calibrate and how many are held out."""
        held = self._held
        return {"calibration": sum(one not in held for one in self.index.digests), "held out": len(held)}

    def scored_on(self) -> str:
        """Which samples score the result, in words."""
        held = self._held
        if not held:
            return "samples that calibrated it too: none is held out"
        first = {digest: place for place, digest in reversed([*enumerate(self.index.digests)])}
        names = [self.index.name(first[digest]) for digest in sorted(held)]
        return f"{counted(len(held), 'sample')} held out of calibration ({listed(names, 3)})"

    def warnings(self, *, scores: bool = True) -> list[str]:
        """What is suspicious about the data, and about the number of those that score the result, if they do."""
        different = len(set(self.index.digests))
        at_once = self.reader.at_once
        found = suspicious(len(self.index.digests), at_once, equal=different == 1)
        if found or not scores:
            return found
        enough, scored = min(self.every, QUARTER) * LEAST, len(self._held) or min(self.most or EVERY, different)
        limited = self.most < LEAST and different >= enough
        wanted = f"--held-out {LEAST}" if limited else counted(enough * at_once, "sample")
        return small_score(scored, wanted, at_once)


def held_out_share(count: int, every: int) -> int:
    """How many of so many different samples are held out: one of `every`, of few a quarter until eight score.

    Of fewer than eight no quarter is: what calibrates would miss it more than the score needs it.
    """
    return max(count // every, min(count // QUARTER, LEAST) if count >= LEAST else 0)


def held_out_of(digests: Sequence[bytes], every: int) -> list[bytes]:
    """The digests of the samples that are held out where nothing limits their number, smallest first."""
    different = set(digests)
    return heapq.nsmallest(held_out_share(len(different), every), different)


def suspicious(count: int, at_once: int = 1, *, equal: bool) -> list[str]:
    """Warnings about data of so many batches of `at_once` samples, which are all `equal` or not."""
    if count == 1:
        one = ["the data is one sample: its ranges say little about others; give a hundred or so"]
        return one if at_once == 1 else []
    return [f"all {batches_of(count, at_once)} of the data are equal; give different ones"] if count and equal else []


def small_score(scored: int, enough: str, at_once: int = 1) -> list[str]:
    """A warning where fewer than eight batches score the result; `enough` is what to give so that eight do."""
    if scored >= LEAST:
        return []
    what = batches_of(scored, at_once)
    return [f"{what} measured the score, so it says little about others; give {enough} or more"]


def batches_of(count: int, at_once: int) -> str:
    """So many samples in words, or batches of a network that takes several samples at once."""
    return counted(count, "sample") if at_once == 1 else f"{counted(count, 'batch')} of {counted(at_once, 'sample')}"


def tell_suspicious(out: Output, warnings: list[str]) -> None:
    """Print warnings about the data."""
    for warning in warnings:
        out.say(f"warning: {warning}", "yellow")


def digest_of(batch: Batch) -> bytes:
    """SHA-256 of a sample as the network gets it."""
    hashed = hashlib.sha256()
    for array in batch:
        hashed.update(f"{array.dtype} {array.shape};".encode())
        hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hashed.digest()
