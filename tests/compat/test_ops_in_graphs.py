"""Ops that a program applies itself: recorded, printed, lowered, written and read, here and by MegEngine 1.13.0."""

# pyright: reportCallIssue=false, reportArgumentType=false

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import megengine as mge
import megengine.module as M
import megengine.traced_module as tm
from megengine.core._imperative_rt.core2 import apply
from megengine.core.errors import FileFormatError
from megengine.core.ops import builtin as B
from megengine.dispatch import opdefs
from megengine.traced_module.expr import CallFunction, is_apply_def
from megengine.traced_module.ir.queries import applied

DATA = Path(__file__).parents[1] / "data" / "megengine" / "applied"
MEGENGINE_PYTHON = os.environ.get("MEGENGINE_PYTHON")


class Applies(M.Module):
    def forward(self, x):
        rows = mge.tensor(np.array([2, 0], np.int32))
        one, three = mge.tensor(1, dtype="int32"), mge.tensor(3, dtype="int32")
        picture = x.reshape(1, 1, 4, 4)
        return (
            apply(B.Elemwise("ADD"), x, x)[0],
            apply(B.Reduce(mode="SUM", axis=1, keepdim=False), x)[0],
            apply(B.Convolution(pad_h=1, pad_w=1), picture, mge.tensor(np.ones((2, 1, 3, 3), np.float32)))[0],
            apply(B.Subtensor(items=[(1, True, True, False, False)]), x, one, three)[0],
            apply(B.IndexingMultiAxisVec(items=[(0, False, False, False, True)]), x, rows)[0],
            apply(B.TypeCvt(dtype="int32"), x)[0],
            apply(B.Concat(axis=1), x, x)[0],
            apply(B.GetVarShape(axis=1), x)[0],
            apply(B.Pooling(mode="AVERAGE"), picture)[0],
            *apply(B.TopK(mode="VALUE_IDX_SORTED"), x, one),
        )


INPUTS = (np.arange(16, dtype=np.float32).reshape(4, 4),)


def outputs(model):
    return [t.numpy() for t in model(*map(mge.tensor, INPUTS))]


def agree(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.fixture(scope="module")
def traced():
    return tm.trace_module(Applies(), *map(mge.tensor, INPUTS))


def test_an_applied_op_is_one_expression_with_megengines_names(traced):
    """Names of results as MegEngine gives them: the op, or its mode, in small letters."""
    ops = [e for e in traced.graph.exprs() if isinstance(e, CallFunction) and e.qualified.startswith(opdefs.PREFIX)]
    names = [n.name for e in ops for n in e.outputs]
    assert names[:4] == ["add_out", "reduce_out", "convolution_out", "subtensor_out"]
    assert names[-2:] == ["topk_out", "topk_out_1"]
    assert ops[0].outputs[0].qualname == "Applies.[def_add]"
    assert ops[1].outputs[0].qualname == "Applies.[def_reduce]"
    assert "Reduce(x, axis=1, data_type=DEFAULT, keepdim=False, mode=SUM)" in str(traced.graph)
    assert [is_apply_def(e, "Reduce") for e in ops[:2]] == [False, True]
    assert is_apply_def(ops[0], "Elemwise") and applied(traced.graph, "TopK").as_unique() is ops[-1]


def test_traced_and_lowered_ops_compute_the_same(traced):
    wanted = outputs(Applies())
    agree(outputs(traced), wanted)
    lowered = tm.lower(traced)
    assert not any(isinstance(e, CallFunction) for e in lowered.graph.exprs())
    agree(outputs(lowered), wanted)


@pytest.mark.parametrize("suffix", ["mgt", "tm"])
def test_files_keep_applied_ops(traced, tmp_path, suffix):
    mge.save(traced, tmp_path / f"net.{suffix}")
    again = mge.load(tmp_path / f"net.{suffix}")
    assert str(again.graph) == str(traced.graph)
    agree(outputs(again), outputs(traced))


def test_a_new_process_reads_a_file_with_ops(traced, tmp_path):
    """Nothing but the file names the op classes."""
    import sys

    mge.save(traced, tmp_path / "net.tm")
    mge.save(traced, tmp_path / "net.mgt")
    code = "import sys, megengine as mge\nfor p in sys.argv[1:]: assert 'Reduce(' in str(mge.load(p).graph)"
    files = [str(tmp_path / name) for name in ("net.tm", "net.mgt")]
    subprocess.run([sys.executable, "-c", code, *files], check=True, timeout=60)


def test_ops_in_megengines_files_are_read():
    """A file that 1.13.0 wrote: Elemwise, Reduce, FakeQuant, TopK."""
    model, recorded = mge.load(DATA / "ops.tm"), np.load(DATA / "ops.npz")
    found = [t.numpy() for t in model(mge.tensor(recorded["x"]))]
    agree(found, [recorded[f"o{k}"] for k in range(len(found))])
    names = [n.name for e in model.graph.exprs() for n in e.outputs]
    assert {"add_out", "exp_out", "reduce_out", "fakequant_out", "topk_out", "topk_out_1"} <= set(names)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            b"FakeQuant",
            b"FakeQuamt",
            "applies the op 'FakeQuamt', which has no counterpart here.*did you mean 'FakeQuant'",
        ),
        (b"VALUE_IDX_SORTED", b"VALUE_IDX_SORTEX", "TopK: mode is 'VALUE_IDX_SORTEX'"),
    ],
)
def test_damaged_ops_are_refused_by_name(tmp_path, old, new, text):
    data = (DATA / "ops.tm").read_bytes()
    assert old in data
    (tmp_path / "bad.tm").write_bytes(data.replace(old, new))
    with pytest.raises(FileFormatError, match=text):
        mge.load(tmp_path / "bad.tm")


@pytest.mark.megengine
@pytest.mark.skipif(MEGENGINE_PYTHON is None, reason="MEGENGINE_PYTHON is not set")
def test_megengine_runs_what_is_written_here(traced, tmp_path):
    mge.save(traced, tmp_path / "net.tm")
    wanted = outputs(traced)
    np.savez(tmp_path / "wanted.npz", *wanted)
    code = (
        "import sys, numpy as np, megengine as mge\n"
        "net, wanted = mge.load(sys.argv[1]), np.load(sys.argv[2])\n"
        "x = np.arange(16, dtype=np.float32).reshape(4, 4)\n"
        "for k, y in enumerate(net(mge.tensor(x))):\n"
        "    np.testing.assert_allclose(y.numpy(), wanted['arr_%d' % k], rtol=1e-6)\n"
    )
    command = [MEGENGINE_PYTHON, "-c", code, str(tmp_path / "net.tm"), str(tmp_path / "wanted.npz")]
    subprocess.run(command, check=True, timeout=120, cwd=tmp_path)
