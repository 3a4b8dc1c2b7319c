"""What products by tensor cores need: tiles and their shared memory, aligned operands, and the setting for TF32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.kernels.cuda.settings import switch

OLDEST = 80  # compute capability times ten of the GPUs with these instructions
MULTIPROCESSORS = 132  # of the GPUs that sizes of tiles are chosen for
_BYTES = 16  # that are copied at once
_STAGES = 4
_SIZES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
_LARGE = 4 * MULTIPROCESSORS  # tiles of 128 x 128 from which larger ones keep all multiprocessors busy


class Precision:
    """Settings of the process. `tf32`: products of float32 may read 10 bits behind the point, with sums in float32."""

    tf32 = switch("MEGENGINE_CUDA_TF32")


def on_tensor_cores(dtype: np.dtype, architecture: int) -> bool:
    """Whether products of a dtype go to tensor cores."""
    half = dtype in (np.float16, bfloat16)
    return architecture >= OLDEST and (half or (dtype == np.float32 and Precision.tf32))


def wide(dtype: np.dtype) -> int:
    """Elements that are read at once."""
    return _BYTES // dtype.itemsize


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and columns of sums that a block makes."""

    rows: int
    columns: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 if self.rows == self.columns == 64 else 256

    def blocks(self, rows: int, columns: int) -> int:
        """Blocks for so many sums."""
        return -(-rows // self.rows) * -(-columns // self.columns)

    def shared(self, dtype: np.dtype, *, left_places: bool, right_places: bool) -> int:
        """Bytes of shared memory: the stages of both sides, or the results at the end, whichever is more."""
        run = wide(dtype)

        def room(lines: int, places: bool) -> int:
            row, rows = (4 * run, lines) if places else (lines, 4 * run)
            return (row + run) * rows

        stage = room(self.rows, left_places) + room(self.columns, right_places)
        return max(_STAGES * stage, self.rows * (self.columns + run)) * dtype.itemsize

    @property
    def macros(self) -> dict[str, int]:
        """The macros of tensor_tiles.cuh."""
        return {"ROWS": self.rows, "COLUMNS": self.columns, "STAGES": _STAGES}


TILES = tuple(Tile(*size) for size in _SIZES)


def tile_for(rows: int, columns: int, more: int, dtype: np.dtype) -> Tile:
    """The tile for `more` products: wide enough to read little, small enough that all multiprocessors have one."""
    if dtype.itemsize == 2 and Tile(128, 128).blocks(rows, columns) * more >= _LARGE and min(rows, columns) >= 128:
        return Tile(256, 128) if (rows >= 256 and rows >= columns) or columns < 256 else Tile(128, 256)
    if min(rows, columns) > 64 and Tile(128, 128).blocks(rows, columns) * more >= MULTIPROCESSORS // 2:
        return Tile(128, 128)
    if dtype.itemsize == 2 and Tile(128, 64).blocks(rows, columns) * more >= MULTIPROCESSORS:
        if columns <= 64 < rows:
            return Tile(128, 64)
        if rows <= 64 < columns:
            return Tile(64, 128)
    return Tile(64, 64)
