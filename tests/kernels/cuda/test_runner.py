"""The command that checks a GPU: its report, with the emulated GPU in its place."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def report(tmp_path, *words, **more):
    """The exit status and the report of a run; `more` are variables of the environment."""
    command = [sys.executable, str(ROOT / "tests/cuda/run.py"), "--no-compile", "--out", str(tmp_path), *words]
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**outer, "MEGENGINE_EMULATED_GPU": "1", **more}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (tmp_path / "report.txt").read_text() in done.stdout, done.stderr
    return done.returncode, json.loads((tmp_path / "report.json").read_text())["parts"]


def test_a_part_is_counted(tmp_path):
    code, parts = report(tmp_path, "first", "--only", "copies or launch or dlpack")
    assert code == 0 and {"tests": 3, "passed": 2, "failed": 0, "skipped": 1}.items() <= parts["first"].items()
    assert "test_copies" in parts["first"]["slowest"] and parts["first"]["failures"] == {}


def test_a_part_that_takes_too_long_says_what_it_has_seen(tmp_path):
    code, parts = report(tmp_path, "contract", "--processes", "1", "--limit", "4")
    assert code == 1 and parts["contract"]["exit"] == "ended after 4 s"
    assert parts["contract"]["failed"] == 0 and parts["contract"]["seconds"] < 30


LOSING = """
import pytest
from recording_gpu import RecordingGpu

lost = []

def wait(self):
    if lost:
        raise RuntimeError("cudaErrorIllegalAddress")

RecordingGpu.wait = wait

def pytest_runtest_call(item):
    if item.name == "test_copies":
        lost.append(item)
"""


def test_a_test_that_loses_the_context_is_told_from_those_behind_it(tmp_path):
    (tmp_path / "losing.py").write_text(LOSING)
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "tests/helpers")])
    code, parts = report(
        tmp_path, "first", "--only", "copies or launch or dlpack", PYTEST_ADDOPTS="-p losing", PYTHONPATH=paths
    )
    assert (
        code == 1 and {"tests": 3, "passed": 1, "failed": 1, "skipped": 1, "lost": 0}.items() <= parts["first"].items()
    )
    ((name, words),) = parts["first"]["failures"].items()
    assert name == "test_copies" and "the context is lost since this test: RuntimeError: cudaErrorIllegal" in words
