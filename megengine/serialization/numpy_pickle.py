"""Pickles of plain values and NumPy arrays, those of Python 2 included, read without running them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from megengine.core.errors import FileFormatError
from megengine.serialization.arrays import ARRAY_NAMES, ARRAYS
from megengine.serialization.pickles import Builder, Thaw, read_records


def read_numpy_pickle(path: str | os.PathLike[str], extra: Mapping[str, Builder] | None = None) -> Any:
    """Containers, text, numbers and arrays of a pickle. `extra` adds builders by global name.

    Raises FileFormatError for anything else; text of Python 2 is read as latin-1.
    """
    from pathlib import Path  # takes long to import

    table = ARRAYS if extra is None else {**ARRAYS, **extra}
    with Path(path).open("rb") as file:
        try:
            return Thaw(table, names=ARRAY_NAMES)(read_records(file))
        except FileFormatError as exc:
            exc.add_note(f"while reading {path}")
            raise
