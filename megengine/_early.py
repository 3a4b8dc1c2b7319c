"""Interrupts of the command `mge-quantize`: Ctrl-C waits until a running import has ended.

An exception in the middle of an import leaves half a module and causes other errors; in a C++ library it ends the
process. This module is imported first: a signal that arrives before `megengine.cli.main` runs waits for it. The
signals of other programs that import the package are not changed.
"""

import os
import signal
import sys
import time
from typing import Any

AGAIN = 0.01  # seconds until a waiting interrupt is tried again
ENDS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has no SIGHUP
PATIENCE = 1.0  # seconds after the first interrupt from which another one ends the process


class Interrupts:
    """Handlers of SIGINT, SIGTERM and SIGHUP that raise KeyboardInterrupt, but not into an import."""

    def __init__(self) -> None:
        self.begun = self.raised = False
        self._held: tuple[int, float] | None = None  # the waiting signal, and since when

    def hold(self) -> None:
        """From here on SIGINT waits for `begin`, unless the caller of the process ignores it."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._hear)

    def begin(self) -> None:
        """From here on interrupts are raised; one that waits is raised now."""
        self.hold()
        for number in ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._hear)
        signal.signal(signal.SIGALRM, self._look_again)
        self.begun = True
        if self._held is not None:
            self._raise()

    def end(self) -> None:
        """From here on they end the process, without a message."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGINT, *ENDS):
            if signal.getsignal(number) == self._hear:
                signal.signal(number, signal.SIG_DFL)

    def _raise(self) -> None:
        self._held, self.raised = None, True
        raise KeyboardInterrupt

    def _hear(self, number: int, frame: Any) -> None:
        if self._held is not None:
            if time.monotonic() - self._held[1] > PATIENCE:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
        elif self.begun and not importing(frame):
            self._raise()
        else:
            self._held = number, time.monotonic()
            if self.begun:
                signal.setitimer(signal.ITIMER_REAL, AGAIN)

    def _look_again(self, number: int, frame: Any) -> None:
        if self._held is None:
            return
        if importing(frame):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        (waited, _), self._held = self._held, None
        signal.raise_signal(waited)  # to whoever handles it at this moment


def importing(frame: Any) -> bool:
    """Whether a module is being imported where the program stands."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


interrupts = Interrupts()


def _is_the_command() -> bool:
    words = list(getattr(sys, "orig_argv", []))
    script = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return script == "mge-quantize" or (script == "-m" and "megengine.cli" in words)


if _is_the_command():
    interrupts.hold()
