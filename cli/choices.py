"""Values of options: words, of which an unknown one is wrong usage and the message names the nearest, and numbers."""

import math
import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from megengine.core.errors import nearest


class Choice(click.Choice[str]):
    """`click.Choice` with the nearest word in its message."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """The message of click, and the nearest word."""
        return super().get_invalid_choice_message(value, ctx).rstrip(".") + nearest(str(value), self.choices)


class Number(click.FloatRange):
    """`click.FloatRange` without NaN and infinity."""

    name = "number"

    def _describe_range(self) -> str:
        """What the help says of the limits; click writes `x<=None` where there are none."""
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises click.BadParameter for others."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{found} is no finite number.", param, ctx)
        return found


class File(click.types.StringParamType):
    """Text that names a file or folder, among other things: shells complete it so."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text. Raises click.BadParameter if it is empty, which would name the folder that the command runs in."""
        return super().convert(_named(self, value, param, ctx), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """What a shell is told to look for."""
        return [CompletionItem(incomplete, type="file")]


class FilePath(click.Path):
    """A path that is not empty."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """The path. Raises click.BadParameter for an empty text."""
        return super().convert(_named(self, value, param, ctx), param, ctx)


def _named(kind: click.ParamType, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    if value == "":
        kind.fail("the name is empty; give the file or folder (a variable of the shell may be unset)", param, ctx)
    return value


FILE = File()
