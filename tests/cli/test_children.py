"""Programs that a command starts end with it."""

import signal
import subprocess
import sys
import threading

import pytest

from megengine.cli.children import child, finished

WAITS = [sys.executable, "-c", "print('runs', flush=True); import time; time.sleep(600)"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, subprocess.TimeoutExpired("it", 1)])
def test_it_is_killed_when_the_body_raises(error):
    known = []

    def run():
        with child(WAITS, stdout=subprocess.PIPE) as process:
            known.append(process)
            assert process.stdout.readline() == b"runs\n"
            raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        run()
    (process,) = known
    assert process.returncode == -signal.SIGKILL and process.stdout.closed


def test_it_is_waited_for():
    with child([sys.executable, "-c", "print(1); raise SystemExit(3)"], stdout=subprocess.PIPE) as process:
        assert process.stdout.read() == b"1\n"
    assert process.returncode == 3


def test_what_it_wrote(tmp_path):
    program = "import os, sys; print(os.getcwd()); sys.exit('failed')"
    done = finished([sys.executable, "-c", program], cwd=tmp_path)
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (1, str(tmp_path), "failed")
    with pytest.raises(subprocess.TimeoutExpired):
        finished(WAITS, seconds=0.1)


def test_programs_that_are_not_there():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(FileNotFoundError, match="no-such-program"), child(["no-such-program"]):
        pass
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_other_threads_may_start_programs():
    """Only the main thread hears interrupts."""
    found = []

    def run():
        with child([sys.executable, "-c", ""]) as process:
            pass
        found.append(process.returncode)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [0]
