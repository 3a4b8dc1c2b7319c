"""Errors of the package.

Each derives from `MegEngineError` and from the built-in type that users of NumPy or of MegEngine catch. A message says
which op, node or module path, which argument, what was expected, what was got, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MegEngineError(Exception):
    """Base of every error raised on purpose by this package."""


class ShapeError(MegEngineError, ValueError):
    """Shapes do not fit together."""


class DTypeError(MegEngineError, TypeError):
    """A dtype is unknown or not accepted here."""


class DeviceError(MegEngineError, RuntimeError):
    """A device is missing, or tensors live on different devices."""


class OptionError(MegEngineError, ValueError):
    """An option or argument value is not accepted."""


class ArgumentError(OptionError, TypeError):
    """An argument is of a kind that the function cannot use."""


class StateDictError(OptionError, KeyError):
    """A state dict lacks entries, or has entries that nobody wants."""

    __str__ = Exception.__str__  # KeyError would quote the message


class IndexOutOfRangeError(MegEngineError, IndexError):
    """An index or axis lies outside its range."""


class GradientError(MegEngineError, RuntimeError):
    """A gradient was asked for where none exists."""


class GraphError(MegEngineError, RuntimeError):
    """A graph is malformed, or an edit is impossible."""


class NameInUseError(GraphError, AssertionError):
    """A name already belongs to another node."""


class FileFormatError(MegEngineError, ValueError):
    """A file is truncated, hostile, or not of the expected format."""


class QuantizationError(MegEngineError, RuntimeError):
    """A network cannot be quantized as asked."""


class CalibrationError(QuantizationError):
    """Calibration data is missing or unusable."""


_MAX_NAME = 100


def nearest(name: str, candidates: Iterable[str]) -> str:
    """A hint to append to a message: "; did you mean 'x'?" for the closest candidate, else an empty string."""
    if len(name) > _MAX_NAME:  # the search takes quadratic time
        return ""
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def brief(value: object, size: int = 100) -> str:
    """Text of a value from a file for a message, in bounded time: long text is cut, nested values are named only."""
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        parts = [_plain(v, size) for v in value[:size]]
        text = ("(%s)" if isinstance(value, tuple) else "[%s]") % ", ".join(parts)
    else:
        text = _plain(value, size)
    return text if len(text) <= size else text[:size] + "..."


def _plain(value: object, size: int) -> str:
    if isinstance(value, (str, bytes)):
        return repr(value[:size])
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (int, float)):
        return repr(value)
    return f"a {type(value).__name__}"
