"""Most tests of CUDA kernels are slow: programs of many variants are compiled first, for the processor or for GPUs."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# run by make test, too: what joins the kernels with the rest, and the emulator
FAST = ("compiler", "cupy_runtime", "devices", "emulator", "launches", "libraries", "statistics", "verify")


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == HERE and item.path.stem.removeprefix("test_") not in FAST:
            item.add_marker(pytest.mark.slow)
