"""`.tm` files written here: read back equal, and by the real MegEngine where one is named by MEGENGINE_PYTHON."""

import json
import logging
import os
import pickletools
import subprocess
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from megengine_graphs import DATA, NETS, inputs_of, leaves, listing, traced, without_ids

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core import pytree
from megengine.core.errors import GraphError
from megengine.tensor import tensor
from megengine.traced_module import lower, save_tm, trace_module
from megengine.traced_module.formats import tm_writing
from megengine.traced_module.formats.tm_lowering import FUNCTIONS
from megengine.traced_module.passes import optimize
from megengine.traced_module.pytree import register_supported_type

THERE = """
import json, sys
import numpy as np
import megengine as mge

def flat(value):
    if isinstance(value, dict):
        return [y for k in value for y in flat(value[k])]
    if isinstance(value, (list, tuple)):
        return [y for x in value for y in flat(x)]
    return [value.numpy()]

module = mge.load(sys.argv[1])
given = np.load(sys.argv[2])
found = flat(module(*[mge.tensor(given["arr_%d" % i]) for i in range(len(given.files))]))
np.savez(sys.argv[3], *found)
json.dump([[n._name, n._qualname] for n in module.graph.nodes()], open(sys.argv[4], "w"))
"""


QUANTIZED = ["res_fused_qat", "res_fused_q"]  # networks of MegEngine: read, written, read again


def variants(name):
    if name in QUANTIZED:
        return {kind: mge.load(DATA / f"{name}{kind}.tm") for kind in ("", "_flat")}
    module = traced(name)
    return {"": module, "_flat": module.flatten(), "_opt": optimize(module)}


@pytest.mark.parametrize("name", [*NETS, *QUANTIZED])
def test_what_is_written_is_read_back(name, tmp_path):
    given = [tensor(x) for x in inputs_of(name)]
    for kind, module in variants(name).items():
        path = tmp_path / f"{name}{kind}.tm"
        mge.save(module, path)
        back = mge.load(path)
        assert without_ids(listing(back)) == without_ids(listing(module))
        for a, b in zip(leaves(back(*given)), leaves(module(*given)), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        save_tm(back, tmp_path / "again.tm")
        assert listing(mge.load(tmp_path / "again.tm")) == listing(back)


@pytest.mark.parametrize("name", NETS)
def test_files_of_megengine_are_written_as_they_were_read(name, tmp_path):
    module = mge.load(DATA / f"{name}.tm")
    mge.save(module, tmp_path / "net.tm")
    assert listing(mge.load(tmp_path / "net.tm")) == listing(module)


@pytest.mark.megengine
@pytest.mark.parametrize("name", [*NETS, *QUANTIZED])
def test_the_real_megengine_reads_it(name, tmp_path):
    python = os.environ.get("MEGENGINE_PYTHON")
    if not python:
        pytest.skip("MEGENGINE_PYTHON names no Python with MegEngine 1.13")
    given = inputs_of(name)
    np.savez(tmp_path / "in.npz", *given)
    for kind, module in variants(name).items():
        mge.save(module, tmp_path / f"net{kind}.tm")
        arguments = [tmp_path / f for f in (f"net{kind}.tm", "in.npz", "out.npz", "names.json")]
        done = subprocess.run(
            [python, "-c", THERE, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr[-2000:]
        with np.load(tmp_path / "out.npz") as there:
            for i, here in enumerate(leaves(module(*map(tensor, given)))):
                scale = max(np.abs(here.numpy()).max(), 1)
                np.testing.assert_allclose(there[f"arr_{i}"], here.numpy(), rtol=0, atol=1e-5 * scale)
        names = json.loads((tmp_path / "names.json").read_text())
        assert sorted(map(tuple, names)) == sorted((n.name, n.qualname) for n in module.graph.nodes())


class Unsorted(M.Module):
    """Dicts as arguments and results whose keys come in another order than MegEngine's, and options that do."""

    def __init__(self, first="b", second="a"):
        super().__init__()
        self.inner, self.first, self.second = Pair(first, second), first, second

    def forward(self, x):
        found = self.inner({self.first: x, self.second: x + F.ones(3, dtype="float32", device="xpux")}, 2.0)
        return {"z": found["sum"] + 1, "y": [found["product"]]}


class Pair(M.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, parts, factor):
        product = F.relu(parts[self.second]) * parts[self.first] * factor
        return {"sum": parts[self.first] - parts[self.second] * 3, "product": product}


@pytest.mark.megengine
def test_dicts_are_written_in_megengines_order(tmp_path):
    x = tensor(np.arange(-2, 4, dtype=np.float32).reshape(2, 3))
    module = trace_module(Unsorted(), x)
    for kind, each in {"": module, "_flat": module.flatten()}.items():
        path = tmp_path / f"net{kind}.tm"
        mge.save(each, path)
        back = mge.load(path)
        back.graph.lint()
        found, want = back(x), Unsorted()(x)
        assert list(found) == ["y", "z"]
        np.testing.assert_array_equal(found["z"].numpy(), want["z"].numpy())
        np.testing.assert_array_equal(found["y"][0].numpy(), want["y"][0].numpy())
        python = os.environ.get("MEGENGINE_PYTHON")
        if python:
            np.savez(tmp_path / "in.npz", x.numpy())
            arguments = [path, *(tmp_path / f for f in ("in.npz", "out.npz", "names.json"))]
            subprocess.run([python, "-c", THERE, *map(str, arguments)], check=True, cwd=tmp_path)
            with np.load(tmp_path / "out.npz") as there:
                for i, key in enumerate(("y", "z")):
                    np.testing.assert_array_equal(there[f"arr_{i}"], leaves(found[key])[0].numpy())


def test_what_has_no_counterpart_is_refused_and_nothing_is_written(tmp_path):
    x = tensor(np.ones((1, 3), np.float32))
    path = tmp_path / "net.tm"
    module = trace_module(Unsorted("b", 1), x)
    with pytest.raises(GraphError, match=r"the keys \['b', 1\] of a dict have no order"):
        mge.save(module, path)
    with pytest.raises(GraphError, match="is a graph of ops"):
        mge.save(lower(module), path)
    assert not path.exists()


class Nothing(M.Module):
    """Results that are no tensors, of a function and of the whole."""

    def __init__(self):
        super().__init__()
        self.attention = M.MultiHeadAttention(4, 2)

    def forward(self, x):
        y, weights = self.attention(x, x, x)
        return {"y": y, "weights": weights, "n": (y + 1, 3, "text")}


def test_results_that_are_no_tensors_are_kept(tmp_path):
    x = tensor(np.ones((1, 3, 4), np.float32))
    module = trace_module(Nothing().eval(), x)
    mge.save(module, tmp_path / "net.tm")
    back = mge.load(tmp_path / "net.tm")
    found, want = back(x), module(x)
    assert found["weights"] is want["weights"] is None
    assert found["n"][1:] == (3, "text")
    np.testing.assert_array_equal(found["y"].numpy(), want["y"].numpy())


def lacking() -> list[str]:
    known = json.loads((DATA.parent / "api.json").read_text())
    layers = [n for n, k in vars(M).items() if isinstance(k, type) and issubclass(k, M.Module)]
    return [n for n in layers if f"megengine.module.{n}" not in known]


def test_layers_that_megengine_lacks_become_functions(tmp_path):
    assert sorted(lacking()) == sorted(tm_writing._UNKNOWN_THERE)
    x = tensor(np.linspace(-8, 8, 24, dtype=np.float32).reshape(2, 12))
    for kind in FUNCTIONS:
        act = kind()
        module = trace_module(M.Sequential(M.Linear(12, 12), act, M.Linear(12, 12), act), x)
        before = listing(module)
        for kind, each in {"": module, "_flat": module.flatten()}.items():
            mge.save(each, tmp_path / f"net{kind}.tm")
            back = mge.load(tmp_path / f"net{kind}.tm")
            assert [n.name for n in back.graph.nodes()] == [n for n in names_of(each) if n not in ("_1", "_3")]
            assert not back.graph.get_module_by_type(type(act)) and not hasattr(back, "1")
            np.testing.assert_array_equal(back(x).numpy(), module(x).numpy())
        assert listing(module) == before


def names_of(module):
    return [n.name for n in module.graph.nodes()]


def test_what_megengine_will_not_run_is_told(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(tm_writing, "get_logger", lambda name: SimpleNamespace(warning=said.append))
    x = tensor(np.ones((1, 3, 4), np.float32))
    mge.save(trace_module(Nothing().eval(), x), tmp_path / "net.tm")
    assert "gives None or numbers beside tensors, as attention_out does" in said.pop()


class PoolsAll(M.Module):
    def forward(self, x):
        return F.avg_pool2d(x, x.shape[2:]), F.max_pool2d(x, (x.shape[2], 2), stride=x.shape[2:])


def test_a_shape_as_a_window_is_written_as_lengths(tmp_path):
    x = tensor(np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32))
    module = trace_module(PoolsAll(), x)
    mge.save(module, tmp_path / "net.tm")
    back = mge.load(tmp_path / "net.tm")
    pool = back.graph.get_function_by_type(F.avg_pool2d).as_unique()
    assert [n.expr.kind for n in pool.named_args["kernel_size"]] == ["CallMethod", "CallMethod"]
    for size in ((2, 3, 4, 6), (1, 3, 5, 5)):  # it still follows the input
        x = tensor(np.random.default_rng(1).standard_normal(size).astype(np.float32))
        for a, b in zip(back(x), module(x), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


class Casts(M.Module):
    def forward(self, x):
        return x.astype(np.float16), x.astype(bool), x.astype(int), F.zeros((2,), dtype=np.int8), x.astype(np.bool_)


def test_classes_of_numbers_as_dtypes(tmp_path):
    """`x.astype(np.float32)`, which MegEngine's files hold as the class."""
    x = tensor([[1.0, 0.0, -3.0]])
    module = trace_module(Casts(), x)
    mge.save(module, tmp_path / "net.tm")
    back = mge.load(tmp_path / "net.tm")
    assert repr(back) == repr(module)
    for a, b in zip(back(x), Casts()(x), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), strict=True)
    named = {word for _, word, _ in pickletools.genops((tmp_path / "net.tm").read_bytes())}
    assert {"numpy", "float16", "bool_", "builtins", "bool", "int"} <= named


def test_operators_have_the_arguments_that_megengine_gives_them():
    class Product(M.Module):
        def forward(self, x):
            return x @ x

    module = trace_module(Product(), tensor(np.eye(3, dtype=np.float32)))
    assert repr(module.graph.exprs().as_list()[-1]).endswith("x.__matmul__(x, )")


class Halves(NamedTuple):
    first: Any
    second: Any


class GivesHalves(M.Module):
    def forward(self, x):
        return Halves(x + 1, [x * 2])


class UsesHalves(M.Module):
    def __init__(self):
        super().__init__()
        self.pair = GivesHalves()

    def forward(self, x):
        found = self.pair(x)
        return found.first * found[1][0]


@pytest.mark.parametrize("kind", [GivesHalves, UsesHalves])
def test_named_tuples_are_written_as_tuples(kind, tmp_path, caplog):
    x = tensor([1.0, 2.0])
    module = trace_module(kind(), x)
    with caplog.at_level(logging.WARNING, "megengine"):
        mge.save(module, tmp_path / "net.tm")
    assert "Halves is written as a plain tuple" in caplog.text
    for a, b in zip(leaves(mge.load(tmp_path / "net.tm")(x)), leaves(kind()(x)), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


class Box:
    def __init__(self, value):
        self.value = value


def test_other_containers_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pytree, "_NODES", dict(pytree._NODES))
    register_supported_type(Box, lambda box: ([box.value], None), lambda children, aux: Box(children[0]))

    class GivesBox(M.Module):
        def forward(self, x):
            return Box(x * 2)

    module = trace_module(GivesBox(), tensor([1.0]))
    with pytest.raises(GraphError, match=r"a Box is among arguments or results; .* tuples, lists and dicts .*\.mgt"):
        mge.save(module, tmp_path / "net.tm")
    assert not list(tmp_path.iterdir())


class Watched(M.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.capped = M.Sequential(M.Linear(4, 4), M.ReLU()), M.Sequential(M.ReLU6())

    def forward(self, x):
        return self.capped(self.inner(x)) * 2


def test_watch_and_end_points_are_kept_at_every_level(tmp_path):
    x = mge.tensor(np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32))
    traced = trace_module(Watched(), x)
    paths = ["inner._0_out", "capped._0_out", "mul_out"]
    traced.set_watch_points(paths)
    traced.set_end_points(paths[:2])
    traced.inner.set_watch_points("_1_out")
    mge.save(traced, tmp_path / "a.tm")
    read = mge.load(tmp_path / "a.tm")
    assert [n.name for n in read.watch_points] == [n.name for n in traced.watch_points]
    assert read.end_points == [read.graph.node(path) for path in paths[:2]]
    assert read.inner.watch_points == [read.inner.graph.node("_1_out")]
    for got, want in zip(read(x), traced(x), strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())
    gone = traced.graph.outputs[0]
    with traced.graph.insert_exprs():
        traced.graph.replace_node({gone: gone.expr.inputs[0] + 1})
    traced.graph.compile()
    with pytest.raises(GraphError, match="watch_points hold 'mul_out', which is not a node of the module any more"):
        mge.save(traced, tmp_path / "b.tm")
