"""`edit`: every edit of the library as an option, in the order given, logged, undone, refused whole; several graphs."""

import ast
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from megengine.cli.app import group
from megengine.cli.edit_options import EDIT_OPTIONS
from megengine.core.errors import GraphError
from megengine.serialization import load
from megengine.tensor import tensor
from megengine.traced_module import diff as difference
from megengine.traced_module import lower
from megengine.traced_module.editing.extracting import drop_unused_inputs, extract
from megengine.traced_module.formats import native as files
from megengine.traced_module.ir.queries import child_graphs

SOURCE = """
import numpy as np
import megengine.functional as F
import megengine.module as M
from megengine import tensor
from megengine.random import seed
from megengine.traced_module import trace_module

class Half(M.Module):
    def forward(self, x):
        return F.sigmoid(x) * 0.5

class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.half = M.Conv2d(3, 4, 3, padding=1), M.Sequential(Half(), Half())

    def forward(self, x, y=None):
        z = self.half(F.relu(self.conv(x)))
        return z if y is None else z + self.half(y)

class Both(M.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x, y):
        return self.net(x) + self.net(x, y)

X = tensor(np.zeros((1, 3, 6, 6), np.float32))
Y = tensor(np.zeros((1, 4, 6, 6), np.float32))

def made():
    seed(0)
    return Both().eval()

def build():
    return made().net, X

def two():
    return trace_module(made(), X, Y).net.clone()

def plain():
    return M.Conv2d(3, 4, 3, padding=1, bias=False)

def small():
    return M.Conv2d(5, 4, 3)

def linear():
    return M.Linear(6, 6)

def wrong():
    return 3
"""
x = np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)
y = np.random.default_rng(1).standard_normal((1, 4, 6, 6)).astype(np.float32)


@pytest.fixture
def call(tmp_path, monkeypatch):
    """The command in this process, in a folder with net.py and net.mgt; gives exit code, stdout and stderr."""
    (tmp_path / "net.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        done = CliRunner().invoke(group, list(map(str, words)), catch_exceptions=False)
        return done.exit_code, done.stdout, done.stderr

    assert invoke("edit", "net.py:build", "-o", "net.mgt")[0] == 0
    assert invoke("edit", "net.py:two", "-o", "two.mgt", "--graph", 1)[0] == 0
    return invoke


def done(call, *words, source="net.mgt", to="out.mgt"):
    """The result of an edit, that must be accepted."""
    code, shown, errors = call("edit", source, "-o", to, *words, "--json")
    assert code == 0, errors
    return json.loads(shown)


def run(path, *inputs):
    made = files.load(path)
    found = made(*inputs)
    return [t.numpy() for t in found] if isinstance(found, tuple) else found.numpy()


def sigmoid(v):
    return 1 / (1 + np.exp(-v.astype(np.float64)))


def features():
    """conv and relu of the model, as its parts compute them."""
    made = files.load("net.mgt")
    return np.maximum(made.conv(tensor(x)).numpy(), 0)


CASES = [
    (("--insert", "relu_out=F.minimum(_, 0.25) * 2"), lambda f: sigmoid(0.5 * sigmoid(2 * np.minimum(f, 0.25))) / 2),
    (("--replace", "relu_out=-conv_out", "--prune"), None),
    (("--replace", "relu_out=F.relu6(conv_out)"), lambda f: sigmoid(0.5 * sigmoid(np.minimum(f, 6))) / 2),
    (("--keep", "relu_out", "--keep", "conv_out"), None),
    (("--keep", "relu_out"), lambda f: f),
    (("--exclude", "conv_out", "--keep", "relu_out"), lambda f: f),
    (("--add-output", "relu_out"), lambda f: [sigmoid(0.5 * sigmoid(f)) / 2, f]),
    (("--add-output", "relu_out", "--drop-output", "half_out"), lambda f: f),
    (("--keep", "relu_out", "--insert", "relu_out=F.softmax(_, axis=1)", "--set", "softmax_out:axis=3"), lambda f: (
        np.exp(f - f.max(3, keepdims=True)) / np.exp(f - f.max(3, keepdims=True)).sum(3, keepdims=True)
    )),
    (("--keep", "relu_out", "--insert", "relu_out=_.reshape(1, -1)"), lambda f: f.reshape(1, -1)),
    (("--keep", "relu_out", "--insert", "relu_out=F.concat([_, conv_out], axis=1)"), None),
    (("--add-module", "more=net.py:linear", "--insert", "conv_out=self.more(_)"), None),
    (("--keep", "relu_out", "--insert", "relu_out=self.half[1](_)"), lambda f: sigmoid(f) / 2),
    (("--replace-module", "conv=net.py:plain"), None),
    (("--rename", "relu_out=act", "--insert", "act=F.abs(_)"), None),
    (("--rename", "half.0.mul_out=inner"), None),
    (("--insert", "half.1.sigmoid_out=_ + 1"), lambda f: (1 + sigmoid(0.5 * sigmoid(f))) / 2),
    (("--add-input", "z=1,4,6,6", "--rename", "z=extra"), None),
    (("--passes", "all", "--rename", "relu_out=a", "--undo", "1"), None),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), CASES, ids=lambda c: " ".join(c) if isinstance(c, tuple) else "")
def test_edits_compute_what_they_say_and_their_log_makes_them_again(call, words, expected):
    found = done(call, *words, "--save-log", "e.log")
    assert found["written"] == ["out.mgt", "e.log"]
    if expected is not None:
        wanted, got = expected(features()), run("out.mgt", x)
        for one, other in zip(*((v if isinstance(v, list) else [v]) for v in (wanted, got)), strict=True):
            np.testing.assert_allclose(other, one, atol=2e-6)
    again = done(call, "--log", "e.log", to="again.mgt")
    assert Path("again.mgt").read_bytes() == Path("out.mgt").read_bytes() and again["edits"] == found["edits"]


SPREAD = ("--set", "conv_conv2d_out:padding=((2, 2), (2, 2))", "--set", "conv_conv2d_out:dilation=(2, 2)")


def spread():
    """The result with another padding and dilation of the convolution, in NumPy."""
    conv = files.load("net.mgt").conv
    w, padded = conv.weight.numpy().astype(np.float64), np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))
    taps = [(i, j, padded[:, :, 2 * i : 2 * i + 6, 2 * j : 2 * j + 6]) for i in range(3) for j in range(3)]
    values = sum(np.einsum("oc,ncyx->noyx", w[:, :, i, j], part) for i, j, part in taps) + conv.bias.numpy()
    return sigmoid(0.5 * sigmoid(np.maximum(values, 0))) / 2


def test_settings_of_ops_that_fit_only_together_are_one_edit(call):
    done(call, "--ops", "--insert", "conv_conv2d_out=add(_, _)", "--undo", "1", *SPREAD, "--save-log", "e.log")
    np.testing.assert_allclose(run("out.mgt", x), spread(), atol=2e-6)
    assert len(done(call, "--ops", "--log", "e.log", to="again.mgt")["edits"]) == 1
    assert Path("again.mgt").read_bytes() == Path("out.mgt").read_bytes()
    done(call, "--ops", *SPREAD, "--undo", "1", to="same.mgt")
    np.testing.assert_array_equal(run("same.mgt", x), run("net.mgt", x))


def test_a_setting_of_an_op_may_change_the_shapes_behind_it(call):
    done(call, "--ops", "--set", "conv_conv2d_out:stride=(2, 2)")
    expected = sigmoid(0.5 * sigmoid(features()[:, :, ::2, ::2])) / 2
    np.testing.assert_allclose(run("out.mgt", x), expected, atol=2e-6)


def test_a_page_tells_the_line_that_replays_its_log(call):
    code, shown, errors = call("edit", "net.mgt", "--flatten", "--page", "e.html", "--json")
    assert code == 0, errors
    found = json.loads(shown)
    line = shlex.split(found["line"])
    assert line == ["mge-quantize", "edit", "net.mgt", "--flatten", "--log", "net.log", "-o", "edited.mgt"]
    assert found["written"] == ["e.html"] and found["line"] in Path("e.html").read_text()
    assert call("edit", "net.mgt", "--page", "e.html", "--keep", "relu_out", "--overwrite")[2].endswith(
        "--page: edits nothing itself; leave out --keep, or edit first and give the result\n"
    )
    assert "--page 'e.htm'" in call("edit", "net.mgt", "--page", "e.htm")[2]


def test_every_edit_option_is_tried_here():
    words = {c.value for c in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(c, ast.Constant)}
    assert [option.names[0] for option in EDIT_OPTIONS if not set(option.names) & words] == []


def test_edits_are_made_in_the_order_given(call):
    done(call, "--rename", "relu_out=a", "--rename", "a=b", "--keep", "b")
    assert files.load("out.mgt").graph.outputs[0].name == "b"
    assert "has no value 'relu_out'" in call("edit", "net.mgt", "-o", "o.mgt", "--keep", "b", "--rename", "b=c")[
        2
    ].replace("'b'", "'relu_out'")
    made = done(call, "--rename", "relu_out=a", "--rename", "conv_out=b", "--undo", "1", "--rename", "a=c")
    assert made["edits"] == ["rename: relu_out is now called a", "rename: a is now called c"]


def test_a_part_is_cut_out(call):
    made = done(call, "--extract", "relu_out:half_out")
    assert made["graphs"] == [
        {
            "inputs": [{"name": "relu_out", "shape": [1, 4, 6, 6], "dtype": "float32"}],
            "outputs": [{"name": "half_out", "shape": [1, 4, 6, 6], "dtype": "float32"}],
        }
    ]
    np.testing.assert_allclose(run("out.mgt", y), sigmoid(0.5 * sigmoid(y)) / 2, atol=1e-6)
    done(call, "--flatten", "--extract", ":half__0_out,relu_out", to="flat.mgt")
    assert [t.shape for t in run("flat.mgt", x)] == [(1, 4, 6, 6)] * 2
    done(call, "--ops", "--extract", "relu_out:half_1_mul_out", to="ops.mgt")
    np.testing.assert_allclose(run("ops.mgt", y), sigmoid(0.5 * sigmoid(y)) / 2, atol=1e-6)


def test_ops_are_edited_with_ops(call):
    words = ("--insert", "relu_out=relu(_ - 0.5) * 2", "--keep", "mul_out", "--delete", "relu_out")
    assert "still used" in call("edit", "net.mgt", "--ops", "-o", "o.mgt", *words)[2]
    done(call, "--ops", *words[:2], "--keep", "mul_out", "--save-log", "e.log")
    np.testing.assert_allclose(run("out.mgt", x), np.maximum(features() - 0.5, 0) * 2, atol=1e-6)
    done(call, "--ops", "--log", "e.log", to="b.mgt")
    assert not difference(files.load("out.mgt"), files.load("b.mgt"))
    done(call, "--ops", "--insert", "x=-_ + 1", "--keep", "conv_conv2d_out", to="c.mgt")
    assert run("c.mgt", x).shape == (1, 4, 6, 6)


def test_an_unused_call_is_deleted(call):
    done(call, "--replace", "relu_out=conv_out", "--delete", "relu_out")
    assert not [e for e in files.load("out.mgt").graph.exprs() if e.name == "relu_out"]


def test_modules_with_several_graphs(call):
    code, _, errors = call("edit", "two.mgt", "-o", "o.mgt", "--rename", "relu_out=a")
    assert code == 1 and "has 2 graphs; expected one of: --graph 1: (x); --graph 2: (x, y)" in errors
    assert "--graph 3: the model has 2 graphs" in call("inspect", "two.mgt", "--graph", 3)[2]
    done(call, "--graph", 2, "--add-output", "relu_out", "--rename", "add_out=total", source="two.mgt")
    made = files.load("out.mgt")
    assert [len(g.outputs) for g in made.graphs] == [1, 2]
    assert [t.shape for t in made(tensor(x), tensor(y))] == [(1, 4, 6, 6)] * 2 and made(tensor(x)).shape == (1, 4, 6, 6)
    done(call, "--flatten", "--graph", 2, "--drop-output", "relu_out", source="out.mgt", to="flat.mgt")
    assert run("flat.mgt", x, y).shape == (1, 4, 6, 6)
    assert json.loads(call("inspect", "two.mgt", "--graph", 2, "--json")[1])["inputs"][1]["name"] == "y"
    for name in ("a.svg", "a.dot", "a.html"):
        assert call("draw", "two.mgt", "--graph", 2, "-o", name)[0] == 0
    assert call("draw", "two.mgt", "-o", "b.html")[0] == 0
    assert call("lint", "two.mgt")[0] == 0 and call("diff", "two.mgt", "two.mgt")[0] == 0


def test_source_is_written_and_imports(call, tmp_path):
    assert done(call, to="made.py")["written"] == ["made.py", "made.pkl"]
    spec = importlib.util.spec_from_file_location("made_by_edit", tmp_path / "made.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["made_by_edit"] = module
    spec.loader.exec_module(module)
    np.testing.assert_array_equal(module.load()(tensor(x)).numpy(), run("net.mgt", x))
    assert load(tmp_path / "made.pkl")


def test_the_input_is_replaced_only_when_told(call, tmp_path):
    before = (tmp_path / "net.mgt").read_bytes()
    (tmp_path / "link.mgt").symlink_to("net.mgt")
    for words in (("-o", "net.mgt"), ("-o", "./net.mgt"), ("-o", "link.mgt")):
        assert "would replace 'net.mgt'; choose another path, or add --overwrite" in call("edit", "net.mgt", *words)[2]
    assert "--save-log" in call("edit", "net.mgt", "-o", "o.mgt", "--save-log", "net.mgt")[2]
    assert "--save-log" in call("edit", "net.mgt", "-o", "o.mgt", "--save-log", "o.mgt")[2]
    assert (tmp_path / "net.mgt").read_bytes() == before
    assert call("edit", "net.mgt", "-o", "net.mgt", "--overwrite", "--rename", "relu_out=a")[0] == 0
    assert (tmp_path / "net.mgt").read_bytes() != before
    assert "expected a file to write" in call("edit", "net.mgt")[2]
    assert call("edit", "net.mgt", "--rename", "a=b", "--save-log", "only.log")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--insert", "relu_out=F.rleu(_)"), "no function 'F.rleu' in megengine.functional; did you mean 'relu'?"),
        (("--insert", "relu_out=F.relu(conv_out)"), "expected a call with _"),
        (("--insert", "relu_out=F.relu(_"), "'F.relu(_' is not a call"),
        (("--replace", "relu_out=F.relu(conv_otu)"), "no value 'conv_otu'; did you mean 'conv_out'?"),
        (("--replace", "relu_out=__import__('os').system('touch owned')"), "no function '__import__"),
        (("--replace", "relu_out=_.__class__.__mro__"), "has no place in an edit"),
        (("--insert", "relu_out=self.owner.__dict__.__len__(_)"), "is no layer: there is no submodule 'owner'"),
        (("--insert", "relu_out=self.conv.forward(_)"), "'self.conv.forward' is no layer"),
        (("--insert", "relu_out=self.cnov(_)"), "there is no submodule 'cnov'; did you mean 'conv'?"),
        (("--insert", "relu_out=self.conv.weight(_)"), "there is no submodule 'weight'"),
        (("--insert", "relu_out=self(_)"), "'self' is the whole module; expected self.NAME(_)"),
        (("--insert", "relu_out='{0._graph}'.format(_)"), "is no tensor; only tensors have methods"),
        (("--insert", "relu_out=_.numpy()"), "tensors have no method 'numpy'"),
        (("--insert", "relu_out=_.set_value(3)"), "tensors have no method 'set_value'"),
        (("--insert", "relu_out=_.reshape(1e999)"), "'_.reshape(1e999)': cannot convert float infinity"),
        (("--insert", "relu_out=_ * (1 / 0)"), "'1 / 0': division by zero"),
        (("--insert", "relu_out=_ * 9 ** 9 ** 9"), "is no real number, or an integer of more than 64 bits"),
        (("--insert", "relu_out=_ * (-1) ** 0.5"), "is no real number"),
        (("--insert", "relu_out=F.concat([_] * 10 ** 10)"), "[relu_out] is no number and no tensor"),
        (("--insert", "relu_out=_ + b'x'"), "\"b'x'\" has no place in an edit"),
        (("--replace", "relu_out=_._graph.undo()"), "no function '_._graph.undo'"),
        (("--replace", "relu_out=[1 for _ in range(9)]"), "has no place in an edit"),
        (("--replace", "relu_out=3"), "gives int; expected one tensor"),
        (("--insert", "relu_out=F.matmul(_, x)"), "--insert 'relu_out=F.matmul(_, x)': "),
        (("--insert", "relu_out=F.reshape(_, (5,))"), "reshape"),
        (("--insert", "relu_out=" + "(" * 3000 + "_" + ")" * 3000), "is not a call"),
        (("--insert", "relu_out=" + "-" * 5000 + "_"), "--insert"),
        (("--set", "relu_out=3"), "expected NODE:ARGUMENT=VALUE"),
        (("--set", "x:axis=3"), "is no result of a call"),
        (("--set", "relu_out:x=x", "--set", "conv_out:y=3"), "--set 'relu_out:x=x' --set 'conv_out:y=3': "),
        (("--ops", "--set", "conv_conv2d_out:padding=2"), "expected the form of the present padding=((1, 1), (1, 1))"),
        (("--set", "relu_out:axsi=3"), "--set"),
        (("--delete", "relu_out"), "is still used by"),
        (("--drop-output", "half_out"), "is the only output"),
        (("--drop-output", "relu_out"), "is no output; did you mean 'half_out'?; outputs: half_out"),
        (
            ("--add-output", "mul_out"),
            "2 values are called 'mul_out'; give one by its path: half.0.mul_out, half.1.mul_out",
        ),
        (("--drop-output", "half.0.mul_out"), "is no output"),
        (("--extract", "relu_out"), "expected IN,...:OUT,..."),
        (("--extract", "relu_out:relu_out"), "is both an input and an output"),
        (
            ("--extract", "relu_out:conv_out"),
            "extract: 'conv_out' is not computed from 'relu_out'; give inputs that it",
        ),
        (("--extract", "conv_out,relu_out:half_out"), "is not computed from 'conv_out' without the other inputs"),
        (("--insert", "relu_out=_.reshap(1, -1)"), "tensors have no method 'reshap'; did you mean 'reshape'?"),
        (("--passes", "FuseConvBm"), "--passes 'FuseConvBm': unknown pass 'FuseConvBm'; did you mean 'FuseConvBn'?"),
        (("--extract", "conv:relu_out"), "'conv' is a layer; expected a value, such as conv_out"),
        (("--undo", "1"), "only 0 edits were made"),
        (("--undo", "x"), "expected a count of edits"),
        (("--add-input", "z=1,b"), "'1,b' is no shape"),
        (("--add-input", "z=1,2,x"), "'1,2,x' is no shape"),
        (("--replace-module", "cnov=net.py:plain"), "no value 'cnov'; did you mean 'conv'?"),
        (("--replace-module", "conv=net.py:small"), "channels"),
        (("--replace-module", "conv=net.py:wrong"), "expected a Module, got int"),
        (("--replace-module", "conv=net.py:plian"), "did you mean 'plain'?"),
        (("--add-module", "half=net.py:plain"), "already has an attribute 'half'"),
        (("--passes", "nothing"), "unknown pass 'nothing'; known for graphs of calls: "),
        (("--rename", "relu_out=act", "--rename", "conv_out=act"), "'act' already names %"),
    ],
)
def test_a_refused_edit_names_its_option_and_leaves_nothing(call, tmp_path, words, message):
    before = sorted(p.name for p in tmp_path.iterdir())
    code, _, errors = call("edit", "net.mgt", "-o", "o.mgt", "--save-log", "e.log", *words)
    (line,) = errors.strip().splitlines()
    assert code == 1 and message in line, line
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "__pycache__") == before


def test_typing_errors_get_the_nearest_option(call):
    code, _, errors = call("edit", "net.mgt", "-o", "o.mgt", "--raname", "a=b")
    assert code == 2 and "--rename" in errors


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nett.mgt", "model 'nett.mgt': no such file; did you mean 'net.mgt'?"),
        ("net", "expected .onnx, .tm, .mgt, .mge or module.py:function; did you mean 'net.mgt'?"),
        ("net.mgtt", "did you mean '.mgt'?"),
        ("net.py", "add the function that gives the model, net.py:FUNCTION"),
        ("net.py:plian", "'net.py:plian': net.py has no function 'plian'; did you mean 'plain'?"),
        ("nowhere/net.mgt", "model 'nowhere/net.mgt': no such file"),
        ("folder.mgt", "model 'folder.mgt': no such file; a folder is there, expected a file"),
        ("net.py:", "'net.py:': expected the name of a function behind the colon"),
    ],
)
def test_models_that_are_not_there_get_the_nearest(call, model, message):
    Path("folder.mgt").mkdir()
    for verb in (("inspect",), ("lint",), ("draw", "-o", "p.svg"), ("edit", "-o", "o.mgt")):
        code, _, errors = call(verb[0], model, *verb[1:])
        (line,) = errors.strip().splitlines()
        assert code == 1 and message in line and "raised" not in line and "\\x" not in line, line


@pytest.mark.parametrize(
    ("words", "outputs"),
    [
        (("--add-output", "half.0.mul_out", "--add-output", "half.1.mul_out"), 3),
        (("--keep", "half.0.mul_out"), 1),
        (("--extract", "half.0.mul_out:half_out"), 1),
        (("--extract", "relu_out:half.1.mul_out,half.0.mul_out"), 2),
    ],
)
def test_values_of_submodules_are_outputs_and_ends_of_cuts(call, words, outputs):
    assert call("edit", "net.mgt", "-o", "inner.mgt", "--save-log", "inner.log", *words)[0] == 0
    graph = files.load("inner.mgt").graph
    graph.lint()
    assert len(graph.outputs) == outputs
    assert call("edit", "net.mgt", "-o", "again.mgt", "--log", "inner.log")[0] == 0
    assert repr(files.load("again.mgt")) == repr(files.load("inner.mgt"))


def test_extracting_in_python(call):
    made = files.load("two.mgt")
    one = made.graphs[0]
    with pytest.raises(GraphError, match="expected one output or more"):
        extract(one, [], [])
    with pytest.raises(GraphError, match="'conv' is a part of the model and cannot be an input"):
        extract(one, [one.node("conv")], [one.node("half_out")])
    inner = next(iter(child_graphs(one)))
    with pytest.raises(GraphError, match="is called by another graph"):
        drop_unused_inputs(inner)
    before = repr(made)
    extract(one, [one.node("relu_out")], [one.node("half_out")])
    assert drop_unused_inputs(one) == 0
    assert made.graphs[0].undo() and repr(made) == before
    flat = lower(made.graphs[1]).graph
    extract(flat, [flat.inputs[1]], [flat.inputs[1].users[0].output])
    assert [n.name for n in flat.inputs] == ["y"]


def test_the_batch_is_opened(call):
    done(call, "--open-batch", source="net.py:build")
    assert run("out.mgt", tensor(np.concatenate([x, x, x]))).shape == (3, 4, 6, 6)
    assert str(files.load("out.mgt").graph.inputs[0].spec) == "float32[batch, 3, 6, 6]"


@pytest.mark.parametrize("level", [(), ("--ops",)], ids=["calls", "ops"])
def test_the_line_that_lists_names_lists_names_that_edit_takes(call, level):
    code, _, errors = call("edit", "net.mgt", *level, "-o", "o.mgt", "--rename", "zzz=y")
    (line,) = re.findall(r"`mge-quantize (.*)` lists them", errors)
    assert code == 1
    code, listed, errors = call(*shlex.split(line), "--json")
    names = [row["node"] for row in json.loads(listed)["layers"]]
    assert code == 0 and names, errors
    for name in names:
        code, _, errors = call("edit", "net.mgt", *level, "-o", "o.mgt", "--add-output", name)
        assert code == 0, (name, errors)


def test_a_line_that_lists_names_has_the_options_of_the_model(call):
    code, _, errors = call("edit", "net.py:plain", "--input-shape", "1,3,6,6", "-o", "o.mgt", "--rename", "zzz=y")
    assert code == 1 and "`mge-quantize inspect net.py:plain --calls --input-shape 1,3,6,6 --find '*'`" in errors


def test_of_a_flattened_model_some_names_are_given(call):
    code, _, errors = call("edit", "net.mgt", "--flatten", "-o", "o.mgt", "--rename", "zzz=y")
    named = re.search(r"; it has (\w+), (\w+),", errors)
    assert code == 1 and named, errors
    assert call("edit", "net.mgt", "--flatten", "-o", "o.mgt", "--add-output", named[2])[0] == 0
