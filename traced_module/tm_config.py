"""Whether `trace_module` runs the graph once and compares it with the module; off by default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Settings:
    check: bool = False


SETTINGS = _Settings()


def enable_expr_checker() -> None:
    """From now on `trace_module` runs the module and the graph on its arguments and compares every result."""
    SETTINGS.check = True


def disable_default_checker() -> None:
    """Do not run what was traced (the default)."""
    SETTINGS.check = False
