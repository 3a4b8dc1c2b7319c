"""Quantizing by the command: pictures are prepared as somebody said, what stays in float is told, misuse is refused."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from PIL import Image

from megengine.cli.app import group
from megengine.cli.images import METADATA
from megengine.convert import onnx as converting
from megengine.kernels import isa
from megengine.quantization.pipeline import distill, search
from megengine.traced_module.formats import native
from megengine.traced_module.ir.expr import Constant
from tests.helpers.command import call

GRAPHS = Path(__file__).parents[1] / "data" / "megengine" / "graphs"


@pytest.fixture
def folder(tmp_path, model, monkeypatch):
    """Two pictures, arrays of several dtypes, and the little network."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(2):
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    np.save(tmp_path / "x.npy", rng.standard_normal((3, 3, 16, 16)).astype(np.float32))
    (tmp_path / "net.onnx").write_bytes(model.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_pictures_without_a_recipe_are_refused(folder):
    error = call("ptq", "net.onnx", "--data", "photos", "-o", "q.mgt", code=1)
    assert "data photos: pictures need --preprocess" in error and "the model stores none" in error
    assert all(preset in error for preset in ("imagenet (RGB", "tf (RGB", "caffe (BGR", "unit (RGB", "mnist (L"))
    assert not (folder / "q.mgt").exists()


def test_a_recipe_beside_arrays_is_refused(folder):
    (folder / "make.py").write_text("import numpy as np\ndef data():\n    return []\n")
    for data in ("x.npy", "make.py:data"):
        error = call("ptq", "net.onnx", "--data", data, "--preprocess", "imagenet", "-o", "q.mgt", code=1)
        assert f"--preprocess: data '{data}' gives arrays, which are taken as they are" in error
    assert "no such file or folder" in call(
        "ptq", "net.onnx", "--data", "no", "--preprocess", "tf", "-o", "q.mgt", code=1
    )


def test_the_quantized_model_stores_the_recipe_and_uses_it(folder):
    words = ("--data", "photos", "--preprocess", "caffe,resize=square")
    with isa.capped("avx2"):
        said = call("ptq", "net.onnx", *words, "-o", "q.mgt", "--onnx", "q.onnx", "--report", "q.html")
        assert "saturates with the 8-bit weights of" in said and "--precision w7a8" in said
        narrow = call("ptq", "net.onnx", *words, "-o", "w7.mgt", "--onnx", "w7.onnx", "--precision", "w7a8")
        assert "saturates" not in narrow
    recipe = "16x16 square, BGR, mean 103.939,116.779,123.68, std 1, NCHW"
    assert f"pictures: prepared as --preprocess says: {recipe}" in said
    assert recipe in (folder / "q.html").read_text()
    assert json.loads(native.load("q.mgt").graph.metadata[METADATA])["colour"] == "BGR"
    assert METADATA in {entry.key for entry in onnx.load("q.onnx").metadata_props}

    assert f"pictures: prepared as the model says: {recipe}" in call("inspect", "q.mgt")
    assert METADATA in json.loads(call("inspect", "q.onnx", "--json"))["metadata"]
    said = call("verify", "q.mgt", "--data", "photos", "--threads", "1")
    assert f"prepared as the model says: {recipe}" in said and "exact" in said
    assert "note:" not in said
    assert f"as q.mgt says: {recipe}" in call("bench", "q.mgt", "q.onnx", "--data", "photos", "--rounds", "1")
    found = json.loads(call("verify", "q.mgt", "--data", "photos", "--threads", "1", "--json"))
    assert found["preprocess"]["from"] == "the model" and found["preprocess"]["resize"] == "square"
    call("verify", "q.mgt", "--data", "x.npy", "--threads", "1")  # arrays are taken as they are


def test_another_recipe_than_the_stored_one_is_told(folder):
    call("ptq", "net.onnx", "--data", "photos", "--preprocess", "caffe", "-o", "q.mgt")
    said = call("verify", "q.mgt", "--data", "photos", "--preprocess", "tf", "--threads", "1")
    assert "prepared as --preprocess says: 16x16 crop 0.875, RGB, mean 127, std 128" in said
    assert "note: the model stores another preparation, which --preprocess replaces: 16x16 crop 0.875, BGR" in said
    assert "note:" not in call("verify", "q.mgt", "--data", "photos", "--preprocess", "caffe", "--threads", "1")


def test_a_float_model_may_store_its_recipe(folder):
    net = converting.load("net.onnx")
    how = {"mean": [1, 2, 3], "std": [4], "colour": "BGR"}
    net.graph.metadata[METADATA] = json.dumps(how)
    native.save(net, "net.mgt")
    found = json.loads(call("ptq", "net.mgt", "--data", "photos", "-o", "q.mgt", "--json"))
    assert found["preprocess"] | how == {**found["preprocess"], "from": "the model"}
    net.graph.metadata[METADATA] = '{"mean": "\x1b[31m"}'
    native.save(net, "bad.mgt")
    error = call("ptq", "bad.mgt", "--data", "photos", "-o", "q.mgt", code=1)
    assert "the model stores a recipe for pictures that cannot be used" in error and "\x1b" not in error
    assert "cannot be used" in call("inspect", "bad.mgt")


def test_a_recipe_of_other_channels_is_refused(folder):
    error = call("ptq", "net.onnx", "--data", "photos", "--preprocess", "mnist", "-o", "q.mgt", code=1)
    assert "the recipe makes 1 channel (L), input 'x' takes (n, 3, 16, 16)" in error


def test_bench_prepares_nothing_without_data(folder):
    assert "there is no --data to prepare" in call("bench", "net.onnx", "--preprocess", "tf", code=1)


def test_a_quantized_model_is_refused(folder):
    words = ("--data", "x.npy", "-o")
    call("ptq", "net.onnx", *words, "q.mgt", "--onnx", "q.onnx")
    for name, how in (
        ("q.mgt", "it computes in integers"),
        ("q.onnx", "it holds quantize / dequantize pairs"),
        (GRAPHS / "res_fused_q.tm", "it computes in integers"),
        (GRAPHS / "res_fused_qat.tm", "it holds fake quantization"),
    ):
        error = call("ptq", name, *words, "again.mgt", code=1)
        assert "is quantized already" in error and how in error and "take the float network" in error
    assert not (folder / "again.mgt").exists()


def one_node_model(*nodes, stored=()):
    x = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 16, 16])]
    y = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    made = onnx.helper.make_graph(list(nodes), "plain", x, y, list(stored))
    onnx.save(
        onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), "plain.onnx"
    )


def test_a_model_with_nothing_to_quantize_is_refused(folder):
    one_node_model(onnx.helper.make_node("Softmax", ["x"], ["y"], "soft"))
    error = call("ptq", "plain.onnx", "--data", "x.npy", "-o", "q.mgt", code=1)
    assert "'plain' has nothing to quantize: no layer with weights" in error and "only softmax" in error
    assert not (folder / "q.mgt").exists()


def test_what_stays_in_float_is_told_everywhere(folder):
    words = ("ptq", "net.onnx", "--data", "x.npy", "-o", "q.mgt")
    assert "left in float: nothing" in call(*words)
    said = call(*words, "--exclude", "body.conv", "--report", "q.html")
    line = "left in float: 3 ops, 99.97 % of the multiply-adds"  # all but the head's 8
    assert line in said and "excluded by 'body.conv'" in said
    page = (folder / "q.html").read_text()
    assert line in page and "excluded by &#39;body.conv&#39;" in page
    found = json.loads(call(*words, "--exclude", "body.conv", "--json"))["floating"]
    assert [(one["op"], one["macs"]) for one in found] == [("conv2d", 4 * 27 * 256), ("relu", 0), ("mean", 0)]
    assert found[0]["share"] == pytest.approx(1, abs=1e-3) and found[0]["reason"] == "excluded by 'body.conv'"


def test_integer_inputs_keep_their_width(folder):
    rng = np.random.default_rng(0)
    stored = [
        onnx.numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n)
        for n, s in (("e", (20, 8)), ("w", (8, 4)))
    ]
    nodes = [
        onnx.helper.make_node("Gather", ["e", "ids"], ["g"], "emb"),
        onnx.helper.make_node("MatMul", ["g", "w"], ["y"], "mm"),
    ]
    ids = [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [1, 5])]
    y = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    made = onnx.helper.make_graph(nodes, "lookup", ids, y, stored)
    onnx.save(onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), "ids.onnx")
    for dtype in (np.int64, np.int32, np.float32):
        np.save("ids.npy", rng.integers(0, 20, (4, 5)).astype(dtype))
        call("ptq", "ids.onnx", "--data", "ids.npy", "-o", "q.mgt")
        assert "exact" in call("verify", "q.mgt", "--data", "ids.npy", "--threads", "1")
        call("bench", "ids.onnx", "q.mgt", "--data", "ids.npy", "--rounds", "1")
    np.save("ids.npy", np.full((4, 5), 0.5))
    error = call("ptq", "ids.onnx", "--data", "ids.npy", "-o", "q.mgt", code=1)
    assert "float64 with values such as 0.5, which int64 does not hold; expected int64 (1, 5) of input 'ids'" in error


def test_options_replace_what_an_effort_chooses(folder):
    common = ("ptq", "net.onnx", "--data", "x.npy", "-o", "q.mgt", "--report", "q.html", "--effort", "balanced")
    call(*common)
    page = (folder / "q.html").read_text()
    assert "range by mse" in page and "gptq" in page
    call(*common, "--overwrite", "--rounding", "nearest", "--activations", "percentile", "--no-equalize")
    page = (folder / "q.html").read_text()
    assert "range by percentile 99.999" in page and "gptq" not in page


def test_an_interrupted_training_goes_on_when_the_line_is_repeated(folder, monkeypatch):
    np.save("x.npy", np.random.default_rng(0).standard_normal((12, 3, 16, 16)).astype(np.float32))
    line = ("ptq", "net.onnx", "--data", "x.npy", "--held-out", "0", "--distillation", "2", "-o")
    call(*line, "whole.mgt")
    trained, passes = distill._Training.epoch, []

    def epoch(self, progress):
        passes.append(self.passes)
        if len(passes) == 2:
            raise KeyboardInterrupt
        return trained(self, progress)

    monkeypatch.setattr(distill._Training, "epoch", epoch)
    said = call(*line, "q.mgt", "--state", "best.state", code=130)
    assert "interrupted; no unfinished file was left | best.state holds the training; the same line goes on" in said
    assert not (folder / "q.mgt").exists()
    call(*line, "q.mgt", "--state", "best.state")
    assert passes == [0, 1, 1]
    whole, parts = ([v.tobytes() for v in constants(native.load(name))] for name in ("whole.mgt", "q.mgt"))
    assert whole == parts
    error = call(*line, "q.mgt", "--overwrite", "--weights", "per_tensor", "--state", "best.state", code=1)
    assert "is of another network, other data or settings; remove it" in error


def constants(model):
    return [e.value._storage() for e in model.graph.exprs() if isinstance(e, Constant)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--state", "a.state"),
            "state 'a.state' keeps the training of distillation and reconstruction, and the settings",
        ),
        (("--distillation", "1", "--state", "no/a.state"), "lies in no folder: 'no' does not exist"),
        (("--distillation", "1", "--state", "photos"), "state 'photos' is a folder"),
        (("--distillation", "1", "--state", "/proc/a.state"), "its folder takes no new file ("),
        (("--distillation", "1", "--state", "q.mgt"), "--state 'q.mgt': is the same file as 'q.mgt'"),
    ],
)
def test_a_state_that_cannot_be_kept_is_refused_before_the_data_is_read(folder, words, said):
    assert said in call("ptq", "net.onnx", "--data", "x.npy", "-o", "q.mgt", *words, code=1)


def test_a_wrong_effort_names_the_choices(folder):
    done = CliRunner().invoke(group, ["ptq", "net.onnx", "--data", "x.npy", "-o", "q.mgt", "--effort", "balance"])
    assert done.exit_code == 2 and "'fast', 'balanced'" in done.stderr


def test_plan_only_shows_what_each_rule_hits(folder):
    shown = json.loads(call("ptq", "net.onnx", "--plan-only", "--rule", "op:conv2d=w4a8", "--json"))
    ((option, rule, names),) = shown["rules"]
    assert (option, rule) == ("rule", "op:conv2d=w4a8")
    assert {x["name"] for x in shown["layers"] if x["weights"] == "int4 per channel"} == set(names) != set()
    assert "int4 per channel" in call("ptq", "net.onnx", "--plan-only", "--precision", "w4a8")


def test_a_rule_without_layers_names_the_nearest(folder):
    error = call("ptq", "net.onnx", "--plan-only", "--rule", "op:conv3d=w4a8", code=1)
    assert "rule: 'op:conv3d' selects no layer; nearest: op:conv2d" in error


def test_data_and_output_are_needed_without_plan_only(folder):
    for given, missing in ((["--data", "x.npy"], "--output"), (["-o", "q.mgt"], "--data")):
        done = CliRunner().invoke(group, ["ptq", "net.onnx", *given])
        assert done.exit_code == 2 and f"Missing option '{missing}'" in done.stderr


def test_search_keeps_a_budget_and_goes_on_from_its_file(folder):
    words = ("search", "net.onnx", "--data", "x.npy", "-o", "s.mgt", "--effort", "fast")
    whole = json.loads(call(*words, "--max-mb", "1", "--json"))["best"]
    (folder / "s.json").unlink()
    limit = whole["bytes"] - 20
    found = json.loads(call(*words, "--max-mb", str(limit / 1e6), "--overwrite", "--json"))
    assert found["best"]["bytes"] <= limit and not found["best"]["missed"]
    shown = call(*words, "--max-mb", str(limit / 1e6))
    assert "going on from s.json" in shown and "Networks that no other beats" in shown
    assert (folder / "s.svg").read_text().startswith("<svg")
    assert "expected by the noise, 1 of 1 counted on 1 sample that chose; no sample is left that chose" in shown
    (folder / "s.json").unlink()
    call(*words, "--max-latency", "5", "--min-sqnr", "90", "--save-latencies", "t.csv", "--overwrite", code=1)
    (folder / "s.json").unlink()
    table = ("--max-latency", "1.1", "--min-sqnr", "1", "--latency-table", "t.csv", "--overwrite")
    assert json.loads(call(*words, *table, "--json"))["best"]["latency_ms"] > 0
    (folder / "s.json").unlink()
    lines = (folder / "t.csv").read_text().splitlines(keepends=True)
    (folder / "t.csv").write_text("".join(line for line in lines if not line.startswith("qconv2d")))
    assert "not found, the first" in call(*words, *table, code=1)
    error = call(*words, "--max-mb", "0.00001", "--overwrite", code=1)
    assert "search: no network keeps all budgets; the nearest, in s.mgt, misses them by" in error


def test_a_search_is_reported_and_repeated(folder):
    """Times of a table are no matter of chance, so neither is the network."""
    words = ("search", "net.onnx", "--data", "x.npy", "-o", "r.mgt", "--effort", "fast", "--rule", "op:mean=w8a16")
    call(*words, "--max-latency", "5", "--min-sqnr", "20", "--save-latencies", "times.csv")
    (folder / "r.json").unlink()
    call(*words, "--max-latency", "5", "--min-sqnr", "20", "--latency-table", "times.csv", "--report", "r.html",
         "--overwrite")  # fmt: skip
    page = (folder / "r.html").read_text()
    for part in ("Networks that no other beats", "exact: specification", "Every value that both have", "op:mean=w8a16",
                 "data:image/svg+xml"):  # fmt: skip
        assert part in page, part
    assert "the same bytes as r.mgt" in call("replay", "r.mgt", "-o", "again.mgt")


def test_an_interrupted_search_says_what_it_keeps(folder, monkeypatch):
    saved = search._Search._save

    def save(self):
        saved(self)
        raise KeyboardInterrupt

    words = ("search", "net.onnx", "--data", "x.npy", "-o", "i.mgt", "--effort", "fast", "--max-mb", "1")
    with monkeypatch.context() as patched:
        patched.setattr(search._Search, "_save", save)
        assert "i.json holds what was measured; the same line goes on" in call(*words, code=130)
    assert "going on from i.json" in call(*words)


def test_a_search_warns_of_one_sample(folder):
    np.save("one.npy", np.load("x.npy")[:1])
    words = ("search", "net.onnx", "--data", "one.npy", "-o", "w.mgt", "--effort", "fast", "--max-mb", "1")
    assert "warning: the data is one sample" in call(*words)
