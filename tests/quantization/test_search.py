"""The search for bits of layers: budgets, the way to them, going on from a file."""

import itertools
import json

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine.core.errors import CalibrationError, OptionError
from megengine.quantization import Budget, LatencyTable, Point, QuantConfig, quantize_model, search
from megengine.quantization.pipeline import search as room
from megengine.quantization.pipeline.mixing import Mixer
from megengine.quantization.pipeline.search_judging import Judge, Judged
from megengine.tensor import Tensor
from megengine.traced_module import TracedModule, trace_module
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
    kept = search(graph, data, judges, Budget(bytes=limit, sqnr_db=1), FAST)
    assert kept.best == found.best or kept.best.bytes <= limit
    assert not any(key.endswith("16") for key in kept.noise), "results are not looked at where the accuracy is kept"


def test_a_budget_of_noise_is_kept(net):
    graph, data, judges = net
    base = search(graph, data, judges, Budget(bytes=10**9), FAST).base
    found = search(graph, data, judges, Budget(sqnr_db=base.sqnr_db + 2), FAST, finer="w8a16")
    assert found.best.sqnr_db >= base.sqnr_db + 2
    assert not found.missed


def test_what_cannot_be_kept_is_said_and_the_nearest_given(net):
    graph, data, judges = net
    found = search(graph, data, judges, Budget(bytes=10), FAST)
    assert found.missed > 1
    assert found.best.bytes == min(p.bytes for p in found.points)


@pytest.mark.parametrize(("stage", "number"), [("calibrate", 2), ("sensitivity", 3), ("networks", 2)])
def test_a_search_goes_on_where_it_ended(net, tmp_path, stage, number):
    graph, data, judges = net
    budget, state, output = Budget(bytes=400, sqnr_db=60), tmp_path / "state.json", tmp_path / "best.mgt"
    whole = search(graph, data, judges, budget, FAST)

    def ends(name, done, total):
        if (name, done) == (stage, number):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(graph, data, judges, budget, FAST, state=state, output=output, progress=ends)
    if stage == "calibrate":
        assert not state.exists()
    else:
        held = json.loads(state.read_text())
        known = [Point(**{**one, "rules": tuple(one["rules"])}) for one in held["points"]]
        assert room.stored_bytes(native.load(output).graph) in {one.bytes for one in known}
    again = search(graph, data, judges, budget, FAST, state=state, output=output)
    assert (again.best.rules, again.best.sqnr_db, again.noise) == (whole.best.rules, whole.best.sqnr_db, whole.noise)
    assert room.stored_bytes(native.load(output).graph) == again.best.bytes


def test_what_a_file_holds_is_not_measured_again(net, tmp_path):
    graph, data, judges = net
    budget, state, output = Budget(bytes=400), tmp_path / "state.json", tmp_path / "best.mgt"
    found = search(graph, data, judges, budget, FAST, state=state)
    held = json.loads(state.read_text())
    held["noise"] = dict.fromkeys(held["noise"], 0.25)
    held["points"][0]["latency_ms"] = 123.0
    state.write_text(json.dumps(held))
    again = search(graph, data, judges, budget, FAST, state=state, output=output)
    assert set(again.noise.values()) == {0.25}
    assert again.base.latency_ms == 123.0
    assert room.stored_bytes(native.load(output).graph) == again.best.bytes, "a file that is gone is written again"
    assert len(again.points) >= len(found.points)


def test_time_is_used_for_accuracy(net):
    graph, data, judges = net
    found = search(graph, data, judges, Budget(sqnr_db=200, latency=1000), FAST)
    assert found.best.sqnr_db > found.base.sqnr_db + 2, "all results of 16 bits"
    assert len(found.best.rules) > 2
    assert all(rule.endswith("=w8a16") for rule in found.best.rules)
    none = search(graph, data, judges, Budget(sqnr_db=200, latency=1e-9), FAST)
    assert none.best == none.base


def test_a_table_stands_for_measuring(net, tmp_path):
    graph, data, judges = net
    budget = Budget(sqnr_db=200, latency=1000)
    measured = search(graph, data, judges, budget, FAST)
    for name in ("t.csv", "t.json"):
        measured.table.save(tmp_path / name)
        assert LatencyTable.load(tmp_path / name).rows == measured.table.rows
    rows = dict.fromkeys(measured.table.rows, 1.0)
    for row in rows:
        rows[row] = 1.0 + row[2].split().count("16")
    table = LatencyTable(rows, "t.csv")
    found = search(graph, data, judges, budget, FAST, table=table)
    for point in found.points:
        mixed = Mixer(quantize_model(graph, data, FAST)).network([tuple(r.split("=")) for r in point.rules])
        assert point.latency_ms == table.of(mixed)
    small = search(graph, data, judges, Budget(sqnr_db=200, latency=1.5), FAST, table=table)
    assert small.base.latency_ms < small.best.latency_ms <= 1.5 * small.base.latency_ms
    layer = next(row for row in rows if row[0] == "qconv2d")
    lacking = LatencyTable({row: ms for row, ms in rows.items() if row != layer}, "mine.csv")
    with pytest.raises(OptionError, match=r"latency table 'mine.csv': 1 layer not found, .*--save-latencies FILE"):
        search(graph, data, judges, budget, FAST, table=lacking)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "op,shape,bits\nq,1,8\n", "row 1: no ms; expected columns op, shape, bits, ms"),
        ("a.csv", "op,shape,bits,ms\nq,1,8,-1\n", "row 1: ms is '-1'; expected milliseconds from 0 on"),
        ("a.json", '[{"op": "q", "shape": "1", "bits": "8", "ms": "fast"}]', "row 1: ms is 'fast'"),
        ("a.json", "[3]", "row 1: no op, shape, bits, ms"),
        ("a.json", "{}", "no rows; expected columns"),
        ("a.json", "[", "cannot be read"),
        ("gone.csv", None, "no such file"),
    ],
)
def test_tables_that_are_none(tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(OptionError, match="latency table") as error:
        LatencyTable.load(tmp_path / name)
    assert said in str(error.value)


def test_agreement_is_that_which_noise_leaves():
    rng = np.random.default_rng(5)
    exact = rng.normal(0, 2, (4000, 10))
    noise = rng.normal(0, 0.3, exact.shape)
    true = np.mean((exact + noise).argmax(-1) == exact.argmax(-1))
    few = Judge(list(exact[:60, None]))
    assert few.judged.samples == 60 > few.judged.judging > 40
    expected, counted = few.agreement(list((exact + noise)[:60, None]))
    everything = Judge(list(exact[:, None]))
    sure = everything.counts
    many = np.mean(((exact + noise).argmax(-1) == exact.argmax(-1))[sure])
    assert many > true, "ties are left out"
    assert expected == pytest.approx(many, abs=0.02)
    low, high = few.judged.interval(counted)
    assert low < many < high
    assert everything.agreement(list((exact + noise)[:, None]))[0] == pytest.approx(many, abs=0.01)
    assert few.agreement(list(exact[:60, None])) == (1.0, 1.0)
    turned = few.agreement(list(-exact[:60, None]))
    assert turned[1] == 0 and turned[0] < 0.1, "what samples show to be wrong is not expected"


def test_ties_judge_where_there_is_little_else():
    flat = np.zeros((30, 4))
    flat[:, 0] = 1e-3
    judge = Judge(list(flat[:, None]))
    assert (judge.judged.samples, judge.judged.judging) == (30, 30)
    probabilities = np.array([[0.6, 0.4], [0.51, 0.49]] * 20)
    assert Judge(list(probabilities[:, None])).judged.judging == 20


def test_an_interval_is_wilsons():
    for equal, count in ((45, 50), (50, 50), (0, 7), (3, 4)):
        low, high = Judged(90, count).interval(equal / count)
        for end in (low, high):  # as far from the share as 1.96 standard deviations of shares around it
            away = 1.96**2 * end * (1 - end) / count
            assert (end - equal / count) ** 2 == pytest.approx(away, abs=1e-12)
        assert 0 <= low <= equal / count <= high <= 1 and high - low > 0.05


def test_the_largest_gain_that_fits_is_found():
    rng = np.random.default_rng(3)
    for count in (1, 4, 9):
        names = [(str(i), "w8a16") for i in range(count)]
        gains, costs = ({n: float(x) for n, x in zip(names, rng.random(count), strict=True)} for _ in range(2))
        sets = [s for k in range(count + 1) for s in itertools.combinations(names, k)]
        for most in (0.5, 1.7, 3.0):
            best = max(sum(gains[n] for n in s) for s in sets if sum(costs[n] for n in s) <= 0.97 * most)
            found = room._knapsack(gains, costs, most)
            assert sum(costs[n] for n in found) <= most
            assert sum(gains[n] for n in found) >= best
    assert room._knapsack({("a", "w8a16"): 1.0}, {("a", "w8a16"): -1.0}, 0.1) == [("a", "w8a16")]


def test_a_layer_may_have_a_smaller_weight_and_a_finer_result(net):
    graph, data, judges = net
    least = search(graph, data, judges, Budget(bytes=10), FAST).best
    both = search(graph, data, judges, Budget(bytes=least.bytes, sqnr_db=200), FAST).best
    assert both.bytes == least.bytes
    assert both.sqnr_db > least.sqnr_db
    mixer = Mixer(quantize_model(graph, data, FAST))
    assert mixer.rules([("a", "w4a8"), ("b", "w4a8"), ("a", "w8a16")]) == ("a=w4a16", "b=w4a8")


def test_mixed_networks_are_those_of_their_rules(net):
    graph, data, judges = net
    found = search(graph, data, judges, Budget(bytes=400, sqnr_db=60), QuantConfig())
    for point in found.points[1:4]:
        made = quantize_model(graph, data, QuantConfig(rules=point.rules))
        assert room.stored_bytes(made.integer_graph) == point.bytes
        exact, got = ([np.asarray(run(x)) for x in judges] for run in (TracedModule.from_graph(graph), made))
        noise = sum(np.square(a - b).sum() for a, b in zip(exact, got, strict=True))
        ratio = 10 * np.log10(sum(np.square(a).sum() for a in exact) / noise)
        assert ratio == pytest.approx(point.sqnr_db, abs=0.01)


def test_the_best_network_is_quantized_anew_with_its_rules(tmp_path):
    """Channels of very different size: equalized otherwise where results have 16 bits."""
    b, graph = residual_net()
    weight = next(e.inputs[1].expr for e in graph.exprs() if getattr(e, "op", "") == "conv2d")
    weight.value._reset(
        Tensor(weight.value.numpy() * np.geomspace(1, 40, len(weight.value.numpy()))[:, None, None, None])
    )
    data, judges, config = b.data(12), b.data(18)[12:], QuantConfig.of("balanced")
    files = {"state": tmp_path / "state.json", "output": tmp_path / "best.mgt"}
    found = search(graph, data, judges, Budget(sqnr_db=200, latency=1000), config, **files)
    anew, in_turn = (p for p in found.points if p.anew)
    assert (anew.anew, in_turn.anew) == ("gptq", "gptaq")
    assert found.best.rules == anew.rules
    assert found.best.sqnr_db == max(p.sqnr_db for p in found.points)
    made = quantize_model(graph, data, config.changed(rules=anew.rules))
    chose = [x for at, x in enumerate(judges, 1) if at % room.TELLING]
    exact, got = ([np.asarray(run(x)) for x in chose] for run in (TracedModule.from_graph(graph), made))
    noise = sum(np.square(a - b).sum() for a, b in zip(exact, got, strict=True))
    assert anew.sqnr_db == pytest.approx(10 * np.log10(sum(np.square(a).sum() for a in exact) / noise), abs=0.01)
    files["output"].unlink()
    again = search(graph, data, judges, Budget(sqnr_db=200, latency=1000), config, **files)
    assert (again.best, again.points) == (found.best, found.points)
    assert room.stored_bytes(native.load(files["output"]).graph) == found.best.bytes


def test_samples_that_chose_nothing_tell_of_the_best_network(net, tmp_path):
    graph, data, _ = net
    judges = [np.asarray(x) for x in residual_net()[0].data(22)[4:]]  # each of two samples
    budget, output = Budget(bytes=400), tmp_path / "best.mgt"
    found = search(graph, data, judges, budget, FAST, output=output)
    assert (found.judged.samples, found.told.samples) == (24, 12)
    written = native.load(output)
    answers = [
        [np.asarray(run(x)).argmax(-1) for x in judges[2::3]] for run in (TracedModule.from_graph(graph), written)
    ]
    same = int(np.equal(*map(np.concatenate, answers)).sum())
    assert found.told.same == same and found.told.share == same / 12
    low, high = found.told.interval
    assert low < found.told.share <= high
    others = [x if at % 3 else np.zeros_like(x) for at, x in enumerate(judges, 1)]
    alike = search(graph, data, others, budget, FAST)
    assert (alike.best.rules, alike.noise) == (found.best.rules, found.noise)
    assert search(graph, data, judges[:2], budget, FAST).told.samples == 0


def test_ties_are_told_apart_but_counted():
    exact = np.zeros((60, 1, 3))
    exact[:, 0, 0] = np.where(np.arange(60) < 30, 3.0, 0.001)
    got = exact.copy()
    got[30:40, 0, 1] = 1.0
    told = Judge(list(exact)).told(list(got))
    assert (told.samples, told.same, told.sure, told.sure_same) == (60, 50, 30, 30)


def test_layers_of_the_best_network_are_rounded_in_turn_too(net):
    graph, data, judges = net
    budget = Budget(bytes=400)
    found = search(graph, data, judges, budget, QuantConfig.of("balanced", equalize=False))
    assert {p.anew for p in found.points} == {"", "gptq", "gptaq"}
    assert {p.anew for p in search(graph, data, judges, budget, FAST).points} == {"", "nearest"}


def test_the_least_noise_that_saves_enough_is_found():
    rng = np.random.default_rng(7)
    names = [(str(i), "w4a8") for i in range(9)]
    saved = {n: int(x) for n, x in zip(names, rng.integers(10, 1000, 9), strict=True)}
    noise = {n: float(x) for n, x in zip(names, rng.random(9), strict=True)}
    sets = [s for k in range(10) for s in itertools.combinations(names, k)]
    for least in (0, 1, 700, 2500, sum(saved.values()), 10**6):
        fit = [s for s in sets if sum(saved[n] for n in s) >= least] or [names]
        found = room._that_save(least, saved, noise)
        assert sum(saved[n] for n in found) >= min(least, sum(saved.values()))
        assert sum(noise[n] for n in found) == pytest.approx(min(sum(noise[n] for n in s) for s in fit), rel=0.02)


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
    with pytest.raises(OptionError, match="search: sqnr_db is nan; expected a finite number or None"):
        Budget(sqnr_db=float("nan"))
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
    state.write_text(json.dumps({"key": "other", "noise": {}, "cost": {}, "steps": {}, "points": [], "table": []}))
    with pytest.raises(OptionError, match="is of another model, data or settings"):
        search(graph, data, judges, Budget(bytes=1), FAST, state=state)


def test_networks_with_ops_of_several_results():
    """The latency of a step was looked up by its one result."""
    traced = trace_module(Chooser().eval(), Tensor(np.zeros((1, 3, 8, 8), np.float32)))
    data = np.random.default_rng(0).standard_normal((6, 1, 3, 8, 8)).astype(np.float32)
    found = search(traced, data[:4], data[4:], Budget(sqnr_db=45), FAST)
    assert found.best.sqnr_db >= 45 and any("topk" in op for op, *_ in found.table.rows)


class Chooser(M.Module):
    """The greatest of some means."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = M.Conv2d(3, 8, 3), M.Linear(3, 4)

    def forward(self, x):
        return self.last(F.topk(F.mean(F.relu(self.conv(x)), (2, 3)), 3, descending=True)[0])
