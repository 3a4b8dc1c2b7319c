"""Programs in processes of their own, forked from one that has imported what the command needs: they start at once.

    with WarmProcess() as python:
        done = python("print(1)", ["argument"], cwd=folder)

What runs is a process with its own standard files, folder, arguments and end, as `python -c` gives one. Modules of the
package are imported already: what a test says about imports, or about settings read by them, needs a new interpreter.
"""

import atexit
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

IMPORTED = (
    *("megengine.cli.app", "megengine.cli.ptq", "megengine.cli.verifying", "megengine.cli.benching"),
    *("megengine.convert.onnx", "megengine.plan", "megengine.quantization", "onnx.checker", "PIL.Image", "jinja2"),
)


class WarmProcess:
    """The process that is forked for every program."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def __enter__(self) -> "WarmProcess":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.close()
        self.server.wait(60)
        self.server.stdout.close()

    def __call__(
        self, program: str, words: Sequence[Any] = (), *, cwd: Any = None, timeout: float = 120, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program with arguments, in a folder; the environment is that of this process and `env`."""
        assert self.server.stdin is not None and self.server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder) / "out", Path(folder) / "err"
            words = [str(word) for word in words]
            request = {
                "program": program,
                "words": words,
                "cwd": str(cwd or os.getcwd()),
                "files": [str(out), str(err)],
            }
            line = json.dumps(request | {"env": {**os.environ, **env}}) + "\n"
            self.server.stdin.write(line.encode())
            self.server.stdin.flush()
            if not select.select([self.server.stdout], [], [], timeout)[0]:
                os.killpg(self.server.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(words, timeout)
            code = int(self.server.stdout.readline())
            return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


def _serve() -> dict[str, Any]:
    """Fork for every request; returns the request in the process that is to carry it out."""
    for name in IMPORTED:
        __import__(name)
    gc.freeze()  # what is imported is no garbage, and its memory stays shared
    replies = os.dup(1)
    while line := sys.stdin.readline():
        child = os.fork()
        if not child:
            os.close(replies)
            return json.loads(line)
        _, status = os.waitpid(child, 0)
        os.write(replies, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    sys.exit()


def _take_place(request: dict[str, Any]) -> None:
    """Standard files, folder, environment and arguments of a new process."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    handles = [nothing, *(os.open(path, os.O_WRONLY | os.O_CREAT) for path in request["files"])]
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["-c", *request["words"]]
    sys.path[0] = ""


def _code_of(program: str) -> int:
    """Run it; what Python does at the end of a process, without taking the modules apart."""
    code = 0
    try:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    _REQUEST = _serve()
    _take_place(_REQUEST)
    os._exit(_code_of(_REQUEST["program"]))
