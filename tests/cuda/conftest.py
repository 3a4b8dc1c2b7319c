"""Tests of this folder run on a real GPU, or are skipped with the reason.

With MEGENGINE_EMULATED_GPU=1 the processor stands in for it, to try the tests themselves.
"""

import os
from pathlib import Path

import pytest
from emulated_gpu import EmulatedGpu

from megengine.kernels import cuda
from megengine.kernels.cuda.runtime import installed

HERE = Path(__file__).parent
EMULATED = os.environ.get("MEGENGINE_EMULATED_GPU", "") not in ("", "0")


def pytest_collection_modifyitems(items):
    reason = None if EMULATED else cuda.unavailable_reason()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cuda)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))


@pytest.fixture(scope="session", autouse=EMULATED)
def _emulated():
    with installed(EmulatedGpu()):
        yield
