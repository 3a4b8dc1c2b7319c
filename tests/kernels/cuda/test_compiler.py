"""The cache of compiled kernels on disk, with a stand-in for NVRTC."""

import os
from types import SimpleNamespace

import pytest

from megengine.kernels.cuda import compiler
from megengine.kernels.cuda.sources import Program

ONE = Program("one.cu", text="KERNEL(one, int* x) { x[0] = 1; }")


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """The programs that were compiled; the cache is an empty folder."""
    found = []

    def compile_(program, architecture):
        found.append(program.file)
        return f"code for {architecture}".encode() * 9, "", ""

    monkeypatch.setattr(compiler, "nvrtc", lambda: SimpleNamespace(version=(13, 0), compile=compile_))
    monkeypatch.setenv("MEGENGINE_CUDA_CACHE", str(tmp_path / "kernels"))
    return found


def test_a_program_is_compiled_once_for_an_architecture(compiled, tmp_path):
    for architecture in (80, 90, 80, 90):
        assert compiler.cubin(ONE, architecture) == f"code for {architecture}".encode() * 9
    assert len(compiled) == 2 and len(os.listdir(tmp_path / "kernels")) == 2


@pytest.mark.parametrize("size", [0, 5, 40, 110])
def test_a_damaged_file_is_compiled_again(compiled, tmp_path, size):
    """As it is left by a disk without room, or by a machine that lost its power."""
    wanted = compiler.cubin(ONE, 80)
    (path,) = (tmp_path / "kernels").iterdir()
    path.write_bytes(path.read_bytes()[:size])
    assert compiler.cubin(ONE, 80) == wanted and len(compiled) == 2
    assert compiler.cubin(ONE, 80) == wanted and len(compiled) == 2


def test_a_file_that_cannot_be_written_is_not_left_behind(compiled, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert compiler.cubin(ONE, 80) == b"code for 80" * 9
    assert list((tmp_path / "kernels").iterdir()) == []


def test_a_folder_that_cannot_be_made_costs_time_only(compiled, tmp_path):
    (tmp_path / "kernels").write_text("a file")
    assert compiler.cubin(ONE, 80) == compiler.cubin(ONE, 80) == b"code for 80" * 9
    assert len(compiled) == 2
