"""What calibration saw of a network: merged, saved and loaded. A file is a zip of JSON and arrays; no code in it."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.errors import CalibrationError, FileFormatError, brief, nearest_file
from megengine.core.text import counted
from megengine.dispatch.refusal import kinds_named
from megengine.quantization.ranges.averages import KEPT, PARTS
from megengine.quantization.ranges.statistics import Histogram, TensorStatistics
from megengine.traced_module.formats.archives import read_archive, write_archive

_FORMAT, _VERSION, _TEXT = "megengine statistics", 1, "statistics.json"
_LARGEST = 1 << 62  # of counts
_MOST_BINS = 1 << 20
_REACH = 1 << 32  # of numbers of bins


@dataclass(slots=True)
class Statistics:
    """Statistics of the edges of one network, and the digests of the samples that they are of.

    The same samples give equal files, in any order, batches and number of workers.

    Args:
        model: digest of the network.
        edges: statistics by edge.
        samples: digests of samples, with how often each was seen.
    """

    model: str
    edges: dict[str, TensorStatistics]
    samples: Counter[int] = field(default_factory=Counter)

    def of(self, model: str) -> dict[str, TensorStatistics]:
        """The edges, for the network of this digest. Raises CalibrationError for another one."""
        if model != self.model:
            raise CalibrationError(
                f"statistics: they are of another network or other weights (digest {self.model}; expected {model}); "
                "calibrate this network"
            )
        return self.edges

    def merge(self, other: Statistics) -> None:
        """Take what another worker saw. Raises CalibrationError for statistics of another network or other edges."""
        other.of(self.model)
        if other.edges.keys() != self.edges.keys():
            unequal = sorted(other.edges.keys() ^ self.edges.keys())
            raise CalibrationError(
                f"statistics: {counted(len(unequal), 'edge')} in one of them only, such as {unequal[0]!r}; "
                "calibrate with the same settings"
            )
        for name, one in self.edges.items():
            one.merge(other.edges[name])
        self.samples.update(other.samples)

    def save(self, path: str | Path) -> None:
        """Write a file, which replaces an old one when it is complete. Raises WriteError if it cannot be written."""
        edges, arrays = [], {"samples": np.array(sorted(self.samples.elements()), np.uint64)}
        for name, one in sorted(self.edges.items()):
            held = _arrays(one)
            arrays |= {f"{len(edges)}.{key}": array for key, array in held.items() if array is not None}
            edges.append({"name": name, **_numbers(one)})
        lines = ",\n".join(json.dumps(edge, allow_nan=False) for edge in edges)
        head = json.dumps({"format": _FORMAT, "version": _VERSION, "model": self.model})
        write_archive(Path(path), _TEXT, f'{head[:-1]},\n"edges": [\n{lines}\n]}}\n', arrays, zipfile.ZIP_DEFLATED)

    @classmethod
    @kinds_named
    def load(cls, path: str | Path) -> Statistics:
        """Read a file of `save`.

        Raises FileFormatError: no such file, damaged, of a later version, or no file of statistics.
        """
        try:
            with Path(path).open("rb") as file:
                described, arrays = read_archive(file, str(path), _TEXT)
        except FileNotFoundError:
            raise FileFormatError(f"{path}: no such file{nearest_file(path)}") from None
        except OSError as error:
            raise FileFormatError(f"{path}: cannot be read ({error.strerror or error})") from None
        try:
            return _statistics(described, arrays)
        except FileFormatError as error:
            raise FileFormatError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise FileFormatError(f"{path}: damaged statistics ({type(error).__name__}: {str(error)[:200]})") from error


def _numbers(one: TensorStatistics) -> dict[str, Any]:
    return {
        "channel_axis": one.channel_axis,
        "averaged": one.averaged,
        "bins": one.bins,
        "count": one.count,
        "ends": [one.minimum, one.maximum] if one.count else None,
        "exponent": one.histogram.exponent,
        "first": one.histogram.first,
        "means": one.means.count,
    }


def _arrays(one: TensorStatistics) -> dict[str, np.ndarray | None]:
    return {
        "counts": one.histogram.counts,
        "samples": one.samples.last(),
        "channel_minimum": one.channel_minimum,
        "channel_maximum": one.channel_maximum,
        "means": one.means.settled(),
    }


# ---------------------------------------------------------------- reading: a file may hold anything


def _statistics(described: Any, arrays: dict[str, np.ndarray]) -> Statistics:
    if not isinstance(described, dict) or described.get("format") != _FORMAT:
        raise FileFormatError("no file of calibration statistics; `calibrate` writes one")
    if described["version"] != _VERSION:
        raise FileFormatError(f"version is {brief(described['version'])}; this program reads version {_VERSION}")
    edges = {}
    for number, entry in enumerate(described["edges"]):
        name = entry["name"]
        if not isinstance(name, str) or name in edges:
            raise FileFormatError(f"edge {brief(name)}: expected a name of its own")
        held = {key: arrays.pop(f"{number}.{key}", None) for key in _arrays(TensorStatistics(""))}
        edges[name] = _edge(name, entry, held)
    seen = arrays.pop("samples")
    if arrays or seen.dtype != np.uint64 or seen.ndim != 1 or not isinstance(described["model"], str):
        raise FileFormatError(f"samples or arrays are damaged: {brief(sorted(arrays))}")
    return Statistics(described["model"], edges, Counter(seen.tolist()))


def _edge(name: str, entry: dict[str, Any], held: dict[str, np.ndarray | None]) -> TensorStatistics:
    def whole(key: str, lowest: int, highest: int) -> int:
        if type(entry[key]) is not int or not lowest <= entry[key] <= highest:
            raise FileFormatError(f"edge {brief(name)}: {key} is {brief(entry[key])}; expected {lowest} to {highest}")
        return entry[key]

    def array(key: str, dtype: Any, shape: tuple[int | None, ...]) -> np.ndarray:
        value = np.empty((0,) * 9) if held[key] is None else np.asarray(held[key])
        fits = value.dtype == dtype and value.ndim == len(shape)
        if not fits or any(n not in (None, m) for n, m in zip(shape, value.shape, strict=True)):
            raise FileFormatError(f"edge {brief(name)}: {key} is no array of {np.dtype(dtype)} and shape {shape}")
        if not np.isfinite(value).all():
            raise FileFormatError(f"edge {brief(name)}: {key} holds NaN or infinity")
        return value

    axis = None if entry["channel_axis"] is None else whole("channel_axis", 0, 63)
    one = TensorStatistics(name, axis, whole("bins", 1, _MOST_BINS), averaged=entry["averaged"] is True)
    one.count = whole("count", 0, _LARGEST)
    histogram = one.histogram
    histogram.exponent, histogram.first = whole("exponent", -200, 200), whole("first", -_REACH, _REACH)
    histogram.counts = array("counts", np.int64, (None,))
    total = sum(histogram.counts.tolist())
    if len(histogram.counts) > one.bins or histogram.counts.min(initial=0) < 0 or total != one.count:
        raise FileFormatError(f"edge {brief(name)}: its histogram counts {total} of {counted(one.count, 'value')}")
    if one.count:
        one.minimum, one.maximum = _ends(name, histogram, *entry["ends"])
    one.samples.kept = array("samples", np.float32, (None, 2))[-KEPT:]
    if held["channel_minimum"] is not None:
        one.channel_minimum = array("channel_minimum", np.float32, (None,))
        one.channel_maximum = array("channel_maximum", np.float32, one.channel_minimum.shape)
    one.means.count = whole("means", 0, _LARGEST)
    if one.means.count:
        one.means.parts = parts = array("means", np.int64, (PARTS, None))
        if parts[:-1].min(initial=0) < 0 or np.abs(parts).max(initial=0) > _REACH:
            raise FileFormatError(f"edge {brief(name)}: its means are damaged")
    return one


def _ends(name: str, histogram: Histogram, lo: Any, hi: Any) -> tuple[float, float]:
    edges = histogram.edges
    if not all(type(x) is float for x in (lo, hi)) or not edges[0] <= lo <= hi <= edges[-1]:
        raise FileFormatError(f"edge {brief(name)}: its ends are {brief([lo, hi])}; expected them in its histogram")
    return lo, hi
