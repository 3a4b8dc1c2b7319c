"""Analysis, scores by labels and comparison, as users meet them: tables, JSON, refusals."""

import json

import numpy as np
import onnx
import pytest
from PIL import Image

from megengine.cli.app import group
from tests.helpers.command import call


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """Arrays, labels in every form, pictures in folders of classes, a float and a quantized network."""
    made = tmp_path_factory.mktemp("analysis")
    rng = np.random.default_rng(0)
    np.save(made / "x.npy", rng.standard_normal((12, 3, 16, 16)).astype(np.float32))
    (made / "net.onnx").write_bytes(model.read_bytes())
    for name in ("cat/1.png", "cat/2.png", "dog/3.png"):
        (made / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)).save(made / "photos" / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        call("ptq", "net.onnx", "--data", "x.npy", "-o", "q.mgt", "--onnx", "q.onnx")
    return made


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def found(*words):
    return json.loads(call(*words, "--json"))


def test_analysis_tells_layers_parts_and_advice_and_writes_no_model(folder):
    before = sorted(folder.iterdir())
    said = call("analyze", "net.onnx", "--data", "x.npy")
    for text in ("Lowest signal to noise", "Layers that gain most in float", "rounded alone: weights", "outputs: SQNR"):
        assert text in said
    assert "on 3 samples held out of calibration (sample " in said and sorted(folder.iterdir()) == before
    one = found("analyze", "net.onnx", "--data", "x.npy", "--weights", "per_tensor", "--exclude", "op:matmul")
    assert one["sensitivity"]["layers"][0]["name"] == "x" and one["faults"] == []
    assert set(one["edges"][0]["histogram"]) == {"low", "high", "float", "integer"}
    assert sum(one["edges"][0]["histogram"]["float"]) == sum(one["edges"][0]["histogram"]["integer"]) == 3 * 3 * 16 * 16


def test_analysis_takes_every_setting_of_ptq():
    import click

    names = {
        name: {p.name for p in group.get_command(click.Context(group), name).params} for name in ("ptq", "analyze")
    }
    assert names["ptq"] - names["analyze"] == {"output", "onnx_path", "plan_only"} and names["analyze"] <= names["ptq"]
    assert "Missing option '--data'" in call("analyze", "net.onnx", code=2)


def test_dangers_are_told_by_ptq_too(little):
    import onnx

    w = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    w[2] = 0
    onnx.save(little(weight=w), "dead.onnx")
    one = found("ptq", "dead.onnx", "--data", "x.npy", "-o", "dead.mgt")
    assert any(risk["kind"] == "dead channels" and "1 of 4 output channels" in risk["text"] for risk in one["risks"])
    said = call("analyze", "dead.onnx", "--data", "x.npy")
    assert "note: body_conv_Conv: dead channels: 1 of 4 output channels" in said and "danger" not in said


def onnx_reference(path, x):
    import onnx
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0]


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def test_models_are_scored_by_labels_in_every_form():
    first = found("evaluate", "net.onnx", "q.mgt", "q.onnx", "--data", "x.npy")["models"]
    assert [one["model"] for one in first] == ["net.onnx", "q.mgt", "q.onnx"]
    assert first[0]["agreement"] == 1 and first[0]["sqnr"] is None and first[0]["top1"] is None
    assert first[1]["sqnr"] > 20 and first[1]["bytes"] < first[0]["bytes"]
    np.save("zeros.npy", np.zeros(12, np.int64))
    write("either.txt", "0 1\n" * 12)
    write("of_windows.txt", "\ufeff" + "0\r\n" * 12)
    by_file = [
        found("evaluate", "net.onnx", "--data", "x.npy", "--labels", f)["models"][0]
        for f in ("zeros.npy", "either.txt", "of_windows.txt")
    ]
    assert 0 <= by_file[0]["top1"] <= 1 and by_file[1]["top1"] == 1 == by_file[0]["top5"]
    assert by_file[2] == by_file[0]
    words = ("--data", "photos", "--preprocess", "imagenet")
    write("by_path.csv", "path,class\ndog/3.png,1\ncat/1.png,0\ncat/2.png,0\n")
    a, b = (found("evaluate", "net.onnx", *words, "--labels", how)["models"][0] for how in ("folders", "by_path.csv"))
    assert a["top1"] == b["top1"] and a["count"] == 3
    said = call("evaluate", "net.onnx", *words, "--labels", "folders")
    assert "top-1 " in said and f"{round(3 * a['top1'])} of 3" in said and "3 samples measured the score" in said
    assert "top-1" not in call("evaluate", "net.onnx", "--data", "x.npy")


def test_an_index_out_of_range_names_its_sample(folder):
    nodes = [onnx.helper.make_node("Gather", ["table", "words"], ["rows"]),
             onnx.helper.make_node("MatMul", ["rows", "w"], ["y"])]  # fmt: skip
    rng = np.random.default_rng(0)
    stored = [onnx.numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n)
              for n, s in (("table", (5, 4)), ("w", (4, 3)))]  # fmt: skip
    ends = [onnx.helper.make_tensor_value_info("words", onnx.TensorProto.INT64, [1, 6]),
            onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 6, 3])]  # fmt: skip
    graph, opset = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], stored), onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), "words.onnx")
    words = rng.integers(0, 5, (9, 6))
    words[6, 2] = 7
    np.save("words.npy", words)
    said = "index 7 is out of range for axis 0 of length 5 | sample 7 of data 'words.npy' holds 7 in input 'words'"
    for line in (
        ("ptq", "-o", "w.mgt"),
        ("evaluate",),
        ("calibrate", "-o", "w.stats", "--held-out", "0", "--workers", "2"),
    ):
        assert said in call(line[0], "words.onnx", "--data", "words.npy", *line[1:], code=1)
    assert not {"w.mgt", "w.stats"} & {path.name for path in folder.iterdir()}


def test_few_samples_are_counted_and_many_are_a_percentage():
    """The network itself is the reference, and has no ratio to itself; another one may be equal to it."""
    line = call("evaluate", "net.onnx", "q.mgt", "net.onnx", "--data", "x.npy")
    rows = [row.split() for row in line.splitlines() if row.strip().startswith(("net.onnx ", "q.mgt "))]
    assert [row[1:5] for row in rows if "of" in row[1:4]] == [
        ["12", "of", "12", word] for word in ("reference", rows[1][4], "equal")
    ]
    assert float(rows[1][4]) > 20 and "inf" not in line and "%" not in line
    np.save("many.npy", np.random.default_rng(1).standard_normal((100, 3, 16, 16)).astype(np.float32))
    assert "same first class %" in call("evaluate", "net.onnx", "--data", "many.npy")
    assert found("evaluate", "net.onnx", "--data", "many.npy")["warnings"] == []


def test_the_first_samples_have_the_first_labels():
    """`--samples` takes the first ones, of the labels too."""
    logits = onnx_reference("net.onnx", np.load("x.npy")[:4])
    np.save("right.npy", np.concatenate([logits.argmax(1), np.zeros(8, int) + 1 - logits.argmax(1)[0]]))
    told = found("evaluate", "net.onnx", "--data", "x.npy", "--labels", "right.npy", "--samples", "4")["models"][0]
    assert (told["count"], told["top1"]) == (4, 1)
    trained = found(
        *("qat", "net.onnx", "--data", "x.npy", "--labels", "right.npy", "--samples", "10"),
        *("--batch", "2", "--epochs", "1", "-o", "first.mgt"),
    )
    assert trained["record"]["counts"]["training"] == 8  # a quarter of ten chooses and scores
    write("three.txt", "0\n" * 3)
    few = ("--data", "x.npy", "--labels", "three.txt", "--samples", "4")
    assert "3 labels for 4 samples" in call("evaluate", "net.onnx", *few, code=1)


@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        ("x.npy", "no.txt", "--labels 'no.txt': no such file"),
        ("x.npy", "net.onnx", "--labels 'net.onnx': expected .npy, .txt, .csv, or the word folders"),
        ("x.npy", "folders", "data 'x.npy' is no folder of pictures"),
        ("photos/cat", "folders", "'1.png' lies in 'photos/cat' itself"),
        ("x.npy", "x.npy", "expected one whole number for each sample"),
        ("x.npy", "broken.npy", "not a readable .npy array"),
        ("x.npy", "words.txt", "line 2: 'b' is no class"),
        ("photos", "names.csv", "line 1: 'cat' is no class"),
        ("photos", "headed.csv", "line 3: 'dog' is no class"),
        ("x.npy", "empty.txt", "the file is empty"),
        ("x.npy", "rows.npy", "expected one whole number for each sample (of a row of classes for each: array.argmax"),
        ("x.npy", "real.npy", "expected one whole number for each sample (as 1-d integers: array.reshape(-1).astype"),
        ("x.npy", "latin.txt", "cannot be read"),
        ("x.npy", "few.txt", "--labels few.txt: 1 label for 12 samples"),
        ("x.npy", "many.txt", "--labels many.txt: sample 12 has class 99999, and 'net.onnx' gives"),
        ("x.npy", "below.npy", "--labels below.npy: sample 1 has class -1, and 'net.onnx' gives"),
        ("x.npy", "paths.csv", "names pictures, and data 'x.npy' is no folder of them"),
        ("photos", "paths.csv", "no line for 2 pictures of 'photos'; first: 'cat/2.png'"),
    ],
)
def test_labels_that_do_not_fit_are_refused(data, labels, message):
    write("words.txt", "0\nb\n")
    write("few.txt", "0\n")
    write("names.csv", "cat/1.png,cat\n")
    write("headed.csv", "path,class\ncat/1.png,0\ndog/3.png,dog\n")
    write("empty.txt", "\n")
    np.save("rows.npy", np.eye(12))
    np.save("real.npy", np.zeros(12))
    write("many.txt", "0\n" * 11 + "1 99999\n")
    np.save("below.npy", -np.ones(12, np.int64))
    write("paths.csv", "cat/1.png,0\n")
    write("broken.npy", "text")
    with open("latin.txt", "wb") as file:
        file.write(b"\xff\xfe0")
    more = ("--preprocess", "imagenet") if data.startswith("photos") else ()
    assert message in call("evaluate", "net.onnx", "--data", data, "--labels", labels, *more, code=1)


def test_models_of_other_results_are_refused(little):
    import onnx
    from onnx import numpy_helper

    other = little()
    head = next(one for one in other.graph.initializer if one.name == "v")
    head.CopyFrom(numpy_helper.from_array(np.ones((4, 5), np.float32), "v"))
    onnx.save(other, "five.onnx")
    said = call("evaluate", "net.onnx", "five.onnx", "--data", "x.npy", code=1)
    assert "'five.onnx' gives 5 numbers" in said and "the first model 2" in said
    said = call("compare", "net.onnx", "five.onnx", "--data", "x.npy", code=1)
    assert "results of shapes (1, 2) and (1, 5)" in said
    write("none.py", "def data():\n    return []\n")
    assert "no sample for 'net.onnx'" in call("evaluate", "net.onnx", "--data", "none.py:data", code=1)


@pytest.mark.parametrize("other", ["q.mgt", "q.onnx"])
def test_a_quantized_model_is_compared_value_by_value_with_its_float_one(other):
    one = found("compare", "net.onnx", other, "--data", "x.npy")
    assert len(one["values"]) >= 3 and one["batches"] == 8 and 20 < one["output_sqnr_db"] < 80
    assert all(x["sqnr_db"] > 20 for x in one["values"])
    said = call("compare", "net.onnx", other, "--data", "x.npy", "--samples", "2")
    assert "Least alike" in said and "on 2 samples; most noise comes in at" in said


def test_equal_models_are_equal_in_every_value():
    said = call("compare", "net.onnx", "net.onnx", "--data", "x.npy")
    assert "equal in every value" in said and "0 without a partner" in said
