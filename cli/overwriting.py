"""A command reads and writes different files, unless `--overwrite` is given."""

import functools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from megengine.cli.choices import FilePath
from megengine.cli.images import SUFFIXES
from megengine.convert.onnx.reading import external_files
from megengine.core.errors import OptionError

path_option = functools.partial(click.option, type=FilePath())
overwrite_option = click.option("--overwrite", is_flag=True, help="Let what is written replace what is read.")


def check_outputs(outputs: Iterable[tuple[str, Path | None]], inputs: Iterable[str], *, overwrite: bool) -> None:
    """Refuse to write to a file that is read, and to write twice to one file; links are followed.

    `outputs` are (option, path or None), `inputs` the words of the command line: files, folders, `module.py:function`.
    With `overwrite`, files that are read may be replaced. Raises OptionError, which names the option and both files.
    """
    written: list[Path] = []
    sources = list(inputs)
    for option, path in outputs:
        if path is None:
            continue
        for other in written:
            if _same_file(path, other):
                raise OptionError(f"{option} {str(path)!r}: is the same file as {str(other)!r}; choose another path")
        written.append(path)
        for source in () if overwrite else sources:
            if any(_same_file(path, one) for one in _read_for(source, path)):
                raise OptionError(
                    f"{option} {str(path)!r}: would replace {source!r}; choose another path, or add --overwrite"
                )


def _read_for(source: str, output: Path) -> Iterator[Path]:
    """Files that a word of the command line names: of folders and models of many files, the ones `output` could be."""
    head, colon, _ = source.rpartition(":")
    path = Path(head if colon and head.endswith(".py") else source)
    yield path
    if output.exists():
        if path.is_dir() and output.suffix.lower() in SUFFIXES and path.resolve() in output.resolve().parents:
            yield output
        if path.suffix.lower() == ".onnx" and path.is_file():
            yield from (path.parent / name for name in external_files(path))


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.realpath(one) == os.path.realpath(other) or os.path.samefile(one, other)
    except (OSError, ValueError):  # no file can have such a name: it contains a NUL or half a character
        return False
