"""No command writes over a file that it reads without --overwrite, links followed, nor two results to one file."""

import os
import shutil

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto

from megengine.cli.app import COMMANDS, group
from megengine.cli.overwriting import check_outputs
from megengine.core.errors import OptionError


@pytest.fixture
def call(model, little, tmp_path, monkeypatch):
    """The command in this process, beside net.onnx, data.npy, net.py and a recipe; gives exit code and stderr."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(model, "net.onnx")
    np.save("data.npy", np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32))
    (tmp_path / "net.py").write_text("import megengine.module as M\ndef build(): return M.Linear(3, 3)\n")
    (tmp_path / "recipe.json").write_text('{"resize": "square"}')
    (tmp_path / "net.pkl").write_text("weights of mine")
    for name in ("net.onnx", "data.npy", "recipe.json", "net.py"):
        for suffix in (".onnx", ".mgt", ".html", ".svg"):
            (tmp_path / f"link-to-{name}{suffix}").symlink_to(name)
    os.link("net.onnx", "hard.onnx")

    def invoke(*words):
        before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
        done = CliRunner().invoke(group, list(map(str, words)), catch_exceptions=False)
        if done.exit_code:
            assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
        return done.exit_code, done.stderr

    return invoke


PTQ = ("ptq", "net.onnx", "--data", "data.npy")
REFUSED = [
    ((*PTQ, "-o", "net.onnx"), "--output 'net.onnx': would replace 'net.onnx'; choose another path, or add --overwr"),
    ((*PTQ, "-o", "./net.onnx"), "would replace 'net.onnx'"),
    ((*PTQ, "-o", "hard.onnx"), "would replace 'net.onnx'"),
    ((*PTQ, "-o", "q.mgt", "--onnx", "net.onnx"), "--onnx 'net.onnx': would replace"),
    ((*PTQ, "-o", "link-to-data.npy.mgt"), "would replace 'data.npy'"),
    ((*PTQ, "-o", "q.mgt", "--report", "link-to-net.onnx.html"), "--report 'link-to-net.onnx.html': would replace"),
    ((*PTQ, "--preprocess", "recipe.json,margin=0", "-o", "link-to-recipe.json.mgt"), "would replace 'recipe.json'"),
    (("ptq", "net.onnx", "--data", "net.py:build", "-o", "link-to-net.py.mgt"), "would replace 'net.py:build'"),
    (("edit", "net.py:build", "-o", "net.py", "--input-shape", "1,3"), "would replace 'net.py:build'"),
    (("edit", "net.onnx", "-o", "o.mgt", "--save-log", "net.onnx"), "--save-log 'net.onnx': would replace"),
    (("edit", "net.onnx", "--log", "a.log", "--save-log", "a.log"), "--save-log 'a.log': would replace 'a.log'"),
    (("edit", "net.onnx", "--add-module", "m=net.py:build", "--save-log", "net.py"), "would replace 'net.py:build'"),
    (("draw", "net.onnx", "-o", "link-to-net.onnx.svg"), "would replace 'net.onnx'"),
    (("diff", "net.py:build", "net.onnx", "-o", "link-to-net.onnx.html"), "would replace 'net.onnx'"),
    (("edit", "net.onnx", "-o", "o.mgt", "--save-log", "o.mgt"), "--save-log 'o.mgt': is the same file as 'o.mgt'"),
    (("edit", "net.onnx", "-o", "o.py", "--save-log", "o.pkl"), "--save-log 'o.pkl': is the same file as 'o.pkl'"),
    ((*PTQ, "-o", "q.mgt", "--onnx", "same.onnx"), "is the same file as 'q.mgt'"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_is_read_is_not_replaced(call, tmp_path, words, message):
    (tmp_path / "same.onnx").symlink_to("q.mgt")
    (tmp_path / "q.mgt").write_text("old")
    code, errors = call(*words)
    (line,) = errors.strip().splitlines()
    assert code == (2 if words[0] == "diff" else 1) and message in line, line


def test_it_is_replaced_when_told(call, tmp_path):
    assert call("ptq", "net.onnx", "--data", "data.npy", "-o", "net.onnx", "--overwrite") == (0, "")
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load("net.onnx").graph.node)
    assert call("draw", "hard.onnx", "-o", "link-to-net.onnx.svg", "--overwrite")[0] == 0
    assert (tmp_path / "net.onnx").read_text().startswith("<svg") and (tmp_path / "link-to-net.onnx.svg").is_symlink()


def test_two_results_are_never_one_file(call):
    assert call("edit", "net.onnx", "-o", "o.mgt", "--save-log", "o.mgt", "--overwrite")[0] == 1


def test_pictures_and_weights_that_are_read_with_others(tmp_path, monkeypatch, little):
    """A picture of a folder of data, and the file that holds the weights of a model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures" / "cats").mkdir(parents=True)
    picture = tmp_path / "pictures" / "cats" / "1.png"
    picture.touch()
    with pytest.raises(OptionError, match="would replace 'pictures'"):
        check_outputs([("--output", picture)], ["pictures"], overwrite=False)
    check_outputs([("--output", picture.with_name("2.png")), ("--x", None)], ["pictures"], overwrite=False)
    model = little()
    for tensor in model.graph.initializer:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "weights.bin").touch()
    with pytest.raises(OptionError, match=r"--save-log 'weights.bin': would replace 'net.onnx'"):
        check_outputs([("--save-log", tmp_path.__class__("weights.bin"))], ["net.onnx"], overwrite=False)
    (tmp_path / "net.onnx").write_bytes(b"no model")
    check_outputs([("--save-log", tmp_path.__class__("weights.bin"))], ["net.onnx"], overwrite=False)


def test_the_demo_keeps_what_it_has_downloaded(call, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("MEGENGINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "weights.pth").write_text("weights")
    (tmp_path / "report.html").symlink_to("cache/weights.pth")
    code = CliRunner().invoke(group, ["demo", "-o", "report.html"])
    assert code.exit_code == 1 and "would replace" in code.stderr
    assert (tmp_path / "cache" / "weights.pth").read_text() == "weights"


def test_every_command_that_writes_has_the_option():
    for name in COMMANDS:
        command = group.get_command(None, name)  # type: ignore[arg-type]
        options = {option for parameter in command.params for option in parameter.opts}
        assert bool({"--output", "--report"} & options) == ("--overwrite" in options), name
