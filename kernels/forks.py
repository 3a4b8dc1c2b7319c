"""A process is forked while no kernel runs and no module is imported, so that everything works in the child.

A child has only the thread that forked: what other threads had locked stays locked in it for ever. `os.fork` and
`multiprocessing` therefore wait for the kernels that run (of a plan: for its step), and others wait to begin. They wait
for imports too, since parts of the package are imported when they are first needed.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from megengine.kernels import _core

LONGEST_WAIT = 10.0  # seconds; a kernel may wait for a thread that waits to begin one
LONGEST_IMPORT = 3.0  # a module may run for ever where it is imported


def _others_import() -> bool:
    """Whether another thread is in the middle of an import."""
    for thread, top in sys._current_frames().items():
        frame = None if thread == threading.get_ident() else top
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                return True
            frame = frame.f_back
    return False


def _before() -> None:
    end = time.monotonic() + LONGEST_IMPORT
    while True:
        while _others_import() and time.monotonic() < end:
            time.sleep(0.001)
        _core.before_fork(LONGEST_WAIT)
        if not _others_import() or time.monotonic() >= end:
            return
        _core.after_fork_in_parent()  # what is imported may run kernels


def register() -> None:
    """From here on a fork of the process waits, where the platform has forks. Called once."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_before,
            after_in_parent=_core.after_fork_in_parent,
            after_in_child=_core.after_fork_in_child,
        )
