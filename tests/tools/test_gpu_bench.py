"""The benches of GPUs: each subject in a process of its own, in turns."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import gpu
import gpu_subjects
import gpu_workers
from gpu_workers import Subject, in_processes

_FAILS_AT = gpu_workers.WARM + 4


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
    found = in_processes(subjects, 3, 60)
    assert found["ms"].keys() == {"plain float32", "plain tf32"}
    assert all(len(times) == 3 for times in found["ms"].values())
    assert found["seconds"] == {"plain parts": [{"all": 1.25}] * 3}
    assert found["missing"] == {
        "plain refused": "ValueError: no such dtype",
        "plain dead": "the process has ended, exit status -9",
        "plain later": "RuntimeError: illegal address",
    }
    assert "MEGENGINE_CUDA_TF32" not in os.environ


def test_a_subject_that_takes_too_long_is_ended():
    begin = time.monotonic()
    assert in_processes([Subject("plain slow", sleeps)], 3, 0)["missing"] == {"plain slow": "no time left"}
    assert time.monotonic() - begin < 30


def test_a_table_compares_with_torch_in_the_same_type():
    times = {
        "ours float32": [4.0, 6.0, 5.0],
        "ours int8": [1.0],
        "torch float32 eager": [10.0],
        "torch float32 x": [8.0],
    }
    found = {"ms": times, "seconds": {"ours": [{"all": 2.0}]}, "missing": {"ours tf32": "ended"}}
    lines = gpu.lines_of("inference", gpu.summary(found))
    assert [line.split() for line in lines[:2]] == [
        ["inference", "ours", "float32", "5.0000", "ms", "0.62", "of", "torch's", "best"],
        ["inference", "ours", "int8", "1.0000", "ms"],
    ]
    assert lines[-2].endswith("run 1, seconds: all 2.000") and lines[-1].endswith("missing: ended")
    assert "75.0% x   2.0  convolve" in gpu.table_of("a", [("convolve", 3.0, 2.0), ("add", 1.0, 1.0)])


@pytest.mark.parametrize("only", ["", "ours", "float16 replayed, torch tf32"])
def test_subjects_have_names_of_their_own(only):
    every = gpu_subjects.sections(32, "reduce-overhead", 512)
    for subjects in every.values():
        labels = [one.label for one in subjects]
        assert len({*labels}) == len(labels)
    found = [one.label for one in gpu.chosen(every["training"], only)]
    assert len(found) == {"": 17, "ours": 9, "float16 replayed, torch tf32": 4}[only]
