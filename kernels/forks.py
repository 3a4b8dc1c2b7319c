"""Forks of the process wait until no kernel runs and no module is being imported, so that the child works.

A child has only the thread that forked; locks that other threads held stay locked in it. Therefore `os.fork` and
`multiprocessing` wait for running kernels (of a plan: for its step), and no kernel begins in the meantime. They also
wait for imports, since parts of the package are imported when they are first used.
"""

from __future__ import annotations

import os
import threading
import time
from importlib import _bootstrap  # type: ignore[attr-defined]  # of the import system itself, in all versions

from megengine.kernels import _core

LONGEST_WAIT = 10.0  # seconds; a running kernel may wait for a thread that waits to begin one
LONGEST_IMPORT = 3.0  # the import of a module may never end


def _others_import() -> bool:
    """Whether another thread is importing: it holds the lock of a module.

    The frames of other threads would not do: they change while they are read.
    """
    locks = [lock() for lock in list(_bootstrap._module_locks.values())]
    return any(getattr(lock, "owner", None) not in (None, threading.get_ident()) for lock in locks)


def _before() -> None:
    end = time.monotonic() + LONGEST_IMPORT
    while True:
        while _others_import() and time.monotonic() < end:
            time.sleep(0.001)
        _core.before_fork(LONGEST_WAIT)
        if not _others_import() or time.monotonic() >= end:
            return
        _core.after_fork_in_parent()  # the imported module may run kernels


def register() -> None:
    """Let forks of the process wait, on platforms that have them. Called once."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_before, after_in_parent=_core.after_fork_in_parent, after_in_child=_core.after_fork_in_child
        )
