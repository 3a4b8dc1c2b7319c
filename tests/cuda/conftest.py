"""Tests of this folder run on a real GPU, or are skipped with the reason.

With MEGENGINE_EMULATED_GPU=1 the processor stands in for it, to try the tests themselves.
"""

import json
import os
from pathlib import Path

import pytest
from recording_gpu import RecordingGpu

from megengine.kernels import cuda
from megengine.kernels.cuda.runtime import in_use, installed

FOLDER = str(Path(__file__).parent) + os.sep
LOST = "the context is lost since"
_lost: list[str] = []  # the test of this process after which the device answers nothing
EMULATED = os.environ.get("MEGENGINE_EMULATED_GPU", "") not in ("", "0")


def pytest_collection_modifyitems(items):
    reason = None if EMULATED else cuda.unavailable_reason()
    for item in items:
        if str(item.path).startswith(FOLDER):  # as of many thousands of tests the path alone is looked at
            item.add_marker(pytest.mark.cuda)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))


def pytest_runtest_logreport(report):
    """Leave a line for each test as it ends, for run.py: a run that is ended tells what it has seen.

    Tests that had no context are not skipped ones: their outcome is "lost".
    """
    path = os.environ.get("MEGENGINE_GPU_LINES")
    if path is None or "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    words = getattr(crash, "message", None) or str(report.longrepr or "")
    outcome = "lost" if report.skipped and LOST in words else report.outcome
    line = {"name": report.nodeid.rpartition("::")[2], "outcome": outcome, "seconds": round(report.duration, 2)}
    line["id"] = report.nodeid
    with open(path, "a") as file:
        file.write(json.dumps(line | ({"words": words[:400]} if not report.passed else {})) + "\n")


@pytest.fixture(scope="session", autouse=EMULATED)
def _emulated():
    with installed(RecordingGpu()):
        yield


@pytest.fixture(autouse=True)
def _context(request):
    """An error such as an illegal address ends the context of the process: only the test that made it has failed."""
    if _lost:
        pytest.skip(f"{LOST} {_lost[0]}")
    yield
    for one in in_use():
        try:
            one.wait()
        except Exception as exc:
            _lost.append(request.node.nodeid)
            pytest.fail(f"{LOST} this test: {type(exc).__name__}: {exc}", pytrace=False)
