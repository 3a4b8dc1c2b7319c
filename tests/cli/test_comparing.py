"""`lint`, `diff`, `edit` and `inspect --find`: what they say, their exit codes, and that bad input leaves nothing."""

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from megengine.cli.app import group
from megengine.traced_module import diff as difference
from megengine.traced_module import load_tm
from megengine.traced_module.formats import native as files

SOURCE = """
import numpy as np
import megengine.functional as F
import megengine.module as M
from megengine import tensor
from megengine.random import seed

X = tensor(np.zeros((1, 3, 8, 8), np.float32))

class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = M.Conv2d(3, 4, 3, padding=1), M.BatchNorm2d(4), M.Dropout(0.5)

    def forward(self, x):
        return F.flatten(F.avg_pool2d(F.relu(self.drop(self.norm(self.conv(x)))), 8), 1)

def made():
    seed(0)
    return Net()

def build():
    return made(), X

def training():
    from megengine.traced_module import trace_module
    return trace_module(made(), X)

def nan():
    from megengine import Parameter
    net = made()
    net.conv.weight = Parameter(np.full((4, 3, 3, 3), np.nan, np.float32))
    return net, X

def spare():
    net = made()
    net.spare = M.Linear(2, 2)
    return net, X

def dead():
    from megengine.traced_module import trace_module
    traced = trace_module(made().eval(), X)
    with traced.graph.insert_exprs():
        F.exp(traced.graph.outputs[0])
    return traced

def branch():
    class Branch(Net):
        def forward(self, x):
            x = self.conv(x)
            return x + 1 if float(x.sum()) > 5 else x
    net = Branch()
    net.drop = net.norm = None
    return net, X
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    """The command in this process, in a folder with net.py; gives exit code, stdout and stderr."""
    (tmp_path / "net.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        done = CliRunner().invoke(group, list(map(str, words)), catch_exceptions=False)
        return done.exit_code, done.stdout, done.stderr

    return invoke


def error_of(done, code=1) -> str:
    """The one line of an error with this exit code."""
    assert done[0] == code, done
    (line,) = done[2].strip().splitlines()
    assert line.startswith("mge-quantize: ")
    return line


# ---------------------------------------------------------------- lint


def test_a_sound_model_has_no_findings(call, model):
    assert call("lint", "net.py:build") == (0, "nothing found\n", "")
    assert call("lint", model)[0] == 0
    found = json.loads(call("lint", "net.py:build", "--json")[1])
    assert found == {"model": "net.py:build", "findings": []}


@pytest.mark.parametrize(
    ("function", "kind", "name", "text"),
    [
        ("training", "training", "norm", "call eval()"),
        ("training", "training", "drop", "draws at random"),
        ("nan", "not finite", "weight", "108 of 108 values"),
        ("spare", "unused", "spare", "no graph reads this Linear"),
        ("dead", "unused", "exp_out", "nothing uses"),
        ("branch", "one value only", "", "was fixed as it was traced"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_findings(call, function, kind, name, text):
    code, shown, _ = call("lint", f"net.py:{function}", "--json")
    assert code == 1
    found = [f for f in json.loads(shown)["findings"] if f["kind"] == kind and (not name or f["name"] == name)]
    assert len(found) == 1 and text in found[0]["text"]
    assert "finding" in call("lint", f"net.py:{function}")[1]


@pytest.mark.parametrize(
    ("op", "value", "found"),
    [("Max", -np.inf, 0), ("Add", -np.inf, 0), ("Add", np.nan, 1), ("Conv", -np.inf, 1), ("Conv", np.nan, 1)],
)
def test_infinity_is_a_mask_but_no_weight(call, op, value, found):
    stored = np.full((3, 3, 1, 1), value, np.float32)
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1,3,3,3] x) => (float[1,3,3,3] y) {{ y = {op} (x, w) }}""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(stored if op == "Conv" else stored[..., 0, 0], "w"))
    onnx.save(model, "masked.onnx")
    code, shown, _ = call("lint", "masked.onnx", "--json")
    assert [f["kind"] for f in json.loads(shown)["findings"]] == ["not finite"] * found and code == found


def test_a_graph_that_contradicts_itself(call, tmp_path):
    call("edit", "net.py:build", "-o", "net.mgt")
    from megengine.traced_module.ir.lint import findings

    model = files.load(tmp_path / "net.mgt")
    node = model.graph.node("relu_out")
    node._users.clear()  # as a bug of an edit would leave it
    assert findings(model)[0].kind == "broken"


# ---------------------------------------------------------------- diff


def test_equal_and_different_models(call, tmp_path):
    assert call("diff", "net.py:build", "net.py:build") == (0, "no differences\n", "")
    assert call("edit", "net.py:build", "-o", "b.mgt", "--rename", "relu_out=act")[0] == 0
    code, shown, _ = call("diff", "net.py:build", "b.mgt")
    assert code == 1 and "= relu_out is now called act" in shown and "\x1b" not in shown
    code, shown, errors = call("diff", "net.py:build", "b.mgt", "--json", "-o", "d.svg")
    found = json.loads(shown)
    assert code == 1 and not errors and found["counts"] == {"renamed": 1} and found["equal"] is False
    assert (tmp_path / "d.svg").read_text().startswith("<svg")
    for name in ("d.html", "d.json", "d.txt"):
        assert call("diff", "net.py:build", "b.mgt", "-o", name)[0] == 1 and (tmp_path / name).stat().st_size


def test_calls_are_compared_with_ops_as_ops(call):
    assert call("edit", "net.py:build", "-o", "b.onnx")[0] == 0
    code, shown, _ = call("diff", "net.py:build", "b.onnx", "--json")
    assert code in (0, 1) and "error" not in json.loads(shown)


def test_trouble_of_diff_is_exit_code_2(call, tmp_path):
    assert "no such file" in error_of(call("diff", "net.py:build", "none.tm"), 2)
    assert "expected .svg" in error_of(call("diff", "net.py:build", "net.py:build", "-o", "d.pdf"), 2)
    (tmp_path / "bad.mgt").write_bytes(b"PK")
    assert "damaged" in error_of(call("diff", "bad.mgt", "net.py:build"), 2)
    assert "does not exist" in error_of(call("diff", "net.py:build", "net.py:build", "-o", "none/d.svg"), 2)
    failed = call("diff", "bad.mgt", "net.py:build", "--json")
    assert failed[0] == 2 and "damaged" in json.loads(failed[1])["error"]["message"]
    assert call("diff", "net.py:build")[0] == 2
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["bad.mgt", "net.py"]


def test_both_commands_in_a_process_of_their_own(run, model, tmp_path):
    done = run("diff", model, model)
    assert (done.returncode, done.stdout, done.stderr) == (0, "no differences\n", "")
    other = onnx.load(model)
    weight = np.array(onnx.numpy_helper.to_array(other.graph.initializer[0]))
    weight[0, 0, 0, 0] += 1
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(other, tmp_path / "other.onnx")
    done = run("diff", model, tmp_path / "other.onnx")
    assert done.returncode == 1 and "1 of 108 values differ, by at most 1 " in done.stdout
    assert run("lint", tmp_path / "other.onnx").returncode == 0
    assert run("diff", model, tmp_path / "none.onnx").returncode == 2


# ---------------------------------------------------------------- edit


def test_edits_of_a_saved_log_are_made_again(call, tmp_path):
    words = ("--optimize", "FuseConvBn,DropIdentities", "--rename", "relu_out=act")
    code, shown, _ = call("edit", "net.py:build", "-o", "a.tm", *words, "--save-log", "e.log")
    assert code == 0 and "relu_out is now called act" in shown and "wrote a.tm, e.log" in shown
    code, shown, _ = call("edit", "net.py:build", "-o", "b.tm", "--log", "e.log", "--json")
    assert code == 0 and json.loads(shown)["written"] == ["b.tm"] and len(json.loads(shown)["edits"]) == 3
    assert (tmp_path / "a.tm").read_bytes() == (tmp_path / "b.tm").read_bytes()
    made = load_tm(tmp_path / "a.tm")
    assert made.graph.node("act") and not [e for e in made.graph.exprs() if e.name in ("norm", "drop")]
    code, shown, _ = call("edit", "a.tm", "-o", "c.mgt")
    assert code == 0 and not difference(made, files.load(tmp_path / "c.mgt"))


def test_a_model_is_cut_at_nodes(call, tmp_path, model):
    assert call("edit", "net.py:build", "-o", "one.mgt", "--keep", "relu_out")[0] == 0
    one = files.load(tmp_path / "one.mgt")
    x = np.ones((1, 3, 8, 8), np.float32)
    assert one(x).shape == (1, 4, 8, 8) and len(one.graph.outputs) == 1
    assert call("edit", "net.py:build", "-o", "two.mgt", "--keep", "norm_out", "--keep", "flatten_out")[0] == 0
    assert [t.shape for t in files.load(tmp_path / "two.mgt")(x)] == [(1, 4, 8, 8), (1, 4)]
    assert call("edit", model, "-o", "ops.onnx", "--keep", "body_conv_Conv", "--optimize", "all")[0] == 0
    assert [o.name for o in onnx.load(tmp_path / "ops.onnx").graph.output] == ["body_conv_Conv"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "o.txt"), "expected .mgt"),
        (("-o", "none/o.mgt"), "does not exist"),
        (("-o", "o.mgt", "--rename", "relu_out"), "expected OLD=NEW"),
        (("-o", "o.mgt", "--rename", "relu_otu=act"), "no value 'relu_otu'; did you mean 'relu_out'?"),
        (("-o", "o.mgt", "--rename", "relu_out=norm_out"), "'norm_out' already names"),
        (("-o", "o.mgt", "--rename", "relu_out=a b"), "'a b' is not a name"),
        (("-o", "o.mgt", "--keep", "norm"), "'norm' is a layer; expected a value, such as norm_out"),
        (("-o", "o.mgt", "--optimize", "FuseConvB"), "unknown pass 'FuseConvB'; did you mean"),
        (("-o", "o.mgt", "--log", "none.log"), "none.log: no such file"),
        (("-o", "o.mgt", "--log", "net.py"), "damaged or not a log file"),
        (("-o", "o.mgt", "--log", "fits.log"), "replay: edit 1 of 1 (rename) does not fit this model"),
        (("-o", "o.mgt", "--save-log", "none/e.log"), "does not exist"),
    ],
)
def test_bad_edits_are_one_line_and_leave_nothing(call, tmp_path, words, message):
    call("edit", "net.py:build", "-o", "other.mgt", "--rename", "relu_out=act", "--save-log", "old.log")
    call("edit", "other.mgt", "-o", "third.mgt", "--rename", "act=again", "--save-log", "fits.log")
    before = sorted(p.name for p in tmp_path.iterdir())
    assert message in error_of(call("edit", "net.py:build", *words))
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_ops_are_not_written_as_calls(call, model, tmp_path):
    assert "is a graph of ops" in error_of(call("edit", model, "-o", "o.tm"))
    assert not (tmp_path / "o.tm").exists()
    assert "pass 'FuseConvBn' works on graphs of calls; known for graphs of ops" in error_of(
        call("edit", model, "-o", "o.mgt", "--optimize", "FuseConvBn")
    )


# ---------------------------------------------------------------- inspect


def test_layers_are_found_by_pattern(call):
    code, shown, _ = call("inspect", "net.py:build", "--calls", "--find", "CONV*", "--json")
    (layer,) = json.loads(shown)["layers"]
    assert code == 0 and layer["name"] == "conv_out" and layer["macs"] == 4 * 27 * 64 == layer["flops"] // 2
    assert "net.py:" in layer["source"]
    code, shown, _ = call("inspect", "net.py:build", "--find", "relu*")
    assert code == 0 and "1 of " in shown
    assert "matches; did you mean 'relu'?" in error_of(call("inspect", "net.py:build", "--find", "rleu"))
    call("edit", "net.py:build", "-o", "f.mgt", "--optimize", "FuseConvBn")
    assert "passes that changed it: FuseConvBn" in call("inspect", "f.mgt", "--calls")[1]
    assert "million FLOPs" in call("inspect", "f.mgt")[1]


def test_hostile_names_are_harmless_on_a_terminal(call, tmp_path, little):
    model = little()
    for node in model.graph.node:
        node.name = "\x1b[31m<script>\n" + node.name
    onnx.save(model, tmp_path / "bad.onnx")
    for words in (("lint", "bad.onnx"), ("diff", "bad.onnx", "net.py:build"), ("inspect", "bad.onnx", "--find", "*")):
        _, shown, errors = call(*words)
        assert "\x1b" not in shown + errors


def test_layers_of_submodules_are_found_by_the_paths_that_edit_takes(call):
    _, shown, _ = call("inspect", "net.py:build", "--calls", "--json")
    deepest = max(json.loads(shown)["layers"], key=lambda layer: layer["node"].count("."))["node"]
    code, shown, _ = call("inspect", "net.py:build", "--calls", "--find", deepest, "--json")
    assert code == 0 and [layer["node"] for layer in json.loads(shown)["layers"]] == [deepest]
    assert call("edit", "net.py:build", "-o", "renamed.mgt", "--rename", f"{deepest}=other")[0] == 0
