"""Options whose values are words: an unknown one is wrong usage, and the message names the nearest."""

from typing import Any

import click

from megengine.core.errors import nearest


class Choice(click.Choice[str]):
    """`click.Choice` with the nearest word in its message."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """The message of click, and the nearest word."""
        return super().get_invalid_choice_message(value, ctx).rstrip(".") + nearest(str(value), self.choices)
