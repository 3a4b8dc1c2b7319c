"""Instruction set levels: the level of the machine, and the cap for the choice of kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from megengine.core.errors import OptionError, nearest
from megengine.kernels import _core

LEVELS = ("base", "sse41", "avx2", "avx512", "vnni", "bf16", "amx")
_ONEDNN = {
    "base": "SSE41",
    "sse41": "SSE41",
    "avx2": "AVX2",
    "avx512": "AVX512_CORE",
    "vnni": "AVX512_CORE_VNNI",
    "bf16": "AVX512_CORE_BF16",
}
_listeners: list[Callable[[], None]] = []


def level(name: str) -> int:
    """Rank of a level by name."""
    if name not in LEVELS:
        raise OptionError(f"unknown instruction set {name!r}; expected one of {LEVELS}{nearest(name, LEVELS)}")
    return LEVELS.index(name)


def _from_environment() -> None:
    cap = os.environ.get("MEGENGINE_MAX_ISA")
    if cap is None:
        return
    try:
        level(cap)
    except OptionError as exc:
        exc.add_note("from the environment variable MEGENGINE_MAX_ISA")
        raise
    if cap in _ONEDNN:  # oneDNN reads its own variable once, when it is loaded
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", _ONEDNN[cap])


def detected() -> str:
    """The best level of this machine."""
    return LEVELS[_core.detected_isa()]


def active() -> str:
    """The best level kernels may use now."""
    return LEVELS[_core.active_isa()]


def available() -> tuple[str, ...]:
    """Every level that this machine can run, lowest first."""
    return LEVELS[: _core.detected_isa() + 1]


def has(name: str) -> bool:
    """True if kernels of this level may run now."""
    return level(name) <= _core.active_isa()


def on_change(listener: Callable[[], None]) -> None:
    """Call `listener` whenever the cap changes."""
    _listeners.append(listener)


def set_cap(name: str) -> None:
    """Let kernels use at most this level (in this process; oneDNN keeps the cap it was loaded under)."""
    _core.set_isa_cap(level(name))
    for listener in _listeners:
        listener()


@contextmanager
def capped(name: str) -> Iterator[None]:
    """Lower the level inside the body."""
    before = active()
    set_cap(name)
    try:
        yield
    finally:
        set_cap(before)


_from_environment()
