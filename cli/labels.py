"""Labels of samples: a file of classes, or the folders in which pictures lie."""

from pathlib import Path

import numpy as np

from megengine.cli.images import images_in
from megengine.cli.readers import kind_of, reason_of
from megengine.core.errors import FileFormatError, OptionError, nearest, nearest_file
from megengine.core.text import counted

FOLDERS = "folders"
Labels = list[tuple[int, ...]]


def labels_of(source: str | None, data: str) -> Labels:
    """The classes that are right for each sample; none without a source.

    Raises:
        OptionError: no such file, a kind that is not known, or labels that do not fit the data.
        FileFormatError: a file that holds no classes; the line is named.
    """
    if source is None:
        return []
    if source == FOLDERS:
        return _of_folders(data)
    path = Path(source)
    if not path.is_file():
        near = nearest_file(path) or nearest(source, [FOLDERS])
        raise OptionError(f"--labels {source!r}: no such file{near}; expected .npy, .txt, .csv, or the word {FOLDERS}")
    if path.suffix.lower() == ".npy":
        return _of_array(path)
    if path.suffix.lower() not in (".txt", ".csv"):
        raise OptionError(f"--labels {source!r}: expected .npy, .txt, .csv, or the word {FOLDERS}")
    return _of_lines(path, data)


def _of_folders(data: str) -> Labels:
    if kind_of(data) != "pictures" or not Path(data).is_dir():
        raise OptionError(f"--labels {FOLDERS}: data {data!r} is no folder of pictures")
    root = Path(data)
    parts = [path.relative_to(root).parts for path in images_in(root)]
    flat = [image.name for image, one in zip(images_in(root), parts, strict=True) if len(one) < 2]
    if flat:
        raise OptionError(f"--labels {FOLDERS}: {flat[0]!r} lies in {data!r} itself; expected a folder for each class")
    classes = sorted({one[0] for one in parts})
    return [(classes.index(one[0]),) for one in parts]


def _of_array(path: Path) -> Labels:
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # NumPy parses the header with Python's tokenizer: many types
        raise FileFormatError(f"--labels {path}: not a readable .npy array ({reason_of(error)})") from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise FileFormatError(
            f"--labels {path}: {array.dtype} {array.shape}; expected one whole number for each sample "
            f"({_mended(array)})"
        )
    return [(int(one),) for one in array]


def _mended(array: np.ndarray) -> str:
    """What makes labels of an array that holds them in another form."""
    if array.ndim == 2 and array.shape[1] > 1:
        return "of a row of classes for each: array.argmax(1)"
    return "as 1-d integers: array.reshape(-1).astype(int)" if array.ndim in (1, 2) else "1-d integers"


def _of_lines(path: Path, data: str) -> Labels:
    """Classes line by line, or by the paths of pictures, in the order of the reader."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeError) as error:
        raise FileFormatError(f"--labels {path}: cannot be read ({error})") from error
    pairs = [line.rpartition(",") for line in lines]
    if not pairs:
        raise FileFormatError(f"--labels {path}: the file is empty; expected a class for each sample")
    heading = len(pairs) > 1 and pairs[0][0] and not _is_classes(pairs[0][2])
    pairs = pairs[1:] if heading else pairs
    for number, (_, _, words) in enumerate(pairs, 2 if heading else 1):
        if not _is_classes(words):
            raise FileFormatError(f"--labels {path}: line {number}: {words[:60]!r} is no class; expected whole numbers")
    classes = [tuple(map(int, words.split())) for _, _, words in pairs]
    if not any(name for name, _, _ in pairs):
        return classes
    if kind_of(data) != "pictures" or not Path(data).is_dir():
        raise OptionError(f"--labels {path}: names pictures, and data {data!r} is no folder of them")
    root = Path(data)
    known: dict[str, tuple[int, ...]] = {}
    for name, one in zip((name.strip() for name, _, _ in pairs), classes, strict=True):
        if known.setdefault(name, one) != one:
            words = " and ".join(" ".join(map(str, found)) for found in (known[name], one))
            raise FileFormatError(f"--labels {path}: {name!r} has the classes {words} in two lines; keep one of them")
    pictures = [image.relative_to(root).as_posix() for image in images_in(root)]
    missing = [name for name in pictures if name not in known]
    if missing:
        raise OptionError(
            f"--labels {path}: no line for {counted(len(missing), 'picture')} of {data!r}; first: {missing[0]!r}"
        )
    return [known[name] for name in pictures]


def _is_classes(words: str) -> bool:
    parts = words.split()
    return bool(parts) and all(part.isdecimal() for part in parts)
