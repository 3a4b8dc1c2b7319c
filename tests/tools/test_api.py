"""MegEngine's public names and signatures: what differs has a reason, and the comparison itself can fail."""

import json
from pathlib import Path

import pytest

import megengine as mge
from megengine.tools import api

LIST = Path(__file__).parents[1] / "data" / "megengine" / "api.json"


def test_every_difference_has_a_reason(capsys):
    assert api.main([str(LIST)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("0 without a reason")


def test_few_names_are_missing():
    """At most 2 in 100, and none of the parts that models and training use."""
    listed = json.loads(LIST.read_text())
    found = api.compare(listed)
    assert len(found) <= 0.02 * len(listed)
    parts = {f.name.split(".")[1] for f in found}
    assert not parts & {"functional", "module", "optimizer", "autodiff"}


def sample(inp, weight=None, *, mode="a"):
    return inp, weight, mode


def open_ended(inp, *args, **kwargs):
    return inp, args, kwargs


@pytest.mark.parametrize(
    ("function", "recorded", "problem"),
    [
        (sample, ["inp", "weight=None"], ""),
        (sample, ["inp", "weight=None", "*", "mode='a'"], ""),
        (sample, ["inp", "bias"], "has no parameter 'bias'"),
        (sample, ["weight", "inp"], "has parameter 'weight' at place 2; expected 1"),
        (sample, ["inp=1", "weight=None"], "needs parameter 'inp', which has a default"),
        (sample, ["weight=None"], "has parameter 'weight' at place 2; expected 1"),
        (sample, ["*args"], ""),
        (open_ended, ["inp", "anything", "more=3"], ""),
        (lambda x, extra: x, ["x"], "needs parameter 'extra', which MegEngine does not have"),
    ],
)
def test_calls_are_compared(function, recorded, problem):
    assert api.accepts(function, recorded).startswith(problem)
    assert bool(api.accepts(function, recorded)) == bool(problem)


def test_what_is_missing_is_found():
    listed = {
        "megengine.module.conv.Conv2d": {
            "sig": ["in_channels"],
            "methods": {"fly": ["self"], "forward": ["self", "x"]},
        },
        "megengine.nothing": {"sig": []},
        "megengine.module.conv.relu": "megengine.functional.nn.relu",
    }
    found = {f.name: f.problem for f in api.compare(listed)}
    assert found["megengine.module.conv.Conv2d.fly"] == "is missing"
    assert found["megengine.module.conv.Conv2d.forward"] == "has no parameter 'x'"
    assert found["megengine.nothing"] == "is missing"
    assert "out_channels" in found["megengine.module.conv.Conv2d"]
    assert [f.reason for f in api.compare({"megengine.nothing": {"sig": []}})] == [""]


def test_wrong_use(capsys, tmp_path):
    assert api.main([]) == 2
    assert api.main([str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "list.json").write_text('{"megengine.nothing": {"sig": []}}')
    assert api.main([str(tmp_path / "list.json")]) == 1
    assert "NO REASON GIVEN" in capsys.readouterr().out


def test_names_left_out_say_why():
    with pytest.raises(AttributeError, match="it is called megengine.optimizer"):
        mge.optim
