"""Programs that a command starts, and that end with it at the latest."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megengine._early import ENDS


@contextmanager
def child(command: list[str], **options: Any) -> Iterator[subprocess.Popen]:
    """A running program; it is killed and waited for if the body ends first, for instance by an interrupt.

    `options` are those of `subprocess.Popen`. Raises OSError if the program cannot be started.
    """
    process = None
    try:
        with _interrupts_wait():
            process = subprocess.Popen(command, **options)
        yield process
    except BaseException:
        if process is not None:
            process.kill()
        raise
    finally:
        if process is not None:
            with process:  # waits, and closes its pipes
                pass


def finished(command: list[str], *, cwd: Path | None = None, seconds: float = 900) -> subprocess.CompletedProcess[str]:
    """A program that has ended, with what it wrote.

    Raises OSError if it cannot be started, subprocess.TimeoutExpired if it takes longer.
    """
    with child(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, err = process.communicate(timeout=seconds)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Delay interrupts to the end of the body: inside of `Popen` they would leave a running program behind."""
    received: list[int] = []
    numbers = (signal.SIGINT, *ENDS) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in received[:1]:
        signal.raise_signal(number)
