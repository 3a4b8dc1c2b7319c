"""Ctrl-C while the command `mge-quantize` is still being imported ends it at once, without a traceback.

Nothing has begun then, so nothing is left behind; `megengine.cli.main` takes over from here. Other programs that import
the package keep their signals as they are.
"""

import os
import signal
import sys


def _is_the_command() -> bool:
    words = list(getattr(sys, "orig_argv", []))
    script = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return script == "mge-quantize" or (script == "-m" and "megengine.cli" in words)


if _is_the_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
