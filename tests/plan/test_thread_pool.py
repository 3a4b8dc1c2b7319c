"""The worker threads alone: steps of changing numbers of parts, watched by the thread sanitizer."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "kernels" / "csrc" / "plan" / "thread_pool.cpp", ROOT / "tests" / "helpers" / "pool_rounds.cpp"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_every_part_is_done_once_by_one_member(tmp_path):
    """A worker that is late for a step must not take a part of the next one that is not there yet."""
    program = tmp_path / "pool_rounds"
    flags = ["-std=c++20", "-O1", "-g1", "-fsanitize=thread", f"-I{ROOT / 'kernels' / 'csrc'}", "-pthread"]
    made = subprocess.run(["g++", *flags, *SOURCES, "-o", program], capture_output=True, text=True, check=False)
    if "tsan" in made.stderr:
        pytest.skip("g++ has no thread sanitizer")
    assert made.returncode == 0, made.stderr
    done = subprocess.run([program], capture_output=True, text=True, timeout=200, check=False)
    if "FATAL: ThreadSanitizer" in done.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel of the system")
    assert (done.returncode, done.stdout) == (0, "0 wrong\n"), done.stderr[:4000]
