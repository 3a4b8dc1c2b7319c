"""`x.to(device)` in graphs is MegEngine's op `Copy`: recorded, written and read, lowered and exported."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import megengine as mge
import megengine.module as M
import megengine.traced_module as tm
from megengine.convert.onnx.exporter import to_model
from megengine.traced_module.expr import is_apply_def
from megengine.traced_module.ir.queries import applied
from megengine.traced_module.source import to_source

STORED = Path(__file__).parents[1] / "data" / "megengine" / "applied" / "copy.tm"
MEGENGINE_PYTHON = os.environ.get("MEGENGINE_PYTHON")
X = np.arange(8, dtype=np.float32).reshape(2, 4)


class Moved(M.Module):
    def forward(self, x):
        return x.to("cpux").to(device=x.device) + 1


@pytest.fixture(scope="module")
def traced():
    return tm.trace_module(Moved(), mge.tensor(X))


def test_names_are_megengines(traced):
    made = [(n.name, n.qualname) for e in traced.graph.exprs() if is_apply_def(e, "Copy") for n in e.outputs]
    assert made == [("copy_out", "Moved.[def_copy]"), ("copy_out_1", "Moved.[def_copy]")]
    assert len(applied(traced.graph, "Copy").as_list()) == 2


@pytest.mark.parametrize("suffix", ["mgt", "tm"])
def test_files_keep_the_op(traced, tmp_path, suffix):
    mge.save(traced, tmp_path / f"net.{suffix}")
    again = mge.load(tmp_path / f"net.{suffix}")
    assert [n.name for n in again.graph.nodes()] == [n.name for n in traced.graph.nodes()]
    assert len(applied(again.graph, "Copy").as_list()) == 2
    np.testing.assert_array_equal(again(mge.tensor(X)).numpy(), X + 1)


def test_a_file_of_megengines_is_read():
    """Written by 1.13.0: `x.to("cpux") * 1`."""
    model = mge.load(STORED)
    assert [n.name for n in model.graph.nodes()] == ["self", "x", "copy_out", "mul_out"]
    np.testing.assert_array_equal(model(mge.tensor(X)).numpy(), X)


def test_lowered_exported_and_optimised(traced):
    assert [e.op for e in tm.lower(traced).graph.exprs() if e.kind == "Apply"] == ["copy", "copy", "add"]
    assert [n.op_type for n in to_model(traced).graph.node][-1] == "Add"
    np.testing.assert_array_equal(tm.optimize(traced)(mge.tensor(X)).numpy(), X + 1)


def test_source_calls_the_method(traced):
    text = to_source(traced)
    assert 'x.to("cpux")' in text and 'copy_out.to("xpux:0")' in text
    again = tm.trace_module(tm.trace_module(Moved(), mge.tensor(X)), mge.tensor(X))
    assert len(applied(again.graph, "Copy").as_list()) == 2


def test_inserted_calls_are_the_op_too():
    model = tm.trace_module(Moved(), mge.tensor(X))
    with model.graph.insert_exprs():
        moved = model.graph.outputs[0].to("xpux")
    assert (moved.name, is_apply_def(moved.expr, "Copy")) == ("copy_out_2", True)


@pytest.mark.megengine
@pytest.mark.skipif(MEGENGINE_PYTHON is None, reason="MEGENGINE_PYTHON is not set")
def test_megengine_runs_what_is_written_here(traced, tmp_path):
    mge.save(traced, tmp_path / "net.tm")
    code = (
        "import sys, numpy as np, megengine as mge\n"
        "x = np.arange(8, dtype=np.float32).reshape(2, 4)\n"
        "np.testing.assert_array_equal(mge.load(sys.argv[1])(mge.tensor(x)).numpy(), x + 1)\n"
    )
    command = [MEGENGINE_PYTHON or sys.executable, "-c", code, str(tmp_path / "net.tm")]
    subprocess.run(command, check=True, timeout=120, cwd=tmp_path)
