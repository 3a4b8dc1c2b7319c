"""`bench/zoo.py`: crashes end a process and not the run, what is there is not measured again, pages and pictures."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

BENCH = Path(__file__).parents[2] / "bench"
BASE = {"network": "squeezenet1_1", "threads": 1, "batch": 1}


@pytest.fixture
def zoo(monkeypatch):
    """The script; the helpers of the tests have a module of its name."""
    monkeypatch.syspath_prepend(BENCH)
    spec = importlib.util.spec_from_file_location("bench_zoo", BENCH / "zoo.py")
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_zoo", script)
    spec.loader.exec_module(script)
    return script


def lines():
    def line(network, precision, runner, ms, **more):
        times = {"ms": 2 * ms, "cpu_ms": ms}
        return {"network": network, "threads": 1, "batch": 1, "precision": precision, "runner": runner, **times, **more}

    return [
        line("a", "float32", "ours", 9.0),
        line("a", "float32", "ours", 2.0),  # a later run takes its place
        line("a", "float32", "OpenVINO", 4.0),
        line("a", "float32", "ONNX Runtime", 5.0),
        line("b", "float32", "ours", 2.0),
        line("b", "float32", "OpenVINO", 1.0),
        line("b", "int8", "ours", 3.0),
        {**BASE, "network": "c", "precision": "float32", "runner": "ours", "note": "it is too large."},
    ]


def test_ratios_are_to_the_fastest_peer_of_the_precision(zoo):
    rows = zoo.compare(lines())[1, 1]
    assert rows["a"]["float32"] == (2.0, 0.5, "OpenVINO")
    assert rows["b"] == {"float32": (2.0, 2.0, "OpenVINO"), "int8": (3.0, None, "")}
    assert zoo.mean_ratio(rows, "float32") == pytest.approx(1.0)
    assert zoo.mean_ratio(rows, "int8") is None


def test_runners_that_are_not_wanted_are_left_out(zoo, monkeypatch):
    given = []
    monkeypatch.setattr(zoo, "_child", lambda options, limit: (given.append(options["skip"]), ([], "", None))[1])
    assert zoo.measure(BASE, ["float32", "int8"], 1, 1.0, ["torch", "OpenVINO, NNCF"]) == []
    assert given == [["float32: torch", "int8: OpenVINO, NNCF"]]


def test_the_table_goes_between_the_marks_of_a_page(zoo, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{zoo.BEGIN}old\n{zoo.END}after\n")
    zoo.write_page(page, zoo.markdown(lines()))
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| a | 2 | 0.50 | OpenVINO | - | - | - |" in text
    assert "Not measured: c float32, threads 1, batch 1 (it is too large)." in text
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="expected the lines <!-- zoo: begin --> and"):
        zoo.write_page(page, "")


def test_the_page_of_benchmarks_has_the_marks(zoo):
    assert zoo.BEGIN in zoo.PAGE.read_text() and zoo.END in zoo.PAGE.read_text()


def test_the_picture_has_a_dot_for_each_ratio(zoo):
    root = ElementTree.fromstring(zoo.picture(lines()))
    assert len([e for e in root.iter() if e.tag.endswith("circle")]) == len(zoo.PRECISIONS) + 2


def test_a_runner_that_crashes_is_left_out_of_the_next_process(zoo, monkeypatch):
    given = []

    def child(options, limit):
        given.append(list(options["skip"]))
        bad = next((name for name in ("float32: OpenVINO", "float32: torch") if name not in options["skip"]), None)
        if bad is not None:
            return [{"runner": "float32: ours", "note": "lost"}], bad, "the process ended with SIGSEGV"
        return [{"runner": "float32: ours", "ms": 1.0}], "the measurement", None

    monkeypatch.setattr(zoo, "_child", child)
    found = zoo.measure(BASE, ["float32"], 1, 1.0)
    assert given == [[], ["float32: OpenVINO"], ["float32: OpenVINO", "float32: torch"]]
    assert [(line["runner"], line.get("note")) for line in found] == [
        ("OpenVINO", "the process ended with SIGSEGV"),
        ("torch", "the process ended with SIGSEGV"),
        ("ours", None),
    ]


def test_a_process_that_ends_elsewhere_is_noted(zoo, monkeypatch):
    monkeypatch.setattr(zoo, "_child", lambda options, limit: ([], "the measurement", "not done after 1 s"))
    (line,) = zoo.measure(BASE, ["int8"], 1, 1.0)
    assert (line["runner"], line["note"]) == ("the measurement", "not done after 1 s")


def test_resuming_measures_what_is_missing(zoo, monkeypatch, tmp_path):
    output = tmp_path / "zoo.jsonl"
    output.write_text(json.dumps({**BASE, "precision": "float32", "runner": "ours", "ms": 1, "cpu_ms": 1}) + '\n{"cut')
    asked = []

    def measure(base, precisions, rounds, limit, without):
        asked.append((base, precisions))
        return []

    monkeypatch.setattr(zoo, "measure", measure)
    options = ["--networks", "squeezenet1_1", "--threads", "1", "--batch", "1", "--output", str(output), "--resume"]
    zoo.main([*options, "--precisions", "float32", "int8"])
    assert asked == [(BASE, ["int8"])]


@pytest.mark.slow
def test_a_network_is_measured(tmp_path):
    output = tmp_path / "zoo.jsonl"
    options = [
        "--networks",
        "squeezenet1_1",
        "--precisions",
        "float32",
        "--threads",
        "1",
        "--batch",
        "1",
        "--repeat",
        "2",
    ]
    command = [sys.executable, BENCH / "zoo.py", *options, "--output", output, "--picture", tmp_path / "zoo.svg"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "| squeezenet1_1 |" in text and (tmp_path / "zoo.svg").exists()
    found = {line["runner"]: line for line in map(json.loads, output.read_text().splitlines())}
    assert found["ours"]["cpu_ms"] > 0
    assert all("ms" in line or "note" in line for line in found.values())
