"""Calibration and evaluation data for the command, streamed: a folder of pictures, .npy / .npz, module.py:function."""

import hashlib
import importlib.util
import math
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from megengine.cli.images import CHANNELS, PRESETS, SUFFIXES, Recipe, images_in, load, others_in
from megengine.core.dtype import converted, first_changed, storage_of
from megengine.core.errors import DTypeError, FileFormatError, OptionError, ShapeError, listed, nearest, nearest_file
from megengine.core.sizes import fits, is_open
from megengine.core.text import counted
from megengine.quantization.ranges import keys_of_inputs, samples_of, shape_remedy, values_in_order

Batch = tuple[np.ndarray, ...]
RAW, BYTE = 100, 255  # what recordings pass somewhere, and classes, counts and masks seldom do; the most in a byte
_ALWAYS_UNPACKED = 1 << 30  # bytes that a .npz file may unpack to, however small it is
_MOST_PACKED = 200  # times its size, for larger ones
_TO_ARRAYS = {  # what is to be done with files of other kinds
    ".py": "add the function that gives them, FILE:FUNCTION",
    ".csv": "numpy.save('data.npy', numpy.loadtxt('FILE', delimiter=',', ndmin=2)) writes its rows",
    ".pt": "numpy.save('data.npy', torch.load('FILE').numpy()) writes its tensor",
    ".pth": "numpy.save('data.npy', torch.load('FILE').numpy()) writes its tensor",
    ".safetensors": "numpy.savez('data.npz', **safetensors.numpy.load_file('FILE')) writes its arrays",
}


@dataclass(frozen=True, slots=True)
class Reader:
    """A data source that can be read more than once: `start` opens a pass of `count` batches (None: not known).

    `regrouped` opens one whose batches do not follow from the order of the data, where the reader puts several samples
    into a batch. `names` are those of the batches. `at_once` is how many samples a batch has. `recorded` tells of
    arrays as far as they were read, by the names of inputs of floats, what they held before they were converted.
    """

    name: str
    count: int | None
    start: Callable[[], Iterator[Batch]]
    regrouped: Callable[[], Iterator[Batch]] | None = None
    names: Sequence[str] = ()
    at_once: int = 1
    recorded: dict[str, "Recorded"] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Batch]:
        return self.start()

    def canonical(self) -> Iterator[Batch]:
        """A pass with the same batches for any order of the data, in any order of these."""
        return (self.regrouped or self.start)()

    def named(self, place: int) -> str:
        """The name of a batch of `canonical`."""
        return self.names[place] if place < len(self.names) else f"sample {place + 1}"


@dataclass(slots=True)
class Recorded:
    """The numbers that an input of floats gets, before they are converted: their type and ends, and whether all are
    whole.
    """

    dtype: Any
    whole: bool = True
    low: float = math.inf
    high: float = -math.inf

    def update(self, array: np.ndarray) -> None:
        """Look at another array, unless a number was seen that is none of a recording."""
        if not self.whole or not array.size or array.dtype.kind not in "fiu":
            return
        self.whole = array.dtype.kind in "iu" or bool((array == np.rint(array)).all())
        self.low, self.high = min(self.low, float(array.min())), max(self.high, float(array.max()))

    def is_raw(self, shape: Sequence[int]) -> bool:
        """Whether a recorder stores such numbers: integers of up to 16 bits, or bytes in any type for pictures."""
        stored = self.dtype.kind in "iu" and self.dtype.itemsize <= 2
        pictures = len(shape) == 4 and bool({*shape[1::2]} & {*CHANNELS})
        in_bytes = self.low >= 0 and self.high <= BYTE
        return self.whole and max(self.high, -self.low) > RAW and (stored or (pictures and in_bytes))


def holder_of(number: int, reader: Reader, inputs: Sequence[str]) -> str:
    """The first sample in which an input of integers holds a number, in words; "" if none does."""
    for place, batch in enumerate(reader.canonical()):
        for name, array in zip(inputs, batch, strict=False):
            if np.asarray(array).dtype.kind in "iu" and (array == number).any():
                return f"{reader.named(place)} of data {reader.name!r} holds {number} in input {name!r}"
    return ""


@dataclass(frozen=True, slots=True)
class Slot:
    """An input of a network, which data has to fit; the first axis is the batch.

    `stated` is its shape in messages, where that is another one: with the name of an open batch, which gets rows one by
    one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    stated: tuple[int, ...] = ()

    @property
    def shown(self) -> tuple[int, ...]:
        """The shape for messages."""
        return self.stated or self.shape

    def __str__(self) -> str:
        return f"{self.dtype} {self.shown} of input {self.name!r}"


def open_reader(source: str, slots: Sequence[Slot], *, how: Recipe | None = None, limit: int | None = None) -> Reader:
    """Data for the inputs of a network, at most `limit` batches.

    `source` is a folder of pictures, a picture, a .npy / .npz file, or `module.py:function`: a function without
    arguments that gives an iterable of arrays, or of tuples of arrays for networks with several inputs. Each array is
    checked against its slot and takes its dtype where that keeps all values. `how` is the recipe for pictures.

    Raises:
        OptionError: the source is none of these, or pictures without a recipe.
        FileFormatError: a file of it is damaged; raised while reading, and names the file.
    """
    reader = _READERS[kind_of(source)](source, slots, how)
    recorded: dict[str, Recorded] = {}

    def checked(start: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
        shapes = [slot.shape for slot in slots]
        batches = ((i, piece) for i, batch in enumerate(start()) for piece in samples_of(batch, shapes))
        for index, batch in islice(batches, limit):
            fitting = check_batch(batch, slots, f"{source}, batch {index}")
            for slot, array in zip(slots, map(np.asarray, batch), strict=True):
                if how is None and storage_of(slot.dtype).kind == "f":
                    recorded.setdefault(slot.name, Recorded(array.dtype)).update(array)
            yield fitting

    count = reader.count if limit is None or reader.count is None else min(limit, reader.count)
    regrouped = None if reader.regrouped is None else partial(checked, reader.regrouped)
    (at_once,) = firsts if len(firsts := {slot.shape[0] for slot in slots if slot.shape}) == 1 else (1,)
    at_once = 1 if is_open(at_once) else at_once
    return Reader(source, count, partial(checked, reader.start), regrouped, reader.names, at_once, recorded)


def kind_of(source: str) -> str:
    """The kind of a data source: "pictures", "arrays" or "function". Raises OptionError if it is none of these."""
    path = Path(source)
    if path.is_dir() or (path.is_file() and path.suffix.lower() in SUFFIXES):
        return "pictures"
    if path.is_file() and path.suffix.lower() in (".npy", ".npz"):
        return "arrays"
    if ".py:" in source:
        return "function"
    if path.exists():
        how = _TO_ARRAYS.get(path.suffix.lower(), "write numpy.save files").replace("FILE", source)
        raise OptionError(f"data {source!r}: expected a folder of pictures, .npy, .npz, or module.py:function; {how}")
    if "://" in source:
        raise OptionError(f"data {source!r}: an address; expected a file or a folder, so download it first")
    raise OptionError(f"data {source!r}: no such file or folder{nearest_file(source)}")


def check_batch(batch: Batch, slots: Sequence[Slot], where: str) -> Batch:
    """The batch as contiguous arrays of the inputs' shapes and dtypes.

    Raises ShapeError or DTypeError for what does not fit, and FileFormatError for NaN and infinity.
    """
    if len(batch) != len(slots):
        named = ", ".join(f"{slot.name}=..." for slot in slots)
        raise ShapeError(
            f"{where}: {counted(len(batch), 'array')}; expected {len(slots)}, one for each network input, and no "
            f"labels: give a mapping from a function, dict({named}), or write them by name, numpy.savez(file, {named})"
        )
    return tuple(_checked_array(array, slot, where) for array, slot in zip(batch, slots, strict=True))


def _checked_array(array: Any, slot: Slot, where: str) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.kind not in "fiub":
        raise DTypeError(f"{where}: dtype {array.dtype}; expected numbers: {slot}")
    if not fits(array.shape, slot.shape):
        remedy = shape_remedy(array.shape, slot.shape)
        raise ShapeError(f"{where}: shape {array.shape}; expected {slot.shown} ({remedy})")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = int(array.size - np.isfinite(array).sum())
        raise FileFormatError(f"{where}: {counted(bad, 'NaN or infinite value')}; remove or repair this input")
    exact = converted(array, slot.dtype)
    if exact is None:
        example = first_changed(array, slot.dtype)
        raise DTypeError(
            f"{where}: {array.dtype} with values such as {example}, which {slot.dtype} does not hold; expected {slot}"
        )
    return np.ascontiguousarray(exact)


def _picture_reader(source: str, slots: Sequence[Slot], how: Recipe | None) -> Reader:
    path = Path(source)
    paths = images_in(path) if path.is_dir() else [path]
    if not paths:
        arrays = others_in(path).get(".npy", 0)
        listing = f"return [numpy.load(p) for p in sorted(glob.glob({str(path / '**' / '*.npy')!r}, recursive=True))]"
        hint = f"; it holds {counted(arrays, '.npy file')}: give FILE.py:samples with def samples(): {listing}"
        kinds = ", ".join(SUFFIXES)
        raise OptionError(f"data {path}: no pictures below this folder (looked for {kinds}){hint if arrays else ''}")
    if len(slots) != 1 or len(slots[0].shape) != 4:
        raise OptionError(
            f"data {path}: pictures fit a network with one 4-D input; this one takes {', '.join(map(str, slots))}. "
            "Give .npz or module.py:function"
        )
    if how is None:
        presets = "; ".join(f"{name} ({one.colours})" for name, one in PRESETS.items())
        raise OptionError(
            f"data {path}: pictures need --preprocess, the preparation that the network was trained with; the model "
            f"stores none. One of: {presets}; a .json file; or key=value pairs"
        )
    if how.channels != slots[0].shape[1 if how.layout == "NCHW" else 3]:
        raise OptionError(
            f"data {path}: the recipe makes {counted(how.channels, 'channel')} ({how.colour}), "
            f"input {slots[0].name!r} takes {slots[0].shown}; choose another preset, or give colour, mean and std"
        )
    sides = slots[0].shape[2:] if how.layout == "NCHW" else slots[0].shape[1:3]
    if not fits(how.size, sides):
        raise OptionError(
            f"data {path}: the recipe makes pictures of {'x'.join(map(str, how.size))}, input {slots[0].name!r} takes "
            f"{slots[0].shown}; leave size out of the recipe: it follows the network"
        )
    if storage_of(slots[0].dtype).kind in "iu" and set(how.std) != {1}:
        raise OptionError(
            f"data {path}: the recipe divides pixels by {', '.join(f'{x:g}' for x in how.std)}, and input "
            f"{slots[0].name!r} takes {slots[0].dtype}, pixels as they are; add mean=0,std=1, for example --preprocess "
            "unit,mean=0,std=1"
        )
    batch = slots[0].shape[0]

    def start(order: Sequence[Path] = paths) -> Iterator[Batch]:
        for first in range(0, len(order), batch):
            group = [*order[first : first + batch]]
            group += group[-1:] * (batch - len(group))  # the last batch is filled up with its last picture
            yield (np.concatenate([load(one, how) for one in group]),)

    def regrouped() -> Iterator[Batch]:
        return start(sorted(paths, key=_file_digest))

    if batch == 1:
        names = [(one.relative_to(path) if path.is_dir() else one).as_posix() for one in paths]
        return Reader(str(path), len(paths), start, names=names)
    return Reader(str(path), -(-len(paths) // batch), start, regrouped)


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _array_reader(source: str, slots: Sequence[Slot], how: Recipe | None) -> Reader:
    path = Path(source)
    _check_unprepared(source, how)
    arrays = _npy(path) if path.suffix.lower() == ".npy" else _npz(path, slots)
    steps = [_rows_of_sample(array, slot) for array, slot in zip(arrays, slots, strict=False)]
    counts = {len(array) // (step or 1) for array, step in zip(arrays, steps, strict=False)}
    if len(counts) != 1:
        raise ShapeError(
            f"data {path}: unequal numbers of samples, {sorted(counts)}, in arrays of the shapes "
            f"{', '.join(str(array.shape) for array in arrays)}; expected one for {', '.join(map(str, slots))}"
        )
    count = counts.pop()
    if count < 1:
        have, need = counted(len(arrays[0]), "sample"), steps[0] or 1
        raise ShapeError(f"data {path}: {have}, the network takes {need} at once; add more")

    def start() -> Iterator[Batch]:
        for at in range(count):
            pairs = zip(arrays, steps, strict=False)
            yield tuple(array[at] if step is None else array[at * step : (at + 1) * step] for array, step in pairs)

    return Reader(str(path), count, start)


def _rows_of_sample(array: np.ndarray, slot: Slot) -> int | None:
    """How many rows of an array the input takes at once; None if the array has an axis of samples before its axes."""
    return None if array.ndim == len(slot.shape) + 1 else int(slot.shape[0]) if slot.shape else 1


def reason_of(error: Exception) -> str:
    """Why NumPy reads no array from a file; its advice to unpickle what is no array is left out."""
    text = str(error)
    return (
        "it holds no array of numbers; write it with numpy.save"
        if re.search("allow_pickle|objects", text)
        else text[:200]
    )


def _npy(path: Path) -> list[np.ndarray]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy parses the header with Python's tokenizer: many types
        raise FileFormatError(f"data {path}: not a readable .npy array ({reason_of(error)})") from error
    if array.ndim == 0:
        raise ShapeError(f"data {path}: a single number; expected samples along the first axis")
    return [array]


def _npz(path: Path, slots: Sequence[Slot]) -> list[np.ndarray]:
    """The arrays of the inputs; .npz members are compressed and must be held in memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
        if unpacked > max(_ALWAYS_UNPACKED, _MOST_PACKED * path.stat().st_size):
            text = f"unpacks to {counted(unpacked, 'byte')}, over {_MOST_PACKED} times its size; use .npy"
            raise FileFormatError(text)  # noqa: TRY301
        with np.load(path, allow_pickle=False) as opened:
            members = dict(opened.items())
    except Exception as error:  # of zip, of its packers, of NumPy's parser
        raise FileFormatError(f"data {path}: not a readable .npz file ({reason_of(error)})") from error
    arrays = [members[name] for name in _members_of(path, list(members), [slot.name for slot in slots])]
    if not all(isinstance(array, np.ndarray) for array in arrays):
        raise FileFormatError(f"data {path}: not a readable .npz file (an entry is not an array)")
    if any(array.ndim == 0 for array in arrays):
        raise ShapeError(f"data {path}: a single number; expected samples along the first axis")
    return arrays


def _members_of(path: Path, members: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """Which array of a file each input takes: by its name, or by its place where NumPy named the arrays (arr_0, ...).

    One array is that of the only input, whatever its name. Raises ShapeError if an input has no array, or names of
    several arrays say nothing.
    """
    found = keys_of_inputs(members, inputs)
    if None not in found:
        return [name for name in found if name is not None]
    numbered = [f"arr_{i}" for i in range(len(members))]
    if len(members) == len(inputs) and (len(inputs) == 1 or sorted(members) == sorted(numbered)):
        return numbered if len(inputs) > 1 else list(members)
    lacking = [node for node, name in zip(inputs, found, strict=True) if name is None]
    raise ShapeError(
        f"data {path}: {counted(len(members), 'array')} ({listed(members)}); expected {len(inputs)}, one for each "
        f"network input ({listed(inputs)}); no array is named {listed(lacking or inputs)}. Name them as the inputs, or "
        "write them without names, in this order: numpy.savez(file, first, second)"
    )


def _check_unprepared(source: str, how: Recipe | None) -> None:
    if how is not None:
        raise OptionError(
            f"--preprocess: data {source!r} gives arrays, which are taken as they are; prepare them before, or give "
            "pictures, or leave out --preprocess"
        )


def _function_reader(source: str, slots: Sequence[Slot], how: Recipe | None) -> Reader:
    _check_unprepared(source, how)
    function = load_function(source)

    def start() -> Iterator[Batch]:
        for item in _items_of(source, function):
            if isinstance(item, Mapping):
                item = values_in_order(item, [slot.name for slot in slots], f"data {source!r}: a batch")
            values = item if isinstance(item, (tuple, list)) else (item,)
            yield tuple(one.numpy() if hasattr(one, "numpy") else np.asarray(one) for one in values)

    return Reader(source, None, start)


def _items_of(source: str, function: Callable[..., Any]) -> Iterator[Any]:
    """What a function gives. Raises OptionError if that is not iterable, and for errors of the function."""
    count, doing = 0, "was called"
    try:
        items = function()
        if hasattr(items, "__iter__"):
            doing = "was asked for batch"
            for item in items:
                yield item
                count += 1
            return
    except Exception as error:
        place = f"{doing} {count}" if doing.endswith("batch") else doing
        raise OptionError(f"data {source!r}: {type(error).__name__} when the function {place}: {error}") from error
    raise OptionError(f"data {source!r}: the function gave {type(items).__name__}; expected an iterable")


_READERS = {"pictures": _picture_reader, "arrays": _array_reader, "function": _function_reader}


def load_function(source: str) -> Callable[..., Any]:
    """The function that `path/module.py:function` names; runs the module. Raises OptionError if there is none."""
    file, _, name = source.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise OptionError(f"{source!r}: no such file {file!r}{nearest_file(path)}")
    if not name:
        raise OptionError(f"{source!r}: expected the name of a function behind the colon")
    spec = importlib.util.spec_from_file_location(f"mge_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise OptionError(f"{path}: {type(error).__name__} while loading it: {error}") from error
    finally:
        sys.path.pop(0)
    function = getattr(module, name, None)
    if not callable(function):
        candidates = [key for key, value in vars(module).items() if callable(value)]
        raise OptionError(f"{source!r}: {path.name} has no function {name!r}{nearest(name, candidates)}")
    return function
