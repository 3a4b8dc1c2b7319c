"""Every test leaves the process as it found it, as far as that is cheap to see, and finds the same random numbers."""

import gc
import os
import sys

import pytest
from hypothesis import HealthCheck, settings

import megengine
import megengine.random
from megengine import device as devices
from megengine.dispatch.apply import active_interposers

for _name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(_name, None)  # what the terminal of whoever runs the tests says of itself
os.environ["MEGENGINE_TUNE_CACHE"] = "off"  # what was measured while other programs ran
_WRITES_NOT = pytest.StashKey[bool]()


# the same examples everywhere, however long one takes
settings.register_profile(
    "tests", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


def pytest_collectstart(collector):
    """Weights of networks that a file makes when it is imported are the same whichever files are run."""
    if isinstance(collector, pytest.Module):
        megengine.random.seed(0)


def pytest_collection(session):
    gc.disable()  # nearly all of what is made now stays
    session.stash[_WRITES_NOT] = sys.dont_write_bytecode
    sys.dont_write_bytecode = False  # the modules of tests, which pytest rewrites, are compiled once


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Tests that ask for more time come first: at the end, one of them would leave the other processors idle."""
    asked = {id(item): mark.args[0] for item in items if (mark := item.get_closest_marker("timeout"))}
    items.sort(key=lambda item: -asked.get(id(item), 0))


def pytest_collection_finish(session):
    """Tens of thousands of tests are more than a million objects, which every later collection would walk through."""
    sys.dont_write_bytecode = session.stash[_WRITES_NOT]
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _the_process_stays_as_it_is():
    megengine.random.seed(0)
    meaning = [(names, [*names]) for names in (devices._default, devices._xpu)]
    assert active_interposers() == (), "a module of tests began to record when it was imported"
    yield
    for names, before in meaning:  # to set xpux again would find a GPU
        names[:] = before
    assert active_interposers() == (), "the test leaves a tape recording, which would slow down all that follow"
