"""Calls that programs for MegEngine rely on give what MegEngine 1.13.0 gave (tests/recording/habits.py)."""

import json
from pathlib import Path

import habits
import idioms
import pytest
from answers import same

import megengine

ANSWERS = json.loads((Path(__file__).parent / "data" / "recorded" / "habits.json").read_text())


@pytest.mark.parametrize("name", habits.HABITS)
def test_habits(name):
    same(idioms.plain(habits.HABITS[name](megengine)), ANSWERS[name], name)
