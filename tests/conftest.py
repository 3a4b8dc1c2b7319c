"""Every test leaves the process as it found it, as far as that is cheap to see."""

import pytest

from megengine.dispatch.apply import active_interposers


@pytest.fixture(autouse=True)
def _nobody_keeps_recording():
    before = active_interposers()
    assert before == (), "a module of tests began to record when it was imported"
    yield
    assert active_interposers() == (), "the test leaves a tape recording, which would slow down all that follow"
