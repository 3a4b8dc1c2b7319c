"""The search for bits of layers: budgets, the way to them, going on from a file."""

import json

import pytest

from megengine.core.errors import CalibrationError, OptionError
from megengine.quantization import Budget, Point, QuantConfig, search
from megengine.quantization.pipeline import search as room
from megengine.traced_module.formats import native
from tests.helpers.quant_nets import residual_net

FAST = QuantConfig(bias_correction=False)


@pytest.fixture
def net():
    b, graph = residual_net()
    return graph, b.data(4), b.data(6)[4:]


def test_a_budget_of_bytes_is_kept(net, tmp_path):
    graph, data, judges = net
    whole = search(graph, data, judges, Budget(bytes=10**9), FAST)
    assert whole.best == whole.base, "nothing has to change"
    limit = whole.base.bytes - 100
    found = search(graph, data, judges, Budget(bytes=limit), FAST, output=tmp_path / "best.mgt")
    assert found.best.bytes <= limit < found.base.bytes
    assert not found.missed
    assert all(rule.endswith("=w4a8") for rule in found.best.rules)
    saved = native.load(tmp_path / "best.mgt")
    assert room.stored_bytes(saved.graph) == found.best.bytes


def test_a_budget_of_noise_is_kept(net):
    graph, data, judges = net
    base = search(graph, data, judges, Budget(bytes=10**9), FAST).base
    found = search(graph, data, judges, Budget(sqnr_db=base.sqnr_db + 3), FAST, finer="w8a16")
    assert found.best.sqnr_db >= base.sqnr_db + 3
    assert not found.missed


def test_what_cannot_be_kept_is_said_and_the_nearest_given(net):
    graph, data, judges = net
    found = search(graph, data, judges, Budget(bytes=10), FAST)
    assert found.missed > 1
    assert found.best.bytes == min(p.bytes for p in found.points)


def test_a_search_goes_on_where_it_ended(net, tmp_path, monkeypatch):
    graph, data, judges = net
    budget, state = Budget(bytes=400), tmp_path / "state.json"
    whole = search(graph, data, judges, budget, FAST)
    made, real = [], room.requantize

    def ends(model, config, *rest, **more):
        made.append(config.rules)
        if len(made) == 9:
            raise KeyboardInterrupt
        return real(model, config, *rest, **more)

    monkeypatch.setattr(room, "requantize", ends)
    with pytest.raises(KeyboardInterrupt):
        search(graph, data, judges, budget, FAST, state=state)
    held = json.loads(state.read_text())
    assert held["noise"]
    assert held["points"]
    done = len(made)
    again = search(graph, data, judges, budget, FAST, state=state)
    assert not {rules for rules in made[done:] if rules} & {(key,) for key in held["noise"]}, "measured once"
    assert again.best.rules == whole.best.rules
    assert again.noise == whole.noise


def test_pareto_leaves_out_what_another_beats():
    small, good, bad = (
        Point(("a=w4a8",), 10, 1.0, 9.0, 0.9),
        Point((), 20, 1.0, 20.0, 1.0),
        Point(("b=w4a8",), 20, 1.0, 8.0, 0.8),
    )
    result = room.SearchResult(good, good, (good, bad, small), {}, 0.0)
    assert result.pareto == (small, good)
    assert good.beats(bad)
    assert not good.beats(good)


def test_refusals(net, tmp_path):
    graph, data, judges = net
    with pytest.raises(OptionError, match="search: no budget"):
        Budget()
    with pytest.raises(OptionError, match="agreement is 2"):
        Budget(agreement=2)
    with pytest.raises(CalibrationError, match="no sample to judge by"):
        search(graph, data, [], Budget(bytes=1), FAST)
    state = tmp_path / "state.json"
    state.write_text("{}")
    with pytest.raises(OptionError, match="is not the state of a search"):
        search(graph, data, judges, Budget(bytes=1), FAST, state=state)
    state.write_text(json.dumps({"key": "other", "noise": {}, "points": []}))
    with pytest.raises(OptionError, match="is of another model, data or settings"):
        search(graph, data, judges, Budget(bytes=1), FAST, state=state)
