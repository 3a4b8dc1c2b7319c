"""Errors of the package.

Each derives from `MegEngineError` and from the built-in type that users of NumPy or of MegEngine catch. A message says
which op, node or module path, which argument, what was expected, what was got, and what to do.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from pickle import UnpicklingError

from megengine.core.text import counted, one_line, printable


class MegEngineError(Exception):
    """Base of every error raised on purpose by this package.

    Messages may quote names from files: characters that command a terminal are shown as escapes.
    """

    def __str__(self) -> str:
        return printable(super().__str__())

    def add_note(self, note: str, /) -> None:
        """As of any error: a line that tracebacks print below the message."""
        super().add_note(one_line(note))


class RefusedError(MegEngineError, RuntimeError, AssertionError):
    """A call cannot be carried out with these arguments.

    MegEngine refuses such calls by RuntimeError where its engine checks and by AssertionError where its Python code
    does; what users wrote to catch either catches this.
    """


class ShapeError(RefusedError, ValueError):
    """Shapes do not fit together."""


class DTypeError(RefusedError, TypeError, ValueError):
    """A dtype is unknown or not accepted here, or values do not make an array of numbers."""


class DeviceError(RefusedError, ValueError):
    """A device is missing, or tensors live on different devices."""


class OptionError(RefusedError, ValueError):
    """An option or argument value is not accepted."""


class ArgumentError(OptionError, TypeError):
    """An argument is of a kind that the function cannot use."""


class UnsupportedError(OptionError, NotImplementedError):
    """A value that MegEngine or the base class knows is not supported here."""


class DivisionByZeroError(OptionError, ZeroDivisionError):
    """Integers are divided by zero, which has no result."""


class MissingFileError(MegEngineError, FileNotFoundError):
    """A file, or the folder to write it to, does not exist."""


class WriteError(MegEngineError, OSError):
    """A file cannot be written: no space is left, the folder takes no file. `errno` is the system's number."""

    def __init__(self, text: str, cause: OSError | None = None) -> None:
        super().__init__(text)
        if cause is not None:
            self.errno, self.strerror = cause.errno, cause.strerror

    def __str__(self) -> str:
        return str(self.args[0])


class MissingMethodError(MegEngineError, NotImplementedError, TypeError):
    """A subclass lacks a method that its base needs, or a method of old versions is called."""


class MissingNameError(MegEngineError, AttributeError):
    """A name that does not exist. The nearest of `known()` is searched when the message is read: most are never."""

    def __init__(self, text: str, wanted: str = "", known: Callable[[], Iterable[str]] = tuple) -> None:
        super().__init__(text)
        self._wanted, self._known = wanted, known

    def __str__(self) -> str:
        return super().__str__() + (nearest(self._wanted, self._known()) if self._wanted else "")


class MissingImportError(MegEngineError, ImportError):
    """A name that a module does not have is imported from it."""


class MissingModuleError(MissingImportError, ModuleNotFoundError):
    """A module of MegEngine that is not here is imported."""


class NotEnoughMemoryError(MegEngineError, MemoryError):
    """A result would need more memory than there is."""


class StateDictError(OptionError, KeyError):
    """A state dict lacks entries, or has entries that nobody wants."""

    def __str__(self) -> str:
        return printable(Exception.__str__(self))  # KeyError would quote the message


class IndexOutOfRangeError(RefusedError, IndexError, ValueError):
    """An index or axis lies outside its range."""


class AxisError(IndexOutOfRangeError):
    """A tensor has no such axis."""


class GradientError(MegEngineError, RuntimeError):
    """A gradient was asked for where none exists."""


class GraphError(RefusedError):
    """A graph is malformed, or an edit is impossible."""


class PatternError(GraphError, AttributeError):
    """A pattern of this kind has no such condition."""


class FixedAttributeError(GraphError, AttributeError):
    """An attribute of a graph, expression or node that only a method changes was set."""


class NameInUseError(GraphError):
    """A name already belongs to another node."""


class FileFormatError(MegEngineError, ValueError, UnpicklingError):
    """A file is truncated, hostile, or not of the expected format."""


class QuantizationError(RefusedError, ValueError):
    """A network cannot be quantized as asked."""


class UnmappedLayerError(QuantizationError, KeyError):
    """A layer computes otherwise than the one it derives from, and its own quantized form is not known."""

    def __str__(self) -> str:
        return printable(Exception.__str__(self))  # KeyError would quote the message


class CalibrationError(QuantizationError):
    """Calibration data is missing or unusable."""


_MAX_NAME, _MOST_ENTRIES = 100, 2000


def nearest(name: str, candidates: Iterable[str]) -> str:
    """A hint to append to a message: "; did you mean 'x'?" for the closest candidate, else an empty string.

    A name of any other type than str has none.
    """
    if not isinstance(name, str) or len(name) > _MAX_NAME:  # the search takes quadratic time
        return ""
    close = difflib.get_close_matches(name, list(candidates), n=3, cutoff=0.6)
    close.sort(key=lambda one: sorted(one) != sorted(name))  # the same letters in another order are nearer than others
    return f"; did you mean {close[0]!r}?" if close else ""


def nearest_file(path: str | os.PathLike[str], suffixes: Collection[str] = ()) -> str:
    """The hint of `nearest` for a path at which nothing is: what lies beside it, with one of these suffixes if given.

    Where a folder of the path is missing, it names that, and a folder beside it. Where a folder is, it says so.
    """
    if os.path.isdir(path):
        return "; a folder is there, expected a file"
    wanted, parent = os.fspath(path), os.path.dirname(path)
    while parent and not os.path.exists(parent):
        wanted, parent = parent, os.path.dirname(parent)
    inside = wanted != os.fspath(path)  # of a folder that is not there
    try:
        with os.scandir(parent or ".") as entries:
            found = [one.name for one in islice(entries, _MOST_ENTRIES) if not inside or one.is_dir()]
    except OSError:
        found = []
    kinds = () if inside else suffixes
    hint = nearest(os.path.basename(wanted), [n for n in found if not kinds or os.path.splitext(n)[1].lower() in kinds])
    return f"; there is no folder {wanted!r}{hint}" if inside else hint


def listed(names: Iterable[str], most: int = 5) -> str:
    """The first names, separated by commas, and how many more there are."""
    names = list(names)
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


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
        return f"an integer of {counted(value.bit_length(), 'bit')}"
    if value is None or isinstance(value, (int, float)):
        return repr(value)
    return f"a {type(value).__name__}"
