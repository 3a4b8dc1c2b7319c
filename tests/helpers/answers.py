"""Answers of ours beside those that were recorded."""

import numpy as np
import pytest


def same(found, wanted, where):
    """Assert that nested plain answers are equal, numbers closely."""
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
