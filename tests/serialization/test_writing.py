"""Files appear whole or not at all: links are written through, full disks are told, what killed processes left goes."""

import errno
import importlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import megengine as mge
import megengine.module as M
from megengine.core.errors import MegEngineError, MissingFileError, WriteError
from megengine.core.files import replacing, temporary_file
from megengine.traced_module import trace_module


@pytest.fixture(scope="module")
def traced():
    return trace_module(M.Sequential(M.Linear(64, 64), M.ReLU()), mge.tensor(np.zeros((1, 64), np.float32)))


def hidden(folder):
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("."))


# ---------------------------------------------------------------- links, devices, names


def test_a_link_is_written_through(tmp_path, traced):
    (tmp_path / "run").mkdir()
    for suffix in (".pkl", ".tm", ".mgt"):
        target, link = tmp_path / "run" / f"net{suffix}", tmp_path / f"best{suffix}"
        target.write_text("old")
        link.symlink_to(Path("run") / target.name)
        mge.save(traced if suffix != ".pkl" else traced.state_dict(), link)
        assert link.is_symlink() and mge.load(target) is not None
        assert hidden(tmp_path) == hidden(tmp_path / "run") == []


def test_a_link_to_a_file_that_is_not_there_yet(tmp_path):
    (tmp_path / "link.pkl").symlink_to("new.pkl")
    mge.save({"a": 1}, tmp_path / "link.pkl")
    assert mge.load(tmp_path / "new.pkl") == {"a": 1} and (tmp_path / "link.pkl").is_symlink()
    (tmp_path / "lost.pkl").symlink_to("none/new.pkl")
    with pytest.raises(MissingFileError, match="there is no folder .*none' to write it to"):
        mge.save({"a": 1}, tmp_path / "lost.pkl")
    (tmp_path / "loop.pkl").symlink_to("loop.pkl")
    with pytest.raises(WriteError, match=r"loop.pkl: cannot be written \(Too many levels of symbolic links\)"):
        mge.save({"a": 1}, tmp_path / "loop.pkl")


def test_devices_and_pipes_stay_what_they_are(tmp_path):
    pipe = tmp_path / "pipe.pkl"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    mge.save({"a": 1}, pipe)
    read, _ = reader.communicate(timeout=20)
    (tmp_path / "read.pkl").write_bytes(read)
    assert pipe.is_fifo() and mge.load(tmp_path / "read.pkl") == {"a": 1}
    null = Path(os.devnull)
    mge.save({"a": 1}, null)
    assert null.is_char_device()


def test_long_names(tmp_path):
    for name in ("x" * 250 + ".pkl", "ü" * 120 + ".pkl", "a." + "s" * 240):
        mge.save({"a": 1}, tmp_path / name)
        assert mge.load(tmp_path / name) == {"a": 1}


def test_a_file_keeps_its_rights(tmp_path):
    (tmp_path / "a.pkl").touch(0o640)
    mge.save({"a": 1}, tmp_path / "a.pkl")
    assert (tmp_path / "a.pkl").stat().st_mode & 0o777 == 0o640


# ---------------------------------------------------------------- full disks


@pytest.mark.parametrize("suffix", [".pkl", ".tm", ".mgt", ".onnx"])
def test_a_full_disk_is_our_error_that_names_the_file(tmp_path, traced, suffix):
    """A limit on the size of files does what a full disk does."""
    path = tmp_path / f"net{suffix}"
    path.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[0][1]))
    try:
        with pytest.raises(WriteError, match=rf"net{suffix}: cannot be written \(File too large\)") as found:
            save(traced, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[0])
        signal.signal(signal.SIGXFSZ, before[1])
    assert isinstance(found.value, OSError) and isinstance(found.value, MegEngineError)
    assert found.value.errno == errno.EFBIG
    assert path.read_text() == "old" and hidden(tmp_path) == []


def save(traced, path):
    from megengine.convert import onnx

    if path.suffix == ".onnx":
        onnx.export(traced, path)
    else:
        mge.save(traced.state_dict() if path.suffix == ".pkl" else traced, path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_device(traced):
    with pytest.raises(WriteError, match=r"/dev/full: cannot be written \(No space left on device\)"):
        mge.save(traced.state_dict(), "/dev/full")


def test_other_errors_of_the_body_stay_what_they_are(tmp_path):
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a"):
        1 / 0
    with pytest.raises(MissingFileError, match="there is no folder"), replacing(tmp_path / "none" / "a"):
        pytest.fail("the body must not run")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- what killed processes left

WRITER = """
import sys, time
from pathlib import Path
from megengine.core.files import replacing
with replacing(Path(sys.argv[1]) / sys.argv[2]) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


def writer(folder, name):
    """A process in the middle of writing; it ends well when its input is closed."""
    command = [sys.executable, "-c", WRITER, str(folder), name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"writing\n"
    return process


def test_the_next_write_removes_what_a_killed_process_left(tmp_path):
    """And nothing of a process that lives, of this one, or that only looks alike."""
    killed, alive = writer(tmp_path, "killed.pkl"), writer(tmp_path, "alive.pkl")
    killed.kill()
    killed.communicate()
    (left, living) = sorted(tmp_path.iterdir(), key=lambda p: "alive" in p.name)
    for alike in (".net-mge-backup.pkl", f"{left.name[1:]}", f"{left.name}.bak", f".x-mge00000000-{'a' * 8}.pkl"):
        (tmp_path / alike).write_text("mine")
    (tmp_path / f".link{left.name[len('.killed') :]}").symlink_to("nowhere")
    others = {p.name for p in tmp_path.iterdir()} - {left.name}
    with temporary_file(tmp_path / "own.pkl") as own:
        mge.save({"a": 1}, tmp_path / "new.pkl")
        assert own.exists()
        assert {p.name for p in tmp_path.iterdir()} == others | {own.name, "new.pkl"}
    alive.communicate(b"")
    assert alive.returncode == 0 and (tmp_path / "alive.pkl").read_bytes() == b"half" and not living.exists()


def test_a_temporary_file_is_kept_while_it_is_written_by_its_path(tmp_path):
    """What is written with our functions stays the file that is locked."""
    with temporary_file(tmp_path / "own.pkl") as own:
        number = own.stat().st_ino
        mge.save({"a": 1}, own)
        assert own.stat().st_ino == number
        done = subprocess.run([sys.executable, "-c", WRITER, tmp_path, "other.pkl"], input=b"", check=True)
        assert done.returncode == 0 and own.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.pkl"]


@pytest.mark.slow
def test_many_writers_in_one_folder(tmp_path):
    """Processes that write, clear and are killed at random never take a file from one that lives."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom megengine.core.files import replacing\n"
        "for i in range(400):\n"
        "    with replacing(Path(sys.argv[1]) / f'{sys.argv[2]}-{i % 7}') as file:\n"
        "        file.write(b'x' * 100)\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(i)]) for i in range(4)]
    for i in range(8):
        victim = subprocess.Popen([sys.executable, "-c", program, str(tmp_path), f"v{i}"])
        time.sleep(0.4)
        victim.kill()
        victim.wait()
    assert [p.wait(timeout=120) for p in processes] == [0] * 4
    mge.save({}, tmp_path / "last.pkl")
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("place", ["os.open", "fcntl.flock", "os.fstat"])
def test_an_interrupt_while_the_temporary_file_is_made_leaves_none(place, tmp_path, monkeypatch):
    module, name = place.split(".")
    real = getattr(importlib.import_module(module), name)

    def interrupted(*args, **kwargs):
        real(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(f"{module}.{name}", interrupted)
    with pytest.raises(KeyboardInterrupt), temporary_file(tmp_path / "net.mgt"):
        pass
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
