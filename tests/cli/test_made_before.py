"""`report` and `export`: what is made of a model that is there already."""

import json
import re
import shlex

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx.reference import ReferenceEvaluator
from PIL import Image

import megengine as mge
from megengine.cli.app import group
from megengine.traced_module.formats import native


@pytest.fixture(scope="module")
def folder(little, tmp_path_factory):
    """A float network, twelve samples of it, and both quantized forms."""
    made = tmp_path_factory.mktemp("made")
    onnx.save(little(), made / "net.onnx")
    np.save(made / "x.npy", np.random.default_rng(0).standard_normal((12, 3, 16, 16)).astype(np.float32))
    np.save(made / "other.npy", np.random.default_rng(1).standard_normal((3, 3, 16, 16)).astype(np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        for name in ("q.mgt", "q.onnx"):
            assert CliRunner().invoke(group, ["ptq", "net.onnx", "--data", "x.npy", "-o", name]).exit_code == 0
    return made


@pytest.fixture
def call(folder, monkeypatch):
    monkeypatch.chdir(folder)

    def run(line):
        done = CliRunner().invoke(group, shlex.split(line))
        return done if done.exit_code else json.loads(done.stdout)

    return run


def test_a_report_compares_with_the_float_network_on_samples_held_out(call, folder):
    told = call("report q.mgt -o q.html --json")
    assert told["scored_on"].startswith("3 samples held out of calibration (sample ")
    places = [int(number) - 1 for number in re.findall(r"sample (\d+)", told["scored_on"])]
    samples = np.load(folder / "x.npy")[places]
    runtime, network = ReferenceEvaluator(onnx.load(folder / "net.onnx")), native.load(folder / "q.mgt")
    real = np.concatenate([runtime.run(None, {"x": x[None]})[0] for x in samples]).astype(np.float64)
    ours = np.concatenate([network(mge.tensor(x[None])).numpy() for x in samples])
    ratio = 10 * np.log10((real**2).sum() / ((real - ours) ** 2).sum())
    assert abs(told["output_sqnr_db"] - ratio) < 0.01
    page = (folder / "q.html").read_text()
    assert f"results: SQNR {ratio:.1f} dB" in page and told["scored_on"] in page and "exact: specification" in page
    assert "bias-correction" in page  # of the record
    assert "Words on this page" in page


def test_a_report_of_other_samples_says_so(call):
    assert call("report q.mgt --data other.npy -o q.html --json")["scored_on"] == "3 samples of other.npy"
    told = call("report q.onnx --model net.onnx --data x.npy -o q.html --json")
    assert told["output_sqnr_db"] > 20 and len(told["values"]) > 1


def test_a_report_on_another_network_warns(call, folder, little):
    onnx.save(little(activation="Sigmoid"), folder / "other.onnx")
    done = CliRunner().invoke(group, shlex.split("report q.mgt --model other.onnx -o q.html"))
    assert done.exit_code == 0 and "other.onnx is not the network that q.mgt was made from" in done.output


def test_functions_that_give_another_network_each_time_are_told(call, folder):
    """The first try of many: random weights."""
    text = "import megengine, megengine.module as M\ndef f():\n    {}\n"
    text += "    return M.Linear(4, 2), megengine.tensor([[0.0] * 4])\n"
    (folder / "random_net.py").write_text(text.format("pass"))
    (folder / "seeded_net.py").write_text(text.format("megengine.random.seed(1)"))
    np.save(folder / "rows.npy", np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32))
    for name, warned in (("random_net", True), ("seeded_net", False)):
        assert "record" in call(f"ptq {name}.py:f --data rows.npy -o {name}.mgt --json")
        for verb in ("evaluate", "compare", "report"):
            models = f"{name}.py:f {name}.mgt --data rows.npy" if verb != "report" else f"{name}.mgt -o f.html"
            done = CliRunner().invoke(group, shlex.split(f"{verb} {models}"))
            assert done.exit_code == 0 and ("warning: " in done.output) == warned, (verb, done.output)
    words = "photos --preprocess unit"  # the preparation is part of the digest
    (folder / "photos").mkdir()
    for i in range(3):
        picture = np.random.default_rng(i).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(picture).save(folder / "photos" / f"{i}.png")
    text = text.replace("Linear(4, 2)", "Conv2d(3, 2, 3)").replace(
        "tensor([[0.0] * 4])", "functional.zeros((1, 3, 16, 16))"
    )
    (folder / "conv_net.py").write_text(text.format("megengine.random.seed(1)"))
    assert "record" in call(f"ptq conv_net.py:f --data {words} -o conv.mgt --json")
    done = CliRunner().invoke(group, shlex.split("evaluate conv_net.py:f conv.mgt --data photos"))
    assert done.exit_code == 0 and "conv_net" in done.output and "gives another network" not in done.output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("report net.onnx -o n.html", "has no integer value; quantize it first: mge-quantize ptq net.onnx --data"),
        ("report plain.mgt -o n.html", "--model: 'plain.mgt' stores no record of its making; give this option too"),
        ("report int.onnx -o n.html", "mge-quantize compare FLOAT int.onnx --data ... --report page.html"),
        ("report q.mgt -o n.htm", "expected .html (a page)"),
        ("report odd.mgt -o n.html", "its record names the command 'pqt'; did you mean 'ptq'?"),
        ("export q.mgt -o n.mgt --form qdq", "expected .onnx"),
        ("export q.mgt -o n.mgt --opset 17", "--opset: holds for .onnx files"),
        ("export q.mgt -o n.onnx --data x.npy", "--data: only --form qdq reads them"),
        (
            "export net.onnx -o n.onnx --form qdq",
            "quantize the float network first: mge-quantize ptq",
        ),
        ("export trained.mgt -o n.onnx --form qdq", "qat made 'trained.mgt', and only ptq writes pairs"),
        ("export net.onnx -o net.onnx", "would replace 'net.onnx'"),
        ("export q.mgt -o n.onnx --opset 99", "opset 99; expected 13 to"),
        ("replay net.onnx -o n.mgt", "model 'net.onnx': stores no record of its making"),
        ("ptq https://a.b/c.onnx --data x.npy -o n.mgt", "an address; expected a file, so download it first"),
    ],
)
def test_refusals(call, folder, line, message):
    network = native.load(folder / "q.mgt")
    record = network.graph.metadata["megengine.record"]
    for name, text in (("plain", None), ("odd", ("ptq", "pqt")), ("trained", ("ptq", "qat"))):
        network.graph.metadata.pop("megengine.record", None)
        if text is not None:
            network.graph.metadata["megengine.record"] = record.replace(f'"{text[0]}"', f'"{text[1]}"')
        native.save(network, folder / f"{name}.mgt")
    CliRunner().invoke(group, shlex.split("export q.mgt -o int.onnx"))
    done = call(line)
    assert done.exit_code == 1 and message in done.stderr and not list(folder.glob("n.*"))


def test_an_export_has_the_opset_and_what_the_network_computes(call, folder):
    assert call("export net.onnx -o fifteen.onnx --opset 15 --json")["form"] == "float"
    made = onnx.load(folder / "fifteen.onnx")
    assert [one.version for one in made.opset_import if not one.domain] == [15]
    x = np.load(folder / "x.npy")[:2]
    values = [ReferenceEvaluator(one).run(None, {"x": x})[0] for one in (onnx.load(folder / "net.onnx"), made)]
    np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-6)


def test_an_export_of_pairs_is_the_file_that_ptq_writes(call, folder):
    assert call("export q.mgt -o pairs.onnx --form qdq --json")["form"] == "qdq"
    assert (folder / "pairs.onnx").read_bytes() == (folder / "q.onnx").read_bytes()


def test_an_export_of_integers_has_their_values(call, folder):
    assert call("export q.mgt -o int.onnx --json")["form"] == "integer"
    x = np.load(folder / "x.npy")[:2]
    theirs = ReferenceEvaluator(onnx.load(folder / "int.onnx")).run(None, {"x": x})[0]
    np.testing.assert_allclose(theirs, native.load(folder / "q.mgt")(mge.tensor(x)).numpy(), rtol=1e-6)
