"""Every test leaves the process as it found it, as far as that is cheap to see, and finds the same random numbers."""

import pytest

import megengine
import megengine.random
from megengine.dispatch.apply import active_interposers


def pytest_collectstart(collector):
    """Weights of networks that a file makes when it is imported are the same whichever files are run."""
    if isinstance(collector, pytest.Module):
        megengine.random.seed(0)


@pytest.fixture(autouse=True)
def _the_same_random_numbers():
    megengine.random.seed(0)


@pytest.fixture(autouse=True)
def _the_same_default_device():
    before = megengine.get_default_device()
    yield
    if megengine.get_default_device() != before:
        megengine.set_default_device(before)


@pytest.fixture(autouse=True)
def _nobody_keeps_recording():
    before = active_interposers()
    assert before == (), "a module of tests began to record when it was imported"
    yield
    assert active_interposers() == (), "the test leaves a tape recording, which would slow down all that follow"
