"""Small pictures of the report: histograms of both networks, ranges by channel, inputs with predictions."""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from megengine.cli.images import Recipe

WIDTH, HEIGHT = 132, 26
SIDE = 96  # of a picture, in pixels
Row = Mapping[str, Any]


def both_histograms(counts: Row | None, representable: Sequence[float]) -> dict[str, Any] | None:
    """Bars of the float values, a line of the integer ones (roots of the counts), and the ends of the integers."""
    if not counts or not sum(counts["float"]):
        return None
    bars, line = (np.sqrt(np.asarray(counts[kind], np.float64)) for kind in ("float", "integer"))
    low, high, tall = counts["low"], counts["high"], max(bars.max(), line.max())
    step = WIDTH / len(bars)
    shapes = [
        {"x": round(i * step, 1), "y": round(HEIGHT - h, 1), "w": round(step * 0.9, 1), "h": round(float(h), 1)}
        for i, h in enumerate(bars / tall * HEIGHT)
        if h > 0
    ]
    tops = [(round((i + 0.5) * step, 1), round(HEIGHT - float(h), 1)) for i, h in enumerate(line / tall * HEIGHT)]
    marks = [round((end - low) / (high - low) * WIDTH, 1) for end in representable if low <= end <= high]
    points = " ".join(f"{x},{y}" for x, y in tops)
    return {"bars": shapes, "line": points, "marks": marks, "width": WIDTH, "height": HEIGHT, "low": low, "high": high}


def channel_ranges(low: Sequence[float], high: Sequence[float]) -> dict[str, Any] | None:
    """A line for each output channel from its smallest to its largest weight; many channels share a line."""
    if not low:
        return None
    count = min(len(low), WIDTH // 2)
    places = np.arange(len(low)) * count // len(low)
    lows, highs = np.zeros(count), np.zeros(count)
    np.minimum.at(lows, places, np.asarray(low))
    np.maximum.at(highs, places, np.asarray(high))
    bottom, top = lows.min(), highs.max()
    span = (top - bottom) or 1.0
    step = WIDTH / count
    lines = [
        {
            "x": round((i + 0.5) * step, 1),
            "a": round((top - b) / span * HEIGHT, 1),
            "b": round((top - a) / span * HEIGHT, 1),
        }
        for i, (a, b) in enumerate(zip(lows, highs, strict=True))
    ]
    zero = round(float(top / span * HEIGHT), 1)
    return {"lines": lines, "zero": zero, "width": WIDTH, "height": HEIGHT, "stroke": round(step * 0.7, 1)}


def picture_of(array: np.ndarray, how: Recipe | None) -> str:
    """A network's input of one picture as the address of a PNG that holds it; "" for what is no picture."""
    if array.ndim != 4 or not {array.shape[1], array.shape[3]} & {1, 3}:
        return ""
    last = array.shape[3] in (1, 3) if how is None else how.layout == "NHWC"
    x = array[0] if last else array[0].transpose(1, 2, 0)
    if how is None:
        x = (x - x.min()) / max(float(np.ptp(x)), 1e-12) * 255
    else:
        x = x * np.asarray(how.std, np.float32) + np.asarray(how.mean, np.float32)
        x = x[..., ::-1] if how.colour == "BGR" else x
    pixels = np.clip(np.rint(x), 0, 255).astype(np.uint8)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels))
    picture.thumbnail((SIDE, SIDE))
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def one_by_one(
    batches: Sequence[Sequence[np.ndarray]], before: Sequence[np.ndarray], after: Sequence[np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(sample, its result before, after) where a network of one input gives a row of classes for each sample."""
    for batch, a, b in zip(batches, before, after, strict=True):
        if len(batch) == 1 and a.ndim == 2 and batch[0].shape[:1] == a.shape[:1] and a.shape[1]:
            yield from ((batch[0][i : i + 1], a[i], b[i]) for i in range(len(a)))


def predictions(
    samples: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], how: Recipe | None, most: int = 12
) -> list[dict[str, Any]]:
    """Pictures with the first class before and after quantization, those that differ first."""
    rows = []
    for number, (x, a, b) in enumerate(samples, 1):
        address = picture_of(x, how)
        if address:
            first, second = int(a.argmax()), int(b.argmax())
            texts = (f"{first} ({a[first]:.3g})", f"{second} ({b[second]:.3g})")
            rows.append(
                {"src": address, "number": number, "before": texts[0], "after": texts[1], "same": first == second}
            )
    return sorted(rows, key=lambda row: row["same"])[:most]
