"""Lines that people write, and dtypes of results, agree with what MegEngine 1.13.0 gave (tests/recording)."""

import json
from pathlib import Path

import dtypes
import idioms
import numpy as np
import pytest
import scripts

import megengine
import megengine.autodiff
import megengine.functional as F
import megengine.module
import megengine.optimizer

DATA = Path(__file__).parents[1] / "data" / "recorded"
ANSWERS = json.loads((DATA / "idioms.json").read_text())
DTYPES = json.loads((DATA / "dtypes.json").read_text())


def same(found, wanted, where):
    assert type(found) is type(wanted), where
    if isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for k, pair in enumerate(zip(found, wanted, strict=True)):
            same(*pair, f"{where}[{k}]")
    elif isinstance(wanted, dict):
        assert (found["dtype"], found["shape"]) == (wanted["dtype"], wanted["shape"]), where
        np.testing.assert_allclose(found["values"], wanted["values"], rtol=1e-5, atol=2e-6, err_msg=where)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-5), where
    else:
        assert found == wanted, where


@pytest.mark.parametrize("name", scripts.IDIOMS)
def test_lines_that_people_write(name):
    same(idioms.plain(scripts.IDIOMS[name](megengine, F)), ANSWERS[name], name)


def test_dtypes_of_results():
    assert len(DTYPES) > 500
    found = {case: dtypes.dtype_of(megengine, F, case.split(" | ")) for case in DTYPES}
    assert found == DTYPES
