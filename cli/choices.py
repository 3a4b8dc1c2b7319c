"""Values of options: words, of which an unknown one is wrong usage and the message names the nearest, and numbers."""

import math
from typing import Any

import click

from megengine.core.errors import nearest


class Choice(click.Choice[str]):
    """`click.Choice` with the nearest word in its message."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """The message of click, and the nearest word."""
        return super().get_invalid_choice_message(value, ctx).rstrip(".") + nearest(str(value), self.choices)


class Number(click.FloatRange):
    """`click.FloatRange` without NaN and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises click.BadParameter for others."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{found} is no finite number.", param, ctx)
        return found
