"""Lines that people write, and dtypes of results, agree with what MegEngine 1.13.0 gave (tests/recording)."""

import json
from pathlib import Path

import dtypes
import idioms
import moved_programs  # noqa: F401  (enters its own)
import numpy as np
import programs  # noqa: F401
import pytest
import scripts
import training_programs  # noqa: F401
from answers import same

import megengine
import megengine.autodiff
import megengine.functional as F
import megengine.module
import megengine.optimizer
from megengine.core.errors import ShapeError

DATA = Path(__file__).parents[1] / "data" / "recorded"
ANSWERS = json.loads((DATA / "idioms.json").read_text())
DTYPES = json.loads((DATA / "dtypes.json").read_text())


@pytest.mark.parametrize("name", scripts.IDIOMS)
def test_lines_that_people_write(name):
    same(idioms.plain(scripts.IDIOMS[name](megengine, F)), ANSWERS[name], name)


def test_dtypes_of_results():
    assert len(DTYPES) > 500
    found = {case: dtypes.dtype_of(megengine, F, case.split(" | ")) for case in DTYPES}
    assert found == DTYPES


def test_shapes_of_the_identity():
    for given in ((2, 3), [2, 3], np.array([2, 3]), megengine.tensor([2, 3])):
        np.testing.assert_array_equal(F.eye(given).numpy(), np.eye(2, 3))
    for given in ((3,), megengine.tensor(3), 3):
        np.testing.assert_array_equal(F.eye(given, dtype="int32").numpy(), np.eye(3))
    for wrong in (lambda: F.eye((1, 2, 3)), lambda: F.eye((1, 2), 3), lambda: F.eye(()), lambda: F.eye(-1)):
        with pytest.raises(ShapeError, match="eye: "):
            wrong()
