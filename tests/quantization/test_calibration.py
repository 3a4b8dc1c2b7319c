"""Calibration runs a plan that shows values where they lie; what is seen is that of the network, in any order."""

import json
import os
import signal
import zipfile

import numpy as np
import pytest
from quant_nets import Builder, concat_net, gated_net, residual_net, transposed_net

from megengine.core.errors import CalibrationError, FileFormatError, OptionError
from megengine.plan.compiler import Plan
from megengine.quantization import QuantConfig, Statistics, collect, quantize_model
from megengine.quantization.pipeline import collect as collecting
from megengine.quantization.pipeline.calibrate import calibrate, observe_all
from megengine.quantization.pipeline.canonicalize import canonicalize
from megengine.quantization.ranges import as_batches, as_tensors
from megengine.traced_module import interpret
from megengine.traced_module.formats.archives import read_archive, write_archive

NETS = [residual_net, concat_net, gated_net, transposed_net]


def edges(stats):
    """What ranges and bias corrections are taken from, as plain values."""
    return {
        name: (
            *(one.count, one.minimum, one.maximum, one.histogram.exponent, one.histogram.first),
            one.histogram.counts.tolist(),
            one.samples.last().tolist(),
            None if one.channel_minimum is None else [one.channel_minimum.tolist(), one.channel_maximum.tolist()],
            None if one.means.settled() is None else one.means.settled().tolist(),
        )
        for name, one in stats.items()
    }


def seen(graph, data):
    return calibrate(graph, observe_all(graph, QuantConfig()), data)


@pytest.mark.parametrize("net", NETS)
def test_watched_values_are_those_of_the_ops(net):
    b, g = net()
    g = canonicalize(g)
    names = [*observe_all(g, QuantConfig())]
    got = {}
    run = Plan(g, watch={name: lambda x, name=name: got.update({name: x.copy()}) for name in names})
    wanted = {}
    for arrays in as_batches(b.data(2), g):
        assert run(*arrays) == []
        interpret(g, as_tensors(arrays, g), on_value=lambda node, x: wanted.update({node.name: x.numpy()}))
        for name in names:
            np.testing.assert_allclose(got[name], wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("net", NETS)
def test_statistics_are_the_same_in_any_order(net):
    b, g = net()
    g, data = canonicalize(g), b.data(7)
    assert edges(seen(g, data)) == edges(seen(g, [data[i] for i in (3, 0, 5, 1, 6, 4, 2)]))


def test_an_error_of_a_watcher_ends_the_run():
    b = Builder()
    g = b.done(b.conv(b.x, 4, label="layer"))
    x = b.data(1)[0]
    with pytest.raises(CalibrationError, match="1 of .* values of 'x' are NaN"):
        seen(canonicalize(g), [np.where(np.arange(x.size).reshape(x.shape) == 5, np.nan, x).astype(np.float32)])


@pytest.mark.parametrize("batched", [True, False])
def test_an_error_of_values_tells_the_sample(batched):
    _, g = one_sample_net()
    data = np.ones((4, 3, 8, 8), np.float32)
    data[2, 1, 0, 0] = np.nan
    given = [data] if batched else list(np.split(data, 4))
    for run in (quantize_model, collect):
        with pytest.raises(CalibrationError, match=r"1 of 192 values of 'x' are NaN.*\(sample 2 of the data, counted"):
            run(g, given)


def written(statistics, tmp_path, name="one.stats"):
    statistics.save(tmp_path / name)
    return (tmp_path / name).read_bytes()


def one_sample_net():
    b = Builder(shape=(1, 3, 8, 8))
    return b, b.done(b.linear(b.op("reshape", b.relu(b.conv(b.x, 4)), shape=(1, 256)), 5))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_files_are_the_same_for_any_order_batches_and_workers(workers, tmp_path):
    b, g = one_sample_net()
    data = b.data(11)
    expected = written(collect(g, data), tmp_path)
    for batches in (data[::-1], [np.concatenate(data[:4]), np.concatenate(data[4:])]):
        assert written(collect(g, batches, workers=workers), tmp_path) == expected


@pytest.mark.parametrize("net", NETS)
def test_a_file_gives_the_network_that_the_data_gives(net, tmp_path):
    b, g = net()
    data, x = b.data(3), b.data(1, seed=9)[0]
    written(collect(g, data), tmp_path)
    for config in (
        QuantConfig(),
        QuantConfig(weights="per_tensor", exclude=("op:add",) if net is residual_net else ()),
    ):
        whole = quantize_model(g, data, config)
        loaded = quantize_model(g, config=config, statistics=Statistics.load(tmp_path / "one.stats"))
        for a, c in zip(interpret(whole.integer_graph, [x]), interpret(loaded.integer_graph, [x]), strict=True):
            np.testing.assert_array_equal(a.numpy(), c.numpy())


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_run_goes_on_where_it_was(workers, tmp_path, monkeypatch):
    b, g = one_sample_net()
    data, kept, ran = b.data(9), [], []
    expected = written(collect(g, data), tmp_path)
    monkeypatch.setattr(collecting, "INTERVAL", 0.0)

    def broken():
        yield from data[:5]
        raise KeyboardInterrupt

    def keep(statistics):
        kept.append(sum(statistics.samples.values()))
        statistics.save(tmp_path / "part.stats")

    with pytest.raises(KeyboardInterrupt):
        collect(g, broken(), workers=workers, keep=keep)
    assert kept[-1] == 5
    monkeypatch.setattr(collecting._Counters, "_update", counted_update(collecting._Counters._update, ran))
    again = collect(g, data[::-1], seen=Statistics.load(tmp_path / "part.stats"))
    assert ran.count("x") == 4
    assert written(again, tmp_path) == expected


def counted_update(update, names):
    def call(self, name, together, x):
        names.append(name)
        update(self, name, together, x)

    return call


def test_a_worker_that_ends_is_named():
    b, g = one_sample_net()

    def data():
        import multiprocessing

        yield from b.data(3)
        for child in multiprocessing.active_children():
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        yield from b.data(3)

    with pytest.raises(CalibrationError, match="a worker process has ended"):
        collect(g, data(), workers=2)


def test_an_error_of_a_worker_is_raised():
    _, g = one_sample_net()
    with pytest.raises(CalibrationError, match="1 of 192 values of 'x' are NaN"):
        collect(
            g,
            [np.where(np.arange(192).reshape(1, 3, 8, 8) == i, np.nan, 1).astype(np.float32) for i in range(2)],
            workers=2,
        )


def test_statistics_of_another_network_are_refused():
    b, g = one_sample_net()
    _, other = residual_net()
    statistics = collect(g, b.data(1))
    with pytest.raises(CalibrationError, match="of another network or other weights"):
        quantize_model(other, statistics=statistics)
    with pytest.raises(CalibrationError, match="gptq needs inputs of the network"):
        quantize_model(g, config=QuantConfig(rounding="gptq"), statistics=statistics)
    with pytest.raises(CalibrationError, match="calibration needs inputs of the network"):
        quantize_model(g)
    with pytest.raises(OptionError, match="workers: expected at least 1, got 0"):
        collect(g, b.data(1), workers=0)
    with pytest.raises(CalibrationError, match="the data has no batch"):
        collect(g, [])
    fewer = Statistics(statistics.model, {"x": statistics.edges["x"]})
    with pytest.raises(CalibrationError, match="in one of them only, such as"):
        statistics.merge(fewer)


def changed(tmp_path, change):
    """A file of statistics whose JSON was changed."""
    b, g = one_sample_net()
    path = tmp_path / "bad.stats"
    collect(g, b.data(2)).save(path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    described = json.loads(parts["statistics.json"])
    change(described)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, json.dumps(described) if name == "statistics.json" else content)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), "no file of calibration statistics"),
        (lambda d: d.update(version=2), "version is 2; this program reads version 1"),
        (lambda d: d["edges"][0].update(name=d["edges"][1]["name"]), "expected a name of its own"),
        (lambda d: d["edges"].pop(), "samples or arrays are damaged"),
        (lambda d: d["edges"][0].update(count=-1), "count is -1; expected 0 to"),
        (lambda d: d["edges"][0].update(count=7), "its histogram counts .* of 7 values"),
        (lambda d: d["edges"][0].update(exponent=10**9), "exponent is 1000000000; expected -200 to 200"),
        (lambda d: d["edges"][0].update(ends=[5.0, float("nan")]), "its ends are"),
        (lambda d: d["edges"][0].update(bins=0), "bins is 0"),
        (lambda d: d["edges"][0].pop("first"), "damaged statistics .KeyError"),
    ],
)
def test_damaged_files_are_refused(change, message, tmp_path):
    path = changed(tmp_path, change)
    with pytest.raises(FileFormatError, match=message):
        Statistics.load(path)


def test_damaged_means_are_refused(tmp_path):
    b, g = one_sample_net()
    path = tmp_path / "means.stats"
    collect(g, b.data(2)).save(path)
    with path.open("rb") as file:
        described, arrays = read_archive(file, str(path), "statistics.json")
    name = next(name for name in arrays if name.endswith(".means"))
    arrays[name] = np.full_like(arrays[name], -1)
    write_archive(path, "statistics.json", json.dumps(described), arrays, zipfile.ZIP_DEFLATED)
    with pytest.raises(FileFormatError, match="its means are damaged"):
        Statistics.load(path)


def test_files_that_are_not_there_or_cut_are_refused(tmp_path):
    with pytest.raises(FileFormatError, match=r"none\.stats: no such file"):
        Statistics.load(tmp_path / "none.stats")
    content = written(collect(*(lambda b, g: (g, b.data(1)))(*one_sample_net())), tmp_path)
    for length in (0, 10, len(content) // 2, len(content) - 1):
        (tmp_path / "cut.stats").write_bytes(content[:length])
        with pytest.raises(FileFormatError):
            Statistics.load(tmp_path / "cut.stats")
