"""`.tm` files written here: read back equal, and by the real MegEngine where one is named by MEGENGINE_PYTHON."""

import json
import os
import subprocess

import numpy as np
import pytest
from megengine_graphs import DATA, NETS, inputs_of, leaves, listing, traced

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError
from megengine.tensor import tensor
from megengine.traced_module import lower, save_tm, trace_module
from megengine.traced_module.passes import optimize

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
        assert listing(back) == listing(module)
        for a, b in zip(leaves(back(*given)), leaves(module(*given)), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        save_tm(back, tmp_path / "again.tm")
        assert listing(mge.load(tmp_path / "again.tm")) == listing(module)


@pytest.mark.parametrize("name", NETS)
def test_files_of_megengine_are_written_as_they_were_read(name, tmp_path):
    module = mge.load(DATA / f"{name}.tm")
    mge.save(module, tmp_path / "net.tm")
    assert listing(mge.load(tmp_path / "net.tm")) == listing(module)


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
    def __init__(self):
        super().__init__()
        self.inner = Pair()

    def forward(self, x):
        return self.inner({"b": x, "a": x + 1})


class Pair(M.Module):
    def forward(self, parts):
        return F.relu(parts["a"]) * parts["b"]


def test_what_has_no_counterpart_is_refused_and_nothing_is_written(tmp_path):
    x = tensor(np.ones((1, 3), np.float32))
    path = tmp_path / "net.tm"
    module = trace_module(Unsorted(), x)
    np.testing.assert_array_equal(module(x).numpy(), 2 * np.ones((1, 3)))
    with pytest.raises(GraphError, match=r"a dict has the keys \['b', 'a'\]"):
        mge.save(module, path)
    with pytest.raises(GraphError, match="is a graph of ops"):
        mge.save(lower(module), path)
    assert not path.exists()
