"""What messages, examples and documents suggest to type is a command that exists, with options that it takes."""

import ast
import json
import re
import shlex
from pathlib import Path

import click
import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner
from onnx import numpy_helper
from PIL import Image

from megengine.cli.app import COMMANDS, group
from megengine.cli.recipes import in_options
from megengine.core.errors import nearest, nearest_file
from megengine.traced_module.formats import native

ROOT = Path(__file__).resolve().parents[2]
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?![\w-])")
WORDS = re.compile(r"mge-quantize ([a-z]+)")
OF_OTHERS = ("assets.py",)  # what pip is called with


def command(name):
    found = group.get_command(click.Context(group), name)
    assert found is not None, name
    return found


def options(name):
    return {text for p in command(name).params for text in (*p.opts, *p.secondary_opts)} | {"--help"}


def accepted(words):
    """Words behind `mge-quantize` as they are read; nothing is run."""
    name, *rest = words
    return command(name).make_context(name, rest)


def texts(path):
    """Strings of a file that are no docstrings."""
    tree = ast.parse(path.read_text())
    bodies = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {id(n.body[0].value) for n in ast.walk(tree) if isinstance(n, bodies) and isinstance(n.body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_every_option_that_a_message_names_exists():
    known = {text for name in COMMANDS for text in options(name)} | {"--version"}
    seen = set()
    for path in sorted((ROOT / "cli").glob("*.py")):
        for text in texts(path) if path.name not in OF_OTHERS else ():
            seen |= set(FLAG.findall(text))
            assert set(FLAG.findall(text)) <= known, (path.name, text)
            assert set(WORDS.findall(text)) <= set(COMMANDS), (path.name, text)
    assert len(seen) > 30


def test_documents_name_options_that_exist():
    known = {text for name in COMMANDS for text in options(name)}
    for text in re.findall(r"`([^`]*)`", (ROOT / "docs" / "command.md").read_text()):
        assert set(FLAG.findall(text)) <= known, text


def examples():
    for name in COMMANDS:
        yield from re.findall(r"  mge-quantize (.*)", command(name).epilog or "")
    for path in (ROOT / "README.md", ROOT / "docs" / "command.md"):
        yield from re.findall(r"^(?:\$ )?mge-quantize (.*)", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", sorted(set(examples())))
def test_examples_parse(line):
    accepted(shlex.split(line, comments=True))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_an_example_of_the_command(name):
    assert WORDS.findall(command(name).epilog or "") and set(WORDS.findall(command(name).epilog)) == {name}


@pytest.mark.parametrize(
    "line",
    [
        "inspect",
        "inspect a.onnx --graph z",
        "ptq a.onnx --effort bst",
        "ptq a.onnx",
        "convert a.onnx",
        "inspekt a.onnx",
    ],
)
def test_wrong_usage_is_told_as_json_too(line):
    done = CliRunner().invoke(group, [*line.split(), "--json"])
    told = json.loads(done.stdout)["error"]
    assert done.exit_code == 2 and told["message"] in done.stderr and told["message"]


# ---------------------------------------------------------------- suggestions of errors, as they are made


@pytest.fixture
def call(model, little, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(model.read_bytes())
    made = little()
    made.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(made, tmp_path / "no shape.onnx")
    made = little()
    for axis, name in ((2, "height"), (3, "width")):
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    onnx.save(made, tmp_path / "open.onnx")
    (tmp_path / "pictures").mkdir()
    for i in range(3):
        pixels = np.random.default_rng(i).integers(0, 256, (20, 30, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{i}.png")
    (tmp_path / "net.py").write_text("import megengine.module as M\ndef build(): return M.Conv2d(3, 4, 3)\n")
    np.save("data.npy", np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32))

    def invoke(*words):
        done = CliRunner().invoke(group, list(words), catch_exceptions=False)
        return done.exit_code, done.stderr.strip()

    return invoke


ADDED = [
    (("inspect", "net.py:build"), r"add (--input-shape \S+)$"),
    (("draw", "no shape.onnx", "-o", "a.svg"), r"for example with (--input-shape \S+)$"),
    (("edit", "net.onnx", "-o", "net.onnx"), r"or add (--overwrite)$"),
    (("ptq", "net.onnx", "--data", "data.npy", "-o", "net.onnx"), r"or add (--overwrite)$"),
    (
        ("ptq", "net.onnx", "--data", "data.npy", "-o", "q.mgt", "--percentile", "99"),
        r"only (--activations percentile) takes it",
    ),
    (("ptq", "open.onnx", "--data", "pictures", "--preprocess", "tf", "-o", "q.mgt"), r"example (--preprocess \S+)$"),
]


@pytest.mark.parametrize(("words", "pattern"), ADDED, ids=[" ".join(words) for words, _ in ADDED])
def test_an_option_that_an_error_advises_mends_it(call, words, pattern):
    code, line = call(*words)
    found = re.search(pattern, line)
    assert code == 1 and found, line
    assert call(*words, *shlex.split(found[1])) == (0, "")


def test_models_without_a_recipe_take_that_of_the_others(call):
    """And a network of any size the size of the pictures that calibrated it."""
    words = ("--preprocess", "unit,size=12x16,resize=stretch")
    assert call("ptq", "open.onnx", "--data", "pictures", *words, "-o", "q.mgt", "--onnx", "q.onnx") == (0, "")
    for verb in ("evaluate", "compare", "bench"):
        for pair in (("open.onnx", "q.mgt"), ("q.onnx", "open.onnx")):
            done = CliRunner().invoke(group, [verb, *pair, "--data", "pictures"])
            named = next(name for name in pair if name != "open.onnx")
            assert done.exit_code == 0, (verb, done.output)
            assert "prepared as" in done.stdout and f"{named} says: 12x16" in done.stdout
    assert call("verify", "q.mgt", "--data", "pictures") == (0, "")
    assert "12x16 stretch" in CliRunner().invoke(group, ["inspect", "q.mgt"]).stdout
    code, line = call("evaluate", "open.onnx", "net.onnx", "--data", "pictures")
    assert code == 1 and "the model stores none" in line


def test_a_command_that_an_error_advises_is_one(call):
    code, line = call("verify", "net.onnx", "--data", "data.npy")
    found = re.search(r"mge-quantize (ptq .*)", line)
    assert code == 1 and found, line
    words = shlex.split(found[1].replace("...", "data.npy"))
    accepted(words)
    assert call(*words) == (0, "") and call("verify", "q.mgt", "--data", "data.npy")[0] == 0


STATE = ("ptq", "net.onnx", "--data", "data.npy", "-o", "q.mgt", "--state", "q.state")


@pytest.mark.parametrize("pattern", [r"\((--effort \w+),", r" (--distillation \d+),", r" (--reconstruction \d+)\)"])
def test_arguments_of_python_are_told_as_options(call, pattern):
    """Messages of what the command calls; here the advice is followed."""
    code, line = call(*STATE)
    found = re.search(pattern, line)
    assert code == 1 and found, line
    assert call(*STATE, *found[1].split())[0] == 0


def test_messages_in_the_words_of_the_command_line():
    def told(text):
        return in_options(text, command("ptq"))

    assert told("exclude: 'op:x' selects no layer") == "--exclude: 'op:x' selects no layer"
    assert told("a (bias_correction=False) b") == "a (--no-bias-correction) b"
    assert told('take group=32 or rounding="gptq"') == "take --group 32 or --rounding gptq"
    plain = "node 'exclude=3' has depth=1, x.group=3, equalize"  # no option, a name, another command's
    assert told(plain) == plain


def test_a_search_without_a_budget_names_the_options(call):
    code, line = call("search", "net.onnx", "--data", "data.npy", "-o", "q.mgt")
    assert code == 2 and set(FLAG.findall(line.splitlines()[-1])) < options("search"), line


def test_shapes_are_spoken_of_as_options(call):
    code, line = call("inspect", "net.onnx", "--input-shape", "y=1,3,16,16")
    assert code == 1 and "--input-shape: no input 'y'" in line and "input_shapes" not in line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_as_documented(run, shell):
    """The documented line gives a script, and the command names what can follow."""
    text = (ROOT / "docs" / "command.md").read_text()
    assert f"_MGE_QUANTIZE_COMPLETE={shell}_source mge-quantize" in text
    assert "mge-quantize" in run(_MGE_QUANTIZE_COMPLETE=f"{shell}_source").stdout
    if shell == "bash":
        words = {"COMP_WORDS": "mge-quantize ptq net.onnx --activations m", "COMP_CWORD": "4"}
        shown = run(_MGE_QUANTIZE_COMPLETE="bash_complete", **words).stdout
        assert [line.partition(",")[2] for line in shown.split()] == ["minmax", "mse"]
        for line in ("ptq n", "compare a.onnx n", "ptq net.onnx --data n", "evaluate net.onnx --labels n"):
            words = {"COMP_WORDS": f"mge-quantize {line}", "COMP_CWORD": str(len(line.split()))}
            assert run(_MGE_QUANTIZE_COMPLETE="bash_complete", **words).stdout.strip() == "file,n", line


@pytest.fixture
def switched(call):
    """A network whose input `rate` chooses the weights."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1,8] x, int64 rate) => (float[1,4] y) <int64 limit = {8000}> {
            high = Greater (rate, limit)
            y = If (high) <then_branch = a () => (float[1,4] p) { p = MatMul (x, w) },
                           else_branch = b () => (float[1,4] q) { q = MatMul (x, v) }>
        }""")
    arrays = {"w": rng.normal(size=(8, 4)), "v": rng.normal(size=(8, 4))}
    model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), k) for k, v in arrays.items())
    onnx.save(model, "switched.onnx")
    np.save("rows.npy", rng.normal(size=(8, 8)).astype(np.float32))
    return arrays


def test_a_value_on_the_command_line_fixes_an_input(call, switched):
    words = ("ptq", "switched.onnx", "--data", "rows.npy", "--input-value", "rate=16000", "-o", "q.mgt")
    assert call(*words) == (0, "")
    found, x = native.load("q.mgt"), np.load("rows.npy")[:1]
    assert [node.name for node in found.graph.inputs] == ["x"]
    assert np.abs(found(x).numpy() - x @ switched["w"]).max() < 0.1
    assert call("replay", "q.mgt", "-o", "again.mgt") == (0, "")
    assert Path("again.mgt").read_bytes() == Path("q.mgt").read_bytes()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("rate", "--input-value 'rate': could not convert string to float: ''; expected NAME=16000"),
        ("=3", "--input-value '=3': expected NAME=16000"),
        ("rate=fast", "--input-value 'rate=fast': could not convert string to float: 'fast'"),
        ("rate=none.npy", "No such file or directory: 'none.npy'"),
        ("rat=3", "--input-value: no input 'rat'; did you mean 'rate'"),
        ("rate=1,2", "input 'rate': shape (2,) does not fit the model's ()"),
    ],
)
def test_values_that_fix_no_input(call, switched, value, message):
    code, line = call("inspect", "switched.onnx", "--input-value", value)
    assert code == 1 and message in line and "input_values" not in line, line


def test_a_value_holds_for_the_models_that_have_the_input(call, switched):
    fixed = ("--input-value", "rate=16000")
    data = ("--data", "rows.npy")
    assert call("ptq", "switched.onnx", *data, *fixed, "-o", "q.mgt", "--onnx", "q.onnx") == (0, "")
    for other in ("q.mgt", "q.onnx"):
        assert call("bench", "switched.onnx", other, *fixed, "--rounds", "1") == (0, "")
        assert call("compare", "switched.onnx", other, *data, *fixed) == (0, "")
        assert call("evaluate", other, "switched.onnx", *data, *fixed) == (0, "")
    shape = ("--input-shape", "rate=1")  # none: it fits no input, and is refused by the model that has it
    code, line = call("bench", "q.mgt", "switched.onnx", *fixed, *shape)
    assert code == 1 and "--input-shape" in line and "'rate'" in line
    assert call("bench", "q.mgt", "switched.onnx", *fixed, "--input-shape", "x=1,8", "--rounds", "1") == (0, "")
    np.savez("both.npz", x=np.load("rows.npy"), rate=np.full(8, 16000))
    code, line = call("compare", "switched.onnx", "q.mgt", "--data", "both.npz")
    assert code == 1 and "the first network takes 2 (x, rate), the second 1 (x); compare networks with" in line
    code, line = call("bench", "switched.onnx", "q.onnx", "--input-value", "rat=16000")
    assert code == 1 and "--input-value: no input 'rat'; did you mean 'rate'" in line


@pytest.mark.parametrize(
    "words", [("inspect", "q.mgt"), ("bench", "q.mgt", "q.mgt"), ("verify", "q.mgt", "--data", "rows.npy")]
)
def test_stored_graphs_keep_their_shapes(call, switched, words):
    fixed = ("--data", "rows.npy", "--input-value", "rate=16000")
    assert call("ptq", "switched.onnx", *fixed, "-o", "q.mgt") == (0, "")
    code, line = call(*words, "--input-shape", "x=3,8")
    assert code == 1 and "--input-shape: the inputs of 'q.mgt' keep the shapes that they have; expected" in line


def test_only_inputs_of_onnx_files_are_fixed(call):
    code, line = call("inspect", "net.py:build", "--input-shape", "1,3,8,8", "--input-value", "x=1")
    assert code == 1 and "expected an .onnx file" in line


MISSING = [
    ("inspect", "nett.onnx"),
    ("inspect", "nett.py:build"),
    ("edit", "net.onnx", "-o", "e.onnx", "--log", "edit.log"),
    ("ptq", "net.onnx", "-o", "q.mgt", "--data", "dataa.npy"),
    ("ptq", "net.onnx", "-o", "q.mgt", "--data", "fotos/x.npy"),
    ("ptq", "net.onnx", "-o", "q.mgt", "--data", "data.npy", "--statistics", "ne.stats"),
    ("ptq", "net.onnx", "-o", "q.mgt", "--data", "photos", "--preprocess", "reciep.json"),
    ("ptq", "net.onnx", "-o", "outs/q.mgt", "--data", "data.npy"),
    ("evaluate", "net.onnx", "--data", "data.npy", "--labels", "lables.txt"),
    ("qat", "net.onnx", "--data", "data.npy", "-o", "q.mgt", "--labels", "lables.txt"),
    ("search", "net.onnx", "--data", "data.npy", "-o", "q.mgt", "--max-mb", "1", "--latency-table", "tims.csv"),
    ("lint", "net.onnx", "--recipe", "run.tml"),
    ("inspect", "net.onnx", "--input-value", "x=dat.npy"),
]


@pytest.mark.parametrize("words", MISSING, ids=[" ".join(words) for words in MISSING])
def test_a_path_without_a_file_has_the_nearest(call, words):
    for name in ("edits.log", "net.stats", "recipe.json", "labels.txt", "times.csv", "run.toml"):
        Path(name).touch()
    for name in ("photos", "out"):
        Path(name).mkdir()
    code, line = call(*words)
    (near,) = re.findall(r"did you mean '([^']+)'\?", line)
    assert code in (1, 2) and Path(near).exists(), line


def test_letters_in_another_order_are_nearest():
    assert nearest("pqt", ["qat", "ptq"]) == "; did you mean 'ptq'?"


def test_the_nearest_of_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "photos").mkdir(parents=True)
    (tmp_path / "data" / "net.onnx").touch()
    assert nearest_file("data/nett.onnx") == nearest_file(tmp_path / "data" / "nt.onnx") == "; did you mean 'net.onnx'?"
    assert nearest_file("data/net.onn", (".tm",)) == nearest_file("data/zzz") == nearest_file("") == ""
    assert nearest_file("dta/photos/a.png") == "; there is no folder 'dta'; did you mean 'data'?"
    assert nearest_file("data") == "; a folder is there, expected a file"
    assert nearest_file("data/net.onnx/x") == "" and nearest_file("data/" + "n" * 300) == ""
