"""Profiler: a file that a trace viewer reads, with the ops that ran."""

import json

import pytest

import megengine as mge
from megengine.core.errors import FileFormatError, OptionError
from megengine.utils.profiler import Profiler, is_profiling, merge_trace_events, profile, scope


def events_of(folder):
    (file,) = folder.glob("*.chrome_timeline.json")
    return json.loads(file.read_text())["traceEvents"]


def test_ops_and_scopes_are_recorded(tmp_path):
    x = mge.tensor([[1.0, 2.0]])
    assert not is_profiling()
    with Profiler(str(tmp_path)) as profiler:
        assert is_profiling()
        with scope("mine"):
            mge.functional.exp(x)
        profiler.step()
    mge.functional.sin(x)
    assert not is_profiling()
    events = events_of(tmp_path)
    assert [e["name"] for e in events] == ["exp", "mine", "step"]
    op, span = events[:2]
    assert op["args"] == {"shapes": [[1, 2]]}
    assert span["ts"] <= op["ts"]
    assert op["ts"] + op["dur"] <= span["ts"] + span["dur"]
    assert {"ph", "pid", "tid"} <= op.keys()


def test_decorators_and_errors_inside(tmp_path):
    @profile(path=str(tmp_path))
    def run(x):
        mge.functional.matmul(x, x)

    with pytest.raises(ValueError, match="matmul"):
        run(mge.tensor([[1.0, 2.0]]))
    assert not is_profiling()
    assert events_of(tmp_path)[-1]["name"] == "matmul"
    assert callable(profile(lambda: 1))


def test_wrong_use(tmp_path):
    with pytest.raises(OptionError, match=r"format is 'chrome_timeline.jsn'.*did you mean"):
        Profiler(format="chrome_timeline.jsn")
    profiler = Profiler(str(tmp_path / "p"))
    profiler.stop()
    assert not (tmp_path / "p").exists()
    profiler.start()
    with pytest.raises(OptionError, match="records already"):
        profiler.start()
    profiler.stop()


def test_merging(tmp_path):
    with pytest.raises(FileFormatError, match="profile first"):
        merge_trace_events(str(tmp_path))
    for pid in (1, 2):
        (tmp_path / f"{pid}.chrome_timeline.json").write_text(json.dumps({"traceEvents": [{"pid": pid}]}))
    for _ in range(2):  # the result is not one of its own inputs
        merge_trace_events(str(tmp_path))
        merged = json.loads((tmp_path / "merge.chrome_timeline.json").read_text())
        assert merged == {"traceEvents": [{"pid": 1}, {"pid": 2}]}
    (tmp_path / "3.chrome_timeline.json").write_text("[")
    with pytest.raises(FileFormatError, match=r"3.chrome_timeline.json is no file of a Profiler"):
        merge_trace_events(str(tmp_path))
