"""Standard files that are closed or full: the command says so, names nothing else, and keeps its exit code."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

RUN = [sys.executable, "-m", "megengine.cli"]
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
FULL = "mge-quantize: standard output: cannot be written (No space left on device)"


def shell(words, redirection, folder):
    command = " ".join([*RUN, *words, redirection])
    return subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    made = tmp_path_factory.mktemp("streams")
    (made / "net.onnx").write_bytes(model.read_bytes())
    np.save(made / "data.npy", np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32))
    return made


@pytest.mark.parametrize("words", [["inspect", "net.onnx"], ["inspect", "net.onnx", "--json"], ["--help"]])
def test_a_closed_standard_output_is_the_null_device(folder, words):
    done = shell(words, ">&-", folder)
    assert (done.returncode, done.stdout) == (0, "") and "error" not in done.stderr


def test_all_standard_files_are_closed(folder):
    """What is written does not come into one of their numbers."""
    assert shell(["draw", "net.onnx", "-o", "closed.svg"], "<&- >&- 2>&-", folder).returncode == 0
    assert (folder / "closed.svg").read_text().rstrip().endswith("</svg>")
    done = shell(["inspect", "none.onnx"], "2>&-", folder)
    assert (done.returncode, done.stdout) == (1, "")


@needs_full
@pytest.mark.parametrize(
    "words",
    [
        ["ptq", "net.onnx", "--data", "data.npy", "-o", "q.mgt", "--onnx", "q.onnx"],
        ["edit", "net.onnx", "-o", "q.mgt", "--json"],
        ["diff", "net.onnx", "net.onnx"],
        ["--help"],
    ],
    ids=lambda words: words[0],
)
def test_a_full_standard_output_is_named_and_nothing_else(folder, words):
    before = sorted(folder.iterdir())
    done = shell(words, ">/dev/full", folder)
    assert done.returncode == (2 if words[0] == "diff" else 1)
    assert done.stderr.strip().splitlines()[-1] == FULL and "Traceback" not in done.stderr
    if words[0] == "ptq":
        assert sorted(folder.iterdir()) == before


@needs_full
def test_an_error_that_nobody_hears_keeps_its_code(folder):
    assert shell(["inspect", "none.onnx"], "2>/dev/full", folder).returncode == 1
    assert shell(["inspekt"], "2>/dev/full", folder).returncode == 2
    assert shell(["inspect", "none.onnx", "--json"], ">/dev/full", folder).returncode == 1


def test_a_reader_that_has_enough(folder):
    done = shell(["inspect", "net.onnx"], "| true", folder)
    assert done.stderr == ""


@pytest.mark.parametrize("columns", [50, 100])
def test_tables_are_as_wide_as_columns_says(run, folder, columns):
    shown = run("inspect", folder / "net.onnx", "--find", "*", COLUMNS=str(columns)).stdout
    rows = [line.rstrip() for line in shown.splitlines() if line.startswith(" ")]
    assert len(rows) >= 7 and max(map(len, rows)) <= columns
    wide = run("inspect", folder / "net.onnx", "--find", "*", COLUMNS="many").stdout
    assert max(map(len, wide.splitlines())) > columns


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="mounts a small disk")
@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["mgt", "tm", "onnx", "py"])
def test_a_full_disk_names_the_file_that_was_asked_for(run, one_line_error, folder, tmp_path, suffix):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", disk], capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        (tmp_path / "net.py").write_text("import megengine.module as M\ndef build(): return M.Linear(300, 300)\n")
        words = ("edit", "net.py:build", "--input-shape", "1,300", "-o", disk / f"out.{suffix}")
        line = one_line_error(run(*words, cwd=tmp_path))
        name = disk / ("out.pkl" if suffix == "py" else f"out.{suffix}")
        assert f"{name}: cannot be written (No space left on device)" in line
        assert not list(disk.iterdir())
    finally:
        subprocess.run(["umount", disk], check=True)
