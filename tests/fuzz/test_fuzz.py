"""A few damaged files of every kind: `make fuzz` loads many more."""

import dataclasses
import importlib.util
import pickle
import sys
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("fuzz", Path(__file__).with_name("fuzz.py"))
fuzz = importlib.util.module_from_spec(spec)
sys.modules["fuzz"] = fuzz
spec.loader.exec_module(fuzz)


KINDS = fuzz.ALL.split(",")


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_loaded_or_refused(kind, tmp_path):
    path = tmp_path / f"damaged{fuzz.KINDS[kind].suffix}"
    found = []
    for number in range(40):
        path.write_bytes(fuzz.damaged(kind, 11, number))
        found.append(fuzz.loaded(kind, path))
    assert {"loaded", "refused"} >= set(found)
    assert "refused" in found or kind == "index"  # nearly all keys have an ONNX form


@pytest.mark.parametrize("kind", KINDS)
def test_sound_files_are_loaded(kind, tmp_path):
    """What is damaged is a file that its loader takes."""
    path = tmp_path / f"sound{fuzz.KINDS[kind].suffix}"
    for content in fuzz._samples(kind):
        path.write_bytes(content)
        assert fuzz.loaded(kind, path) == "loaded"


def test_code_that_a_file_names_is_a_fault_when_it_runs(tmp_path, monkeypatch):
    (tmp_path / "call.pkl").write_bytes(b"cdamaged_pickles\nstrike\n)R.")
    unsafe = dataclasses.replace(fuzz.KINDS["pkl"], load=lambda path: pickle.loads(path.read_bytes()))
    monkeypatch.setitem(fuzz.KINDS, "unsafe", unsafe)
    with pytest.raises(AssertionError, match="code that a file names was run"):
        fuzz.loaded("unsafe", tmp_path / "call.pkl")
    fuzz.damaged_pickles.RUN.clear()
    assert fuzz.loaded("pkl", tmp_path / "call.pkl") == "refused"


@pytest.mark.slow
def test_the_fuzzer_finds_and_keeps_faults(tmp_path, capsys):
    # this seed gives each of the planted files once; a process that dies takes seconds to start again
    options = ["--seed", "21", "--count", "5", "--jobs", "1"]
    assert fuzz.main(["--kinds", "planted", *options, "--keep", str(tmp_path / "kept")]) == 1
    told = capsys.readouterr().out
    for fault in ("ZeroDivisionError", "an error without a message", "MemoryError", "ends the program with code -6"):
        assert fault in told
    kept = {path.read_text() for path in (tmp_path / "kept").iterdir()}
    assert kept == {"error", "silence", "memory", "crash"}
    assert fuzz.main(["--kinds", "npy", "--count", "4", "--jobs", "1", "--keep", str(tmp_path / "none")]) == 0
    assert not (tmp_path / "none").exists()


def test_the_same_seed_makes_the_same_files():
    for kind in KINDS:
        assert fuzz.damaged(kind, 3, 5) == fuzz.damaged(kind, 3, 5)
    assert fuzz.damaged("tm", 3, 5) != fuzz.damaged("tm", 4, 5)
