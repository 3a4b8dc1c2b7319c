"""The pages of `evaluate` and `compare`: they conclude, show samples that differ, and set runs side by side."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from megengine.cli import pages
from megengine.cli.evaluation import score
from megengine.quantization.checks import compare_values
from tests.helpers.command import call
from tests.helpers.quant_nets import Builder


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """Pictures, a float network, and two quantized ones of other settings."""
    place = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    (place / "photos").mkdir()
    for i in range(12):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(place / "photos" / f"{i:02}.png")
    (place / "net.onnx").write_bytes(model.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for name, more in (("q.mgt", ()), ("q4.mgt", ("--precision", "w4a8", "--weights", "per_tensor"))):
            call("ptq", "net.onnx", "--data", "photos", "--preprocess", "tf", "-o", name, *more)
    return place


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def test_the_page_of_evaluate_concludes_and_shows_samples_and_runs(tmp_path):
    path = tmp_path / "page.html"
    words = ("evaluate", "net.onnx", "q.mgt", "q4.mgt", "--data", "photos", "--preprocess", "tf", "--report", path)
    told = json.loads(call(*words, "--json"))
    page = path.read_text()
    assert told["report"] == str(path) and told["headline"] in page
    assert told["headline"].startswith("q.mgt against net.onnx: SQNR") and "; the nearest of 2" in told["headline"]
    assert page.count("<figure") == 2 * 12 and page.count('id="network-') == 3
    assert '<tr class="differs"><td>recipe: precision</td><td>w8a8</td><td>w4a8</td></tr>' in page
    assert "<tr><td>recipe: data</td><td>photos</td><td>photos</td></tr>" in page


def test_the_page_of_compare_has_a_row_for_each_value_and_both_runs(tmp_path):
    path = tmp_path / "page.html"
    told = json.loads(call("compare", "q.mgt", "q4.mgt", "--data", "photos", "--report", path, "--json"))
    page = path.read_text()
    assert told["runs"] == [["recipe: precision", "w8a8", "w4a8"], ["recipe: weights", "per_channel", "per_tensor"]]
    assert told["headline"] in page and page.count('<tr id="edge-1-') == len(told["values"]) > 3
    rows = page.partition("Run against run")[2].partition("<h2>Recipe")[0]
    assert rows.index("recipe: precision") < rows.index("command") and "<td>samples</td>" not in rows
    said = call("compare", "q.mgt", "q4.mgt", "--data", "photos")
    assert "What differs in the runs that made them" in said and "w4a8" in said


def test_what_models_have_in_common_is_said_once():
    words = ("evaluate", "net.onnx", "net.onnx", "--data", "photos", "--preprocess", "tf")
    assert call(*words).count("pictures: prepared as --preprocess says") == 1


def test_a_model_without_a_record_has_no_run(tmp_path):
    path = tmp_path / "page.html"
    words = ("compare", "net.onnx", "net.onnx", "--data", "photos", "--preprocess", "tf")
    told = json.loads(call(*words, "--report", path, "--json"))
    assert told["runs"] == [] and "equal in every value" in told["headline"]
    assert "Run against run" not in path.read_text() and "The run that made it" not in path.read_text()


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_a_page_is_refused_before_anything_runs(verb, tmp_path):
    words = (verb, "net.onnx", "q.mgt", "--data", "photos", "--preprocess", "tf", "--report")
    assert "expected .html (a page)" in call(*words, tmp_path / "page.txt", code=1)
    (tmp_path / "page.html").symlink_to(Path("net.onnx").resolve())
    assert "--overwrite" in call(*words, tmp_path / "page.html", code=1)


def evaluated(name, logits, first, labels=()):
    names = [(one,) for one in labels] or [()] * len(logits)
    return pages.Evaluated(name, logits, score(logits, first, names), 10, bool(labels))


def test_conclusions():
    a = np.eye(4, 3) * 5
    one = evaluated("a", a, a, (0, 1, 2, 0))
    assert pages.conclusion([one]) == "a: top-1 4 of 4, on 4 samples"
    assert pages.conclusion([evaluated("a", a, a)]).startswith("a: no labels, and nothing to compare with")
    far, near = evaluated("far", a[::-1], a, (0, 1, 2, 0)), evaluated("near", a + 0.1, a, (0, 1, 2, 0))
    line = pages.conclusion([one, far, near])
    assert line.startswith("near against a: SQNR") and line.endswith("; the nearest of 2")
    assert "top-1 4 of 4 against 4 of 4" in line and "1 times the bytes" in line
    same = pages.conclusion([evaluated("a", a, a), evaluated("b", a, a)])
    assert same.startswith("b against a: equal results, the same first class for 4 of 4, on 4 samples")


@pytest.mark.parametrize(("acts", "said"), [(("silu", "relu"), ", where act became act_1"), (("silu", "silu"), "")])
def test_a_layer_that_was_replaced_is_named(acts, said):
    """Its value has another name in each network, so the ratio falls at the next one that both have."""
    graphs = []
    for act, name in zip(acts, ("act", "act_1" if said else "act"), strict=True):
        b = Builder((1, 3, 8, 8))
        y = b.op(act, b.conv(b.x, 8, label="one"), label=name)
        graphs.append(b.done(b.conv(y, 4, label="last")))
    line = pages.compared(compare_values(*graphs, [(x,) for x in Builder((1, 3, 8, 8)).data(2)]))
    assert line.startswith("results: SQNR" if said else "results: equal in every value")
    assert ("most noise comes in at last, where act became act_1;" in line) == bool(said)


def test_results_that_are_no_classes_have_no_first_class(tmp_path):
    """Two results of [samples, tokens, 4]: the largest of all numbers of a sample is no class."""
    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    weight = onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32), "w")
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("Relu", ["y"], ["z"])]
    outputs = [value(name, onnx.TensorProto.FLOAT, None) for name in "yz"]
    graph = onnx.helper.make_graph(nodes, "g", [value("x", onnx.TensorProto.FLOAT, ["n", 3, 5])], outputs, [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "tokens.onnx")
    x = np.random.default_rng(1).standard_normal((6, 3, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.zeros(6, int))
    words = ("evaluate", tmp_path / "tokens.onnx", tmp_path / "tokens.onnx", "--data", tmp_path / "x.npy")
    told = json.loads(call(*words, "--report", tmp_path / "page.html", "--json"))
    assert "equal results of the first of 2 results, on 6 samples" in told["headline"]
    assert [(one["agreement"], one["differing"]) for one in told["models"]] == [(None, None)] * 2
    assert "first class" not in (tmp_path / "page.html").read_text().partition("<section")[2]
    said = call(*words, "--labels", tmp_path / "y.npy", code=1)
    assert "is no row of classes for each sample; expected (samples, classes)" in said


def test_networks_without_a_batch_have_a_result_for_each_run(tmp_path):
    rng = np.random.default_rng(0)
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])]
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [8]), ("y", [2]))
    ]
    weight = onnx.numpy_helper.from_array(rng.standard_normal((8, 2)).astype(np.float32), "w")
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "vector.onnx",
    )
    np.save(tmp_path / "x.npy", rng.standard_normal((5, 8)).astype(np.float32))
    words = ("evaluate", tmp_path / "vector.onnx", tmp_path / "vector.onnx", "--data", tmp_path / "x.npy")
    assert "equal results, on 5 samples" in call(*words)


def test_a_picture_with_two_classes_is_refused(tmp_path):
    lines = [f"{i:02}.png,{i % 2}" for i in range(12)]
    (tmp_path / "y.csv").write_text("\n".join([*lines, "03.png,0"]))
    words = ("evaluate", "net.onnx", "--data", "photos", "--preprocess", "tf", "--labels", tmp_path / "y.csv")
    assert "'03.png' has the classes 1 and 0 in two lines; keep one of them" in call(*words, code=1)
    (tmp_path / "y.csv").write_text("\n".join([*lines, "03.png,1"]))
    call(*words)
