"""Settings of the environment for GPUs, read when a GPU is first used: a word that means nothing is an error there."""

from __future__ import annotations

import os

from megengine.core.errors import OptionError, brief

_ON, _OFF = ("1", "on", "true", "yes"), ("", "0", "off", "false", "no")


def switch(variable: str) -> bool:
    """Whether an environment variable says yes. Raises OptionError for what is neither yes nor no."""
    word = os.environ.get(variable, "")
    if word.strip().lower() in _ON:
        return True
    if word.strip().lower() in _OFF:
        return False
    raise OptionError(f"the environment variable {variable} is {brief(word)}; expected 1, or 0")


def count(variable: str, unset: int | None = 0) -> int | None:
    """The number that an environment variable holds, or `unset`. Raises OptionError for anything else."""
    word = os.environ.get(variable, "").strip()
    if not word:
        return unset
    if not (word.isascii() and word.isdigit()):
        raise OptionError(f"the environment variable {variable} is {brief(word)}; expected a number from 0")
    return int(word)
