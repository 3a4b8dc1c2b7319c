"""Calls and their arguments in the form that errors show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_LONGEST = 60


def shown(value: Any) -> str:
    """An argument in words, without reading the values of tensors."""
    if (in_words := getattr(type(value), "_in_words", None)) is not None:
        return in_words(value)
    if isinstance(value, np.ndarray):
        return f"array {value.dtype}{value.shape}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        text = repr(value) if not isinstance(value, int) or value.bit_length() < 4 * _LONGEST else "a huge integer"
        return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    if isinstance(value, (tuple, list)) and all(v is None or isinstance(v, (bool, int, float)) for v in value[:9]):
        parts = [*map(shown, value[:8]), *(["..."] if len(value) > 8 else [])]
        return f"[{', '.join(parts)}]" if isinstance(value, list) else f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return type(value).__name__


def called(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """A call as the user wrote it, with specs in place of tensors."""
    return f"{name}({', '.join([*map(shown, args), *(f'{k}={shown(v)}' for k, v in kwargs.items())])})"
