"""Moves, indexing and sorting on a GPU: time, bytes a second beside those of a plain copy, and torch's time.

Times are medians of rounds by CUDA events, calls one after the other; a call computes its results anew. The bytes are
those of operands and results, so that a row at the speed of the copy cannot be faster.
Run: python bench/gpu_moves.py [WORD ...] [--rounds 10]; rows whose name holds one of the words
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Row = tuple[str, str, tuple[np.ndarray, ...], dict[str, Any], Callable[..., Any]]
ALL = (None, None, None)
INNER = 10  # calls between two events


def rows(small: bool) -> Iterator[Row]:
    """(name, op, operands, attributes, the same by torch); small arrays only show that all of it runs."""
    size, lines = ((2, 16, 8, 8), 32) if small else ((32, 256, 56, 56), 8192)
    picture = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    matrix = picture.reshape(lines, -1)
    yield from _layouts(picture, matrix)
    yield from _borders(picture, matrix)
    yield from _places(matrix, *((24, 64, 1 << 9) if small else (768, 65536, 1 << 22)))


def _layouts(picture: np.ndarray, matrix: np.ndarray) -> Iterator[Row]:
    """Copies, transposes, and arrays that are joined or cut."""
    import torch

    size, flat, length = picture.shape, picture.reshape(-1), matrix.shape[1]
    kinds = {"float32": np.float32, "float16": np.float16, "int8": np.int8}
    yield "copy", "slice", (flat,), {"starts": (0,), "stops": (None,), "steps": (1,)}, lambda x: x.clone()
    for name, dtype in kinds.items():
        x = picture.astype(dtype)
        last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        for what, value, perm in (("to last", x, (0, 2, 3, 1)), ("to rows", last, (0, 3, 1, 2))):
            yield (
                f"transpose {what} {name}",
                "transpose",
                (value,),
                {"perm": perm},
                lambda x, p=perm: x.permute(p).contiguous(),
            )
    yield "transpose matrix", "transpose", (matrix,), {"perm": (1, 0)}, lambda x: x.t().contiguous()
    heads = picture.reshape(size[0], -1, size[1] // 4, 8)
    yield "transpose heads", "transpose", (heads,), {"perm": (0, 2, 1, 3)}, lambda x: x.permute(0, 2, 1, 3).contiguous()
    yield "concat channels", "concat", (picture, picture), {"axis": 1}, lambda x, y: torch.cat([x, y], 1)
    yield (
        "concat odd rows",
        "concat",
        (matrix[:, : length // 3].copy(), matrix[:, :7].copy()),
        {"axis": 1},
        lambda x, y: torch.cat([x, y], 1),
    )
    yield (
        "split channels",
        "split",
        (picture,),
        {"sections": (size[1] // 4,) * 4, "axis": 1},
        lambda x: [p.contiguous() for p in x.split(size[1] // 4, 1)],
    )


def _borders(picture: np.ndarray, matrix: np.ndarray) -> Iterator[Row]:
    """Padding, inner parts, repeated rows and larger pictures."""
    import torch

    side, lines = picture.shape[2], len(matrix)
    widths = ((0, 0), (0, 0), (1, 1), (1, 1))
    yield (
        "pad",
        "pad",
        (picture,),
        {"widths": widths, "mode": "constant", "value": 0.0},
        lambda x: torch.nn.functional.pad(x, (1, 1, 1, 1)),
    )
    cut = {"starts": (0, 0, 1, 1), "stops": (None, None, side - 1, side - 1), "steps": (1, 1, 1, 1)}
    yield "slice inside", "slice", (picture,), cut, lambda x: x[:, :, 1 : side - 1, 1 : side - 1].contiguous()
    yield (
        "broadcast rows",
        "broadcast_to",
        (matrix[:1].copy(),),
        {"shape": matrix.shape},
        lambda x: x.expand(lines, -1).contiguous(),
    )
    yield (
        "resize twice",
        "resize",
        (picture[:8],),
        {"size": (2 * side,) * 2, "mode": "linear", "corners": False},
        lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear"),
    )


def _places(matrix: np.ndarray, width: int, count: int, long: int) -> Iterator[Row]:
    """Elements taken from and put to places, sorting and searching."""
    import torch

    rng, flat, (lines, length) = np.random.default_rng(1), matrix.reshape(-1), matrix.shape
    table, words = matrix[:, :width].copy(), rng.integers(0, lines, count).astype(np.int32)
    yield "embedding", "index", (table, words), {"pattern": ("i", ALL)}, lambda t, i: t[i]
    ct = rng.standard_normal((count, width)).astype(np.float32)
    backward = {"shape": table.shape, "pattern": ("i", ALL)}
    yield (
        "embedding gradient",
        "index_backward",
        (ct, words),
        backward,
        lambda c, i: torch.zeros_like(c[:lines]).index_add_(0, i, c),
    )
    along = rng.integers(0, length, (lines, length // 6)).astype(np.int64)
    yield "gather", "gather_elements", (matrix, along), {"axis": 1}, lambda x, i: x.gather(1, i)
    yield (
        "topk short",
        "topk",
        (matrix[:, : min(length, 1000)].copy(),),
        {"k": 5, "descending": True},
        lambda x: x.topk(5),
    )
    yield (
        "sort long",
        "topk",
        (flat[None, :long].copy(),),
        {"k": long, "descending": False},
        lambda x: x.sort(stable=True),
    )
    yield "cumsum rows", "cumsum", (matrix,), {"axis": 1, "reverse": False}, lambda x: x.cumsum(1)
    yield "nonzero", "nonzero", (flat > 1,), {}, lambda x: x.nonzero()


def median_ms(runtime: Any, call: Callable[[], object], rounds: int) -> float:
    """Milliseconds of a call."""

    def several() -> None:
        for _ in range(INNER):
            call()

    several()
    return statistics.median(runtime.milliseconds(several) for _ in range(rounds)) / INNER


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    from megengine import Tensor
    from megengine.dispatch import apply
    from megengine.kernels import cuda
    from megengine.kernels.cuda.runtime import runtime_of

    if (reason := cuda.unavailable_reason()) is not None:
        print(f"nothing is measured: {reason}")
        return 0
    import torch

    runtime = runtime_of("gpu0")
    print(f"{'':26}{'ms':>9}{'torch ms':>10}{'ratio':>7}{'GB/s':>7}")
    for name, op, operands, attrs, by_torch in rows(options.small):
        if options.words and not any(word in name for word in options.words):
            continue
        given = [Tensor._wrap(x, x.dtype, "gpu0") for x in operands]
        theirs = [torch.from_numpy(x).cuda() for x in operands]
        out = apply(op, *given, **attrs)
        results = out if isinstance(out, tuple) else (out,)
        moved = sum(x.nbytes for x in operands) + sum(y.numpy().nbytes for y in results)
        del out, results
        ours = median_ms(runtime, lambda op=op, given=given, attrs=attrs: apply(op, *given, **attrs), options.rounds)
        other = median_ms(runtime, lambda call=by_torch, theirs=theirs: call(*theirs), options.rounds)
        print(f"{name:26}{ours:9.3f}{other:10.3f}{ours / other:7.2f}{moved / ours / 1e6:7.0f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
