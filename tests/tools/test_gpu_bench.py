"""The benches of GPUs: each subject in a process of its own, in turns."""

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import gpu
import gpu_subjects
import gpu_workers
from gpu_workers import Subject, Turns

_FAILS_AT = gpu_workers.WARM + gpu_workers.INNER + 4  # in the first round


def counting():
    return lambda: None


def reads_a_setting():
    if os.environ["MEGENGINE_CUDA_TF32"] != "1":
        raise AssertionError("the setting is not there")
    return counting()


def refuses():
    raise ValueError("no such dtype")


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def sleeps():
    time.sleep(60)


def fails_later():
    calls = []

    def call():
        calls.append(None)
        if len(calls) > _FAILS_AT:
            raise RuntimeError("illegal address")

    return call


def in_parts():
    return lambda: {"all": 1.25}


def test_a_subject_that_fails_leaves_the_others():
    subjects = [
        Subject("plain float32", counting),
        Subject("plain tf32", reads_a_setting, "host", {"MEGENGINE_CUDA_TF32": "1"}),
        Subject("plain refused", refuses),
        Subject("plain dead", dies),
        Subject("plain later", fails_later),
        Subject("plain parts", in_parts, "parts"),
    ]
    with Turns(subjects, beside=3) as turns:
        turns.prepare(60)
        assert turns.found["alone"].keys() == {"plain float32", "plain tf32", "plain later"}
        turns.measure(3)
    found = turns.found
    assert all(len(found["ms"][label]) == 3 for label in ("plain float32", "plain tf32"))
    assert found["seconds"] == {"plain parts": [{"all": 1.25}] * 3}
    assert found["missing"] == {
        "plain refused": "ValueError: no such dtype",
        "plain dead": "the process has ended, exit status -9",
        "plain later": "RuntimeError: illegal address",
    }
    assert [*found["prepared"]["plain later"]] == ["import", "make", "first calls"]
    assert "MEGENGINE_CUDA_TF32" not in os.environ


def options_of(*words):
    return gpu.parser().parse_args([*words])


def test_what_is_late_is_missing_and_the_others_are_known_before(tmp_path, capsys):
    file, wanted = tmp_path / "found.json", [Subject("plain slow", sleeps), Subject("plain float32", counting)]
    wanted += [Subject("plain second", counting), Subject("plain never", counting)]
    begin = time.monotonic()
    with Turns(wanted, beside=1) as turns:
        turns.prepare(0)
    assert {*turns.found["missing"].values()} == {"not prepared within 0 s"} and time.monotonic() - begin < 10
    options = options_of("--patience", "6", "--beside", "2", "--rounds", "2", "--json", str(file))
    results = gpu.run_sections({"eager": wanted[:2], "training": wanted[1:2]}, options, begin)
    assert time.monotonic() - begin < 30
    assert json.loads(file.read_text()) == results
    assert [*results["eager"]["ms"]] == ["plain float32"] == [*results["training"]["ms"]] and "alone" not in results
    assert results["eager"]["missing"]["plain slow"].startswith("not prepared within ")
    lines = capsys.readouterr().out.splitlines()
    assert "ms, at first  prepared in" in lines[0] and "not prepared" in lines[1], "one is known before the other"


def ends_the_bench():
    """A call that kills the bench when it is measured the second time, in the first round."""
    calls = []

    def call():
        calls.append(None)
        if len(calls) > gpu_workers.WARM + gpu_workers.INNER + 1:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)

    return call


def bench_of(file):
    options = options_of("--json", str(file))
    gpu.run_sections({"training": [Subject("plain deadly", ends_the_bench)]}, options, time.monotonic())


def test_a_bench_that_is_killed_leaves_what_it_saw(tmp_path):
    bench = multiprocessing.get_context("spawn").Process(target=bench_of, args=(tmp_path / "found.json",))
    bench.start()
    bench.join(60)
    assert bench.exitcode == -signal.SIGKILL
    found = json.loads((tmp_path / "found.json").read_text())["training"]
    assert [*found["ms"]] == ["plain deadly"] == found["alone"] and found["prepared"].keys() == {"plain deadly"}


def test_a_table_compares_with_torch_in_the_same_type():
    times = {
        "ours float32": [4.0, 6.0, 5.0],
        "ours int8": [1.0],
        "torch float32 eager": [10.0],
        "torch float32 x": [8.0],
    }
    found = {"ms": times, "seconds": {"ours": [{"all": 2.0}]}, "missing": {"ours tf32": "ended"}}
    found |= {"alone": {}, "prepared": {}}
    lines = gpu.lines_of("inference", gpu.summary(found))
    assert [line.split() for line in lines[:2]] == [
        ["inference", "ours", "float32", "5.0000", "ms", "0.62", "of", "torch's", "best"],
        ["inference", "ours", "int8", "1.0000", "ms"],
    ]
    assert lines[-2].endswith("run 1, seconds: all 2.000") and lines[-1].endswith("missing: ended")
    assert "75.0% x   2.0  convolve" in gpu.table_of("a", [("convolve", 3.0, 2.0), ("add", 1.0, 1.0)])


def test_steps_of_quantization_are_timed(monkeypatch):
    from quant_nets import residual_net  # not at the top: the processes of subjects import this file

    from megengine.quantization.pipeline import quantize
    from megengine.traced_module import TracedModule

    net = TracedModule.from_graph(residual_net()[1])
    monkeypatch.setattr(gpu_subjects, "_traced", lambda batch, dtype: net)
    monkeypatch.setattr(gpu_subjects, "pictures", lambda n: np.ones((n, *net.graph.inputs[0].shape[1:]), np.float32))
    before = quantize.freeze
    seconds = gpu_subjects.our_quantization(64, "cpu0")()
    assert seconds.keys() >= gpu_subjects.STEPS.keys() - {"behind: last run counted"} and quantize.freeze is before
    assert sum(took for name, took in seconds.items() if ": " in name) < seconds["all"]


@pytest.mark.parametrize("only", ["", "ours", "float16 replayed, torch tf32"])
def test_subjects_have_names_of_their_own(only):
    every = gpu_subjects.sections(32, "reduce-overhead", 512)
    for subjects in every.values():
        labels = [one.label for one in subjects]
        assert len({*labels}) == len(labels)
    found = [one.label for one in gpu.chosen(every["training"], only)]
    assert len(found) == {"": 17, "ours": 9, "float16 replayed, torch tf32": 4}[only]
