"""Locks that do not stay locked in a forked child because another thread held them at the fork."""

from __future__ import annotations

import os
import threading


def lock_free_in_children() -> threading.Lock:
    """A lock for the whole process; no thread forks while it holds it."""
    lock = threading.Lock()

    def begin_child() -> None:
        if lock.locked():
            lock.release()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=begin_child)
    return lock
