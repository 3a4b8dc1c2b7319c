"""A process is forked while no kernel runs, so that plans and eager calls work in the child.

A child has only the thread that forked: what other threads had locked stays locked in it for ever. `os.fork` and
`multiprocessing` therefore wait for the kernels that run (of a plan: for its step), and others wait to begin.
"""

from __future__ import annotations

import functools
import os

from megengine.kernels import _core

LONGEST_WAIT = 10.0  # seconds; a kernel may wait for a thread that waits to begin one

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=functools.partial(_core.before_fork, LONGEST_WAIT),
        after_in_parent=_core.after_fork_in_parent,
        after_in_child=_core.after_fork_in_child,
    )
