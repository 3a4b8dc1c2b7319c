"""The output of a command: tables or JSON, progress on stderr, files that appear complete or not at all."""

import errno
import json
import math
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from megengine.core import text as text_module
from megengine.core.errors import MegEngineError, OptionError, WriteError, nearest, nearest_file
from megengine.core.files import put_in_place, temporary_file

LONG, BETWEEN = 20, 3  # what a word takes of a line before it is broken; what stands between columns
WIDTH = 140  # of tables in files and pipes, where COLUMNS says nothing
WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)  # errors that only writing raises


class OutputError(MegEngineError):
    """A path that cannot be written."""


@contextmanager
def kept_after_interrupt(path: Path | None, line: str) -> Iterator[None]:
    """Ctrl-C in the body is told with a line about `path`, if this is there to go on from."""
    try:
        yield
    except KeyboardInterrupt as error:
        if path is not None and path.exists():
            error.add_note(f"{path} {line}")
        raise


class Output:
    """The output of one command: results on stdout, with `--json` everything else on stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._said: set[str] = set()
        width = None if sys.stdout.isatty() else _columns() or WIDTH
        self.results = Console(highlight=False, soft_wrap=True, width=width)
        self.notes = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(self, line: str, style: str = "") -> None:
        """One line for people."""
        text = Text(printable(line), style=style)
        if self.as_json:
            with suppress(OSError):  # the result goes elsewhere
                self.notes.print(text)
            return
        with _standard_output():
            self.results.print(text)

    def say_once(self, line: str) -> None:
        """One line for people, where it was not said before: models side by side have much in common."""
        if line not in self._said:
            self._said.add(line)
            self.say(line)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """A table for people; columns whose cells are numbers are aligned right."""
        if self.as_json:
            return
        cells = [[printable(cell_text(cell)) for cell in row] for row in rows]
        least = [_least(column) for column in zip(columns, *cells, strict=True)]
        with _standard_output():
            self.results.print(Text(printable(title), style="italic"))  # a title of the table wraps at its width
            if rows and sum(least) + BETWEEN * len(least) > self.results.width:
                for row in cells:
                    self.results.print(Text(_in_lines(columns, row, self.results.width)))
                return
            grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
            for index, name in enumerate(columns):
                # and words instead of some, as "equal"
                numbers = any(isinstance(row[index], (int, float)) for row in rows)
                justify = "right" if numbers else "left"
                grid.add_column(name, justify=justify, overflow="fold", min_width=least[index])
            for row in cells:
                grid.add_row(*map(Text, row))
            self.results.print(grid, soft_wrap=False)

    def result(self, value: dict[str, Any]) -> None:
        """The whole result, printed when `--json` is on."""
        if self.as_json:
            text = json.dumps(value, indent=2, default=_plain, allow_nan=False)
            with _standard_output():
                sys.stdout.write(f"{text}\n")
                sys.stdout.flush()

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator["Bar"]:
        """A bar on stderr, shown on terminals only."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        quiet = not self.notes.is_terminal
        with Progress(*columns, TimeElapsedColumn(), console=self.notes, transient=True, disable=quiet) as display:
            yield Bar(display, display.add_task(printable(what), total=total))


class Bar:
    """Counts steps of one piece of work."""

    def __init__(self, progress: Progress, task: Any) -> None:
        self._progress, self._task = progress, task

    def step(self, count: int = 1) -> None:
        """Advance by a number of steps."""
        self._progress.advance(self._task, count)

    def show(self, what: str, done: int, total: int | None) -> None:
        """Show a stage and its progress."""
        self._progress.update(self._task, description=printable(what), completed=done, total=total)


@contextmanager
def _standard_output() -> Iterator[None]:
    """Let errors of printing in the body name the standard output, as files are written at the same time."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output: cannot be written ({error.strerror or error})") from error


def _columns() -> int:
    """The width of lines by the environment; 0 if it is not set."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdecimal() and len(text) < 6 else 0


def printable(text: str) -> str:
    """Text for a terminal: names from files may hold escape sequences."""
    return text_module.printable(str(text).replace("\t", " "))


def _least(column: Sequence[str]) -> int:
    """The width that a column needs so that no word is broken but very long ones, as names are."""
    return min(LONG, max(cell_len(word) for cell in column for word in (*cell.split(), "")))


def _in_lines(columns: Sequence[str], row: Sequence[str], width: int) -> str:
    """A row of a table wider than the screen: its first cell, then the others with the names of their columns."""
    told = ", ".join(f"{name} {cell}" if name else cell for name, cell in zip(columns[1:], row[1:], strict=True))
    lines = textwrap.wrap(told, max(width - 2, 1), break_long_words=False, break_on_hyphens=False)
    return "\n  ".join([row[0], *lines])


def cell_text(cell: Any) -> str:
    """A table cell: floats with four significant digits, None as a dash."""
    return "-" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def ratio_cell(value: float | None) -> float | str | None:
    """A ratio in dB for a table: `exact` where there is no error."""
    return "exact" if value == math.inf else value


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def check_suffix(option: str, path: Path | None, kinds: dict[str, str]) -> None:
    """Raises OptionError for a path whose suffix is none of `kinds` (suffix -> what it holds)."""
    if path is not None and path.suffix not in kinds:
        listed = " or ".join(f"{suffix} ({what})" for suffix, what in kinds.items())
        raise OptionError(f"{option} {str(path)!r}: expected {listed}{nearest(path.suffix, kinds)}")


@contextmanager
def output_file(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the body ends well, and is gone when it does not.

    It is made before the work starts: OutputError is raised at once for a path that cannot be written.
    """
    target = Path(path)
    check_folder(target)
    entered = False
    try:
        with temporary_file(target) as temporary:
            entered = True
            try:
                yield temporary
                put_in_place(temporary, target)
            except OSError as error:
                own = str(temporary) in (str(error) if isinstance(error, WriteError) else str(error.filename))
                if own or (error.errno in WRITING and not isinstance(error, MegEngineError)):
                    raise OutputError(f"output {target}: cannot be written ({error.strerror or error})") from error
                raise
    except OSError as error:
        if entered or isinstance(error, MegEngineError):
            raise
        raise _takes_no_file(target, error) from error


def _takes_no_file(target: Path, error: OSError) -> OutputError:
    return OutputError(
        f"output {target}: cannot be written, the folder {target.parent} takes no new file ({error.strerror})"
    )


def check_writable(*targets: Path) -> None:
    """Raises OutputError if no file can be written at a path: for work that writes there late, or again and again."""
    for target in targets:
        check_folder(target)
        try:
            with temporary_file(target):
                pass
        except OSError as error:
            if isinstance(error, MegEngineError):
                raise
            raise _takes_no_file(target, error) from error


def check_folder(target: Path) -> None:
    """Raises OutputError if a path cannot be written: a folder, in no folder, or write-protected."""
    if target.is_dir():
        raise OutputError(f"output {target}: is a folder; expected a file name")
    if target.parent.exists() and not target.parent.is_dir():
        raise OutputError(f"output {target}: {target.parent} is a file, not a folder; choose another path")
    if not target.parent.is_dir():
        near = nearest_file(target.parent)
        raise OutputError(f"output {target}: the folder {target.parent} does not exist{near}; create it first")
    if target.exists() and not os.access(target, os.W_OK):
        raise OutputError(f"output {target}: the file is write-protected")
