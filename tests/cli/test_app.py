"""The command as users meet it: exit codes, one line for an error, JSON, nothing half-written."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto

from megengine.cli.app import ELSEWHERE, group
from tests.helpers.onnx_runtime import session_of

RUN = [sys.executable, "-m", "megengine.cli"]


def test_help_and_version_need_no_engine(run):
    done = run("--help")
    assert done.returncode == 0
    for name in ("inspect", "draw", "ptq", "verify", "bench", "demo"):
        assert name in done.stdout
        assert run(name, "--help").returncode == 0
    assert "2.0" in run("--version").stdout


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_stands_for_names_of_other_tools_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["y"]), onnx.helper.make_node("Relu", ["y"], ["z"])]
    ends = [onnx.helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3, 4, 4]) for n in "xz"]
    weight = onnx.numpy_helper.from_array(np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1), "w")
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "net", ends[:1], ends[1:], [weight])), "net.onnx")
    np.save("data.npy", np.random.default_rng(0).standard_normal((8, 3, 4, 4)).astype(np.float32))
    words = ELSEWHERE[name].replace("MODEL", "net.onnx").replace("DATA", "data.npy").split()[1:]
    done = CliRunner().invoke(group, [*words, *(["--epochs", "1"] if name == "train" else [])])
    assert done.exit_code == 0, done.output
    assert "-o" not in words or os.path.exists(words[words.index("-o") + 1])


def test_importing_the_command_imports_no_engine(run):
    code = "import sys, megengine.cli.app as a; print([m for m in ('onnx', 'PIL', 'jinja2') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_unknown_command_and_option_are_usage_errors(run):
    done = run("inspekt")
    assert done.returncode == 2 and "did you mean 'inspect'" in done.stderr
    for word in ("quantize", "quantise"):
        done = run(word)
        assert done.returncode == 2 and f"No such command '{word}'; here it is `mge-quantize ptq MODEL" in done.stderr
    assert run("inspect").returncode == 2
    assert run("inspect", "x.onnx", "--input-shape", "a=b").returncode == 2


def test_inspect(run, model):
    found = json.loads(run("inspect", model, "--json").stdout)
    assert found["inputs"] == [{"name": "x", "shape": ["n", 3, 16, 16], "dtype": "float32"}]
    assert found["parameters"] == 4 * 27 + 8 and found["weight_bytes"] == 4 * (4 * 27 + 8)
    assert found["macs"] == 4 * 27 * 16 * 16 + 8
    assert found["layers"][0]["module"] == "body.conv"
    shown = run("inspect", model, "--input-shape", "2,3,16,16").stdout
    assert "2x4x16x16" in shown and "116 parameters, 464 B, 0.0553 million multiply-accumulates" in shown


def test_draw(run, one_line_error, model, tmp_path):
    path = tmp_path / "net.svg"
    assert run("draw", model, "-o", path).returncode == 0
    assert path.read_text().startswith("<svg") and path.read_text().count("<g>") == 6
    assert run("draw", model, "-o", tmp_path / "net.dot", PATH="/nonexistent").returncode == 0
    assert run("draw", model, "-o", tmp_path / "net.html").returncode == 0
    assert '"conv2d"' in (tmp_path / "net.html").read_text()
    assert run("draw", model, "-o", tmp_path / "net.png", "--depth", "0").returncode == 0
    assert (tmp_path / "net.png").read_bytes().startswith(b"\x89PNG")
    assert "--depth: a .html page opens" in one_line_error(
        run("draw", model, "-o", tmp_path / "d.html", "--depth", "1")
    )
    assert "expected .html" in one_line_error(run("draw", model, "-o", tmp_path / "net.bmp"))
    away = {"PATH": "/nonexistent"}
    line = one_line_error(run("draw", model, "-o", tmp_path / "net.pdf", **away))
    assert "needs the program dot of Graphviz, which is not installed" in line
    line = one_line_error(run("draw", model, "-o", tmp_path / "d.svg", "--engine", "neato", **away))
    assert "needs the program neato" in line
    assert "has no layout of it" in one_line_error(run("draw", model, "-o", tmp_path / "d.dot", "--engine", "dot"))
    assert "take --engine dot" in one_line_error(run("draw", model, "-o", tmp_path / "d.pdf", "--engine", "own"))
    line = one_line_error(run("draw", model, "-o", tmp_path / "none" / "net.svg"))
    assert "does not exist" in line
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.dot", "net.html", "net.png", "net.svg"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.onnx", None, "no such file"),
        ("cut.onnx", b"\x08\x09\x12", "not a complete ONNX model"),
        ("empty.onnx", b"", "empty.onnx: the file is empty"),
        ("net.mgt", b"PK\x03\x04", "damaged or not a graph file"),
        ("net.txt", b"", "expected .onnx, .tm, .mgt, .mge or module.py:function"),
        ("net.tm", b"\x80\x04", "not a readable pickle"),
    ],
)
def test_bad_models_are_one_line(run, one_line_error, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    line = one_line_error(run("inspect", tmp_path / name))
    assert message in line
    failed = run("inspect", tmp_path / name, "--json")
    assert failed.returncode == 1 and message in json.loads(failed.stdout)["error"]["message"]


def test_debug_shows_the_traceback(run, tmp_path):
    assert "Traceback" in run("inspect", tmp_path / "none.onnx", "--debug").stderr


def test_model_from_a_function(run, one_line_error, tmp_path):
    (tmp_path / "net.py").write_text(
        "import megengine.module as M\n"
        "def build():\n    return M.Sequential(M.Conv2d(3, 4, 3), M.ReLU())\n"
        "def wrong():\n    return 3\n"
        "def broken():\n    1 / 0\n"
    )
    found = json.loads(run("inspect", "net.py:build", "--input-shape", "1,3,8,8", "--json", cwd=tmp_path).stdout)
    assert [layer["op"] for layer in found["layers"]] == ["conv2d", "relu"]
    words = ("inspect", "net.py:build", "--input-shape", "1,3,8,8", "--calls")
    found = json.loads(run(*words, "--json", cwd=tmp_path).stdout)
    assert [(layer["op"], layer["macs"]) for layer in found["layers"]] == [("Conv2d", 4 * 36 * 27), ("ReLU", 0)]
    assert "4x6x6" in run(*words, cwd=tmp_path).stdout
    assert run("draw", *words[1:-1], "-o", "net.html", cwd=tmp_path).returncode == 0
    assert '"Conv2d"' in (tmp_path / "net.html").read_text()
    assert "add --input-shape" in one_line_error(run("inspect", "net.py:build", cwd=tmp_path))
    assert "gave int" in one_line_error(run("inspect", "net.py:wrong", cwd=tmp_path))
    assert "the function raised ZeroDivisionError" in one_line_error(run("inspect", "net.py:broken", cwd=tmp_path))
    assert "did you mean 'build'" in one_line_error(run("inspect", "net.py:buildd", cwd=tmp_path))


def test_ctrl_c_is_clean(tmp_path, model):
    """Interrupted while the data function runs: one line, exit 130, no file."""
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\nimport numpy as np\n"
        "def data():\n    pathlib.Path('started').touch()\n    time.sleep(60)\n    yield np.zeros((1, 3, 16, 16))\n"
    )
    words = ["ptq", str(model), "--data", "slow.py:data", "-o", "out.mgt"]
    process = subprocess.Popen([*RUN, *words], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert err.strip() == "mge-quantize: interrupted; no unfinished file was left"
    assert not list(tmp_path.glob("*out*")) and not list(tmp_path.glob(".out*"))


@pytest.fixture(scope="module")
def quantized(run, model, tmp_path_factory):
    """The little network quantized by the command, with everything it can write."""
    folder = tmp_path_factory.mktemp("ptq")
    rng = np.random.default_rng(1)
    np.save(folder / "data.npy", rng.standard_normal((12, 3, 16, 16)).astype(np.float32))
    words = ["--data", "data.npy", "-o", "q.mgt", "--onnx", "q.onnx", "--report", "q.html", "--json"]
    done = run("ptq", model, *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_ptq_writes_model_onnx_and_report(quantized):
    folder, result = quantized
    assert sorted(p.name for p in folder.iterdir()) == ["data.npy", "q.html", "q.mgt", "q.onnx"]
    assert result["written"] == ["q.mgt", "q.onnx", "q.html"]
    assert result["output_sqnr_db"] > 25 and result["int8_bytes"] < result["float_bytes"]
    page = (folder / "q.html").read_text()
    assert all(edge["name"] in page for edge in result["edges"])
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page


def test_integer_model_and_qdq_onnx_agree_with_the_float_network(run, quantized, model):
    pytest.importorskip("onnxruntime")
    folder, _ = quantized
    from megengine.traced_module.formats import native as files

    x = np.load(folder / "data.npy")[:1]
    wanted = session_of(model).run(None, {"x": x})[0]
    qdq = session_of(folder / "q.onnx").run(None, {"x": x})[0]
    integer = files.load(folder / "q.mgt")(x).numpy()
    assert np.abs(integer - wanted).max() < 0.05 * np.abs(wanted).max()
    assert np.abs(integer - qdq).max() < 0.02 * np.abs(wanted).max()
    stored = {t.name: t for t in onnx.load(folder / "q.onnx").graph.initializer}
    assert any(t.data_type == TensorProto.INT8 and list(t.dims) == [4, 3, 3, 3] for t in stored.values())


def test_verify_and_bench_on_the_result(run, one_line_error, quantized, model):
    folder, _ = quantized
    done = run("verify", "q.mgt", "--data", "data.npy", "--samples", "2", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "exact: specification" in done.stdout
    found = json.loads(run("bench", model, "q.mgt", "--rounds", "2", "--json", cwd=folder).stdout)
    assert [row["model"] for row in found["models"]] == [str(model), "q.mgt"]
    assert all(row["ms"] >= 0 for row in found["models"])
    assert "quantize it first" in one_line_error(run("verify", model, "--data", folder / "data.npy"))


@pytest.mark.parametrize(
    ("data", "words", "message"),
    [
        ("nan.npy", (), "batch 1: 1 NaN or infinite value"),
        ("small.npy", (), "shape (1, 3, 8, 8); expected (n, 3, 16, 16)"),
        ("none", (), "no such file or folder"),
        ("pictures", ("--preprocess", "unit"), "broken.png: cannot be read"),
        ("good.npy", ("--exclude", "hed"), "'hed' selects no layer; nearest: head"),
        ("good.npy", ("-o", "none/q.mgt"), "does not exist"),
        ("good.npy", ("-o", "q.mtg"), "expected .mgt (our format) or .onnx"),
        ("good.npy", ("--onnx", "none/q.onnx"), "does not exist"),
    ],
)
def test_bad_input_of_ptq_is_one_line_and_leaves_nothing(run, one_line_error, tmp_path, model, data, words, message):
    good = np.zeros((3, 3, 16, 16), np.float32)
    np.save(tmp_path / "good.npy", good)
    np.save(tmp_path / "small.npy", good[:, :, :8, :8])
    good[1, 0, 0, 0] = np.nan
    np.save(tmp_path / "nan.npy", good)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "broken.png").write_bytes(b"\x89PNG")
    before = sorted(tmp_path.rglob("*"))
    line = one_line_error(run("ptq", model, "--data", data, "-o", "q.mgt", *words, cwd=tmp_path))
    assert message in line
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_write_protected_folder(run, one_line_error, tmp_path, model):
    np.save(tmp_path / "good.npy", np.zeros((1, 3, 16, 16), np.float32))
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    words = ("--data", tmp_path / "good.npy", "-o", locked / "q.mgt")
    assert "cannot be written" in one_line_error(run("ptq", model, *words))


def test_names_in_capitals(run, little, tmp_path):
    onnx.save(little(), tmp_path / "NET.ONNX")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32))
    (tmp_path / "x.npy").rename(tmp_path / "X.NPY")
    assert run("inspect", tmp_path / "NET.ONNX").returncode == 0
    made = run("ptq", tmp_path / "NET.ONNX", "--data", tmp_path / "X.NPY", "-o", tmp_path / "q.mgt")
    assert made.returncode == 0, made.stderr
    (tmp_path / "q.mgt").rename(tmp_path / "Q.MGT")
    assert run("verify", tmp_path / "Q.MGT", "--data", tmp_path / "X.NPY").returncode == 0
