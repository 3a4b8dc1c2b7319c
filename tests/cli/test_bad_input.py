"""Bad input through the command: one line that says what is wrong, exit code 1, nothing written."""

import io
import json
import os
import random
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from megengine.cli.models import load_model
from megengine.core.errors import MegEngineError
from megengine.kernels import cuda
from megengine.serialization import read_pth

DATA = Path(__file__).parent.parent / "data"


def weight(value):
    w = np.ones((4, 3, 3, 3), np.float32)
    w[1, 0, 0, 0] = value
    return w


@pytest.fixture
def folder(tmp_path, little):
    """A good model and data beside bad ones."""
    rng = np.random.default_rng(0)
    good = rng.standard_normal((3, 3, 16, 16)).astype(np.float32)
    arrays = {"good": good, "small": good[:, :, :8], "text": np.array(["a", "b"]), "empty": good[:0], "zero": good * 0}
    arrays["nan"] = np.where(np.arange(good.size).reshape(good.shape) == 1000, np.nan, good)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    models = {
        "good": little(),
        "unknown": little(activation="Rellu"),
        "nan": little(weight(np.nan)),
        "infinite": little(weight(np.inf)),
        "overflow": little(np.full((4, 3, 3, 3), 3e38, np.float32)),
    }
    for name, model in models.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
    (tmp_path / "cut.onnx").write_bytes(models["good"].SerializeToString()[:300])
    (tmp_path / "cut.npy").write_bytes((tmp_path / "good.npy").read_bytes()[:500])
    (tmp_path / "page.html").write_text("<p>")
    (tmp_path / "empty.mgt").write_bytes(b"")
    (tmp_path / "file").touch()
    (tmp_path / "no pictures").mkdir()
    (tmp_path / "pictures").mkdir()
    for index in range(3):
        pixels = rng.integers(0, 255, (20, 20, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{index}.png")
    whole = (tmp_path / "pictures" / "2.png").read_bytes()
    (tmp_path / "pictures" / "2.png").write_bytes(whole[: len(whole) // 2])
    return tmp_path


MODELS = {
    "cut.onnx": "not a complete ONNX model",
    "unknown.onnx": "'Rellu' (node '/body/relu/Relu'; no operator of the ONNX standard; did you mean 'Relu'?)",
    "nan.onnx": "constant 'w': 1 of 108 values are NaN or infinite, read by 'body_conv_Conv'",
    "infinite.onnx": "constant 'w': 1 of 108 values are NaN or infinite",
    "overflow.onnx": "values of 'body_relu_Relu' are ",  # infinity, or NaN where infinities of both signs are summed
    "good.onx": "did you mean '.onnx'?",
    "page.html": "a page or picture; expected .onnx, .tm, .mgt, .mge or module.py:function",
    "good.npy": "data, as --data takes; expected .onnx, .tm, .mgt, .mge or module.py:function; did you mean "
    "'good.onnx'?",
    "empty.mgt": "the file is empty",
    "weights.pth": "a .pth file holds weights without a network",
    "pictures": "expected .onnx, .tm, .mgt, .mge or module.py:function",
}
DATASETS = {
    "nan.npy": "nan.npy, batch 1: 1 NaN or infinite value",
    "zero.npy": "all 2304 values of input 'x' are 0, so no range can be learnt from them",
    "small.npy": "shape (1, 3, 8, 16); expected (n, 3, 16, 16)",
    "cut.npy": "not a readable .npy array",
    "text.npy": "dtype <U1; expected numbers",
    "empty.npy": "0 samples",
    "no pictures": "no pictures below this folder",
    "pictures": "2.png: cannot be read",
    "good.onnx": "expected a folder of pictures, .npy, .npz, or module.py:function",
    "god.npy": "no such file or folder",
}
OUTPUTS = {
    "none/q.mgt": "the folder none does not exist",
    "file/q.mgt": "file is a file, not a folder",
    "pictures": "expected .mgt (our format) or .onnx",
    "q.mtg": "did you mean '.mgt'?",
    "q.onxn": "did you mean '.onnx'?",
}


def check(run, one_line_error, folder, message, *, model="good.onnx", data="good.npy", output="q.mgt", more=()):
    before = sorted(folder.rglob("*"))
    done = run("ptq", model, "--data", data, "-o", output, *more, cwd=folder)
    assert message in one_line_error(done)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("model", "message"), MODELS.items(), ids=list(MODELS))
def test_models(run, one_line_error, folder, model, message):
    check(run, one_line_error, folder, message, model=model)


OTHERS = {
    "calibrate": "M --data good.npy -o o.stats",
    "qat": "M --data good.npy -o o.mgt",
    "analyze": "M --data good.npy",
    "search": "M --data good.npy -o o.mgt --min-sqnr 20",
    "convert": "M --to fp16 -o o.mgt",
    "evaluate": "good.onnx M --data good.npy --report o.html",
    "compare": "good.onnx M --data good.npy --report o.html",
}


@pytest.mark.parametrize("verb", OTHERS)
def test_weights_that_are_no_numbers_in_every_command(run, one_line_error, folder, verb):
    before = sorted(folder.rglob("*"))
    line = one_line_error(run(verb, *OTHERS[verb].replace("M", "nan.onnx").split(), cwd=folder))
    assert "constant 'w': 1 of 108 values are NaN or infinite, read by 'body_conv_Conv'" in line
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (
            "evaluate",
            "'overflow.onnx' gives NaN or infinite results for 3 samples of 3, first number 1",
        ),
        ("compare", "of the second network, the first such value:"),
    ],
)
def test_results_that_are_no_numbers(run, one_line_error, folder, verb, message):
    before = sorted(folder.rglob("*"))
    done = run(verb, *OTHERS[verb].replace("M", "overflow.onnx").split(), cwd=folder)
    assert message in one_line_error(done)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("option", ["-o", "--state", "--picture", "--save-latencies"])
def test_what_a_search_writes_at_its_end_is_looked_at_first(run, one_line_error, folder, option):
    suffix = {"-o": "mgt", "--state": "json", "--picture": "svg", "--save-latencies": "csv"}[option]
    words = ["search", "nan.onnx", "--data", "good.npy", "-o", "o.mgt", "--max-mb", "1", option, f"none/o.{suffix}"]
    assert "the folder none does not exist" in one_line_error(run(*words, cwd=folder))


@pytest.mark.parametrize(("data", "message"), DATASETS.items(), ids=list(DATASETS))
def test_data(run, one_line_error, folder, data, message):
    more = ("--preprocess", "unit") if data == "pictures" else ()
    check(run, one_line_error, folder, message, data=data, more=more)


@pytest.mark.parametrize(("output", "message"), OUTPUTS.items(), ids=list(OUTPUTS))
def test_outputs(run, one_line_error, folder, output, message):
    check(run, one_line_error, folder, message, output=output)


def test_a_folder_as_output(run, one_line_error, folder):
    (folder / "taken.mgt").mkdir()
    check(run, one_line_error, folder, "taken.mgt: is a folder; expected a file name", output="taken.mgt")


@pytest.mark.skipif(sys.platform != "linux" or not os.path.ismount("/proc"), reason="needs /proc")
@pytest.mark.parametrize("option", ["-o", "--onnx", "--report"])
def test_a_folder_that_takes_no_file_not_even_from_root(run, one_line_error, folder, option):
    suffix = {"-o": "mgt", "--onnx": "onnx", "--report": "html"}[option]
    message = f"output /proc/q.{suffix}: cannot be written, the folder /proc takes no new file"
    check(run, one_line_error, folder, message, more=(option, f"/proc/q.{suffix}"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_nobody_reads_the_result(run, folder):
    import subprocess

    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "megengine.cli", "inspect", "good.onnx"]
        done = subprocess.run(command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr and "No space left" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ptq", "m.onnx", "--dta", "x"), "Did you mean one of: '--data', '--state'?"),
        (("ptq", "m.onnx", "--data", "x", "-o", "q.mgt", "--weights", "per_chanel"), "is not one of 'per_channel'"),
        (("ptq", "m.onnx", "--data", "x", "-o", "q.mgt", "--activations", "mea"), "is not one of 'minmax', 'ema'"),
        (("ptq", "m.onnx", "--data", "x", "-o", "q.mgt", "--profile", "x68"), "'x68' is not one of 'x86'"),
        (("verfy", "m.mgt"), "did you mean 'verify'"),
        (("bench",), "Missing argument"),
        (("verify", "m.mgt", "--data", "x", "--threads", "0"), "not in the range"),
        (("inspect", "m.onnx", "--input-shape", "1,0"), "sizes are positive"),
        (("search", "m.onnx", "--data", "x", "-o", "", "--max-mb", "1"), "the name is empty; give the file or folder"),
        (("verify", "m.mgt", "--data", ""), "'--data': the name is empty; give the file or folder"),
        (("inspect", ""), "'MODEL': the name is empty; give the file or folder"),
    ],
)
def test_wrong_usage_is_code_2(run, words, message):
    done = run(*words)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_a_search_whose_output_is_the_root(run, one_line_error, folder):
    done = run("search", "good.onnx", "--data", "good.npy", "-o", "/", "--max-mb", "1", cwd=folder)
    assert done.returncode == 1 and "--output '/': expected .mgt" in one_line_error(done)


def test_json_carries_the_error(run, folder):
    done = run("ptq", "nan.onnx", "--data", "good.npy", "-o", "q.mgt", "--json", cwd=folder)
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 1 and error["type"] == "QuantizationError" and "'w'" in error["message"]


def test_verify_wants_the_integer_network(run, one_line_error, folder):
    words = ("--data", "good.npy", "-o")
    assert run("ptq", "good.onnx", *words, "q.mgt", "--onnx", "q.onnx", cwd=folder).returncode == 0
    pairs = run("verify", "q.onnx", "--data", "good.npy", cwd=folder)
    assert pairs.returncode == 0 and "are taken as integer layers" in pairs.stdout and "exact:" in pairs.stdout
    assert "quantize it first" in one_line_error(run("verify", "good.onnx", "--data", "good.npy", cwd=folder))
    damaged = bytearray((folder / "q.mgt").read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    (folder / "q.mgt").write_bytes(damaged)
    assert "q.mgt" in one_line_error(run("verify", "q.mgt", "--data", "good.npy", cwd=folder))


def test_verify_of_pairs_around_no_layer_proves_nothing(run, one_line_error, folder):
    scale, zero = np.float32(0.05), np.uint8(128)
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        onnx.helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        onnx.helper.make_node("Exp", ["d"], ["y"]),
    ]
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 3, 16, 16]) for n in "xy")
    stored = [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in (("s", scale), ("z", zero))]
    graph = onnx.helper.make_graph(nodes, "net", [x], [y], stored)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, folder / "pairs.onnx")
    failed = run("verify", "pairs.onnx", "--data", "good.npy", cwd=folder)
    assert "there is nothing to prove: no layer is integer" in one_line_error(failed)


# ---------------------------------------------------------------- damaged files, in this process


def damaged(content, count, seed):
    """Cut, changed, shortened and lengthened copies."""
    chance = random.Random(seed)
    for index in range(count):
        made = bytearray(content)
        place = chance.randrange(len(made))
        if index % 4 == 0:
            del made[place:]
        elif index % 4 == 1:
            del made[place : place + chance.randrange(1, 30)]
        elif index % 4 == 2:
            made[place:place] = chance.randbytes(chance.randrange(1, 30))
        for _ in range(chance.randrange(4) if made else 0):
            made[chance.randrange(len(made))] = chance.randrange(256)
        yield bytes(made)


def contents(little):
    """One file of each format, by suffix, and how it is read."""
    from megengine.traced_module.formats import native as files

    source = little().SerializeToString()
    Path("net.onnx").write_bytes(source)
    files.save(load_model("net.onnx"), "net.mgt")
    legacy, packed = ((DATA / "torch" / name).read_bytes() for name in ("legacy.pth", "zip.pth"))
    graph = (DATA / "megengine" / "graphs" / "multi_io.tm").read_bytes()
    mgt = Path("net.mgt").read_bytes()
    return [
        (".onnx", source, load_model),
        (".mgt", mgt, load_model),
        (".tm", graph, load_model),
        ("_old.pth", legacy, read_pth),
        ("_zip.pth", packed, read_pth),
    ]


def test_damaged_files_raise_our_errors_only(tmp_path, monkeypatch, little):
    monkeypatch.chdir(tmp_path)
    warnings.simplefilter("ignore")
    for suffix, content, read in contents(little):
        Path(f"whole{suffix}").write_bytes(content)
        assert read(f"whole{suffix}") is not None
        refused = 0
        for number, made in enumerate(damaged(content, 120, seed=suffix)):
            Path(f"bad{suffix}").write_bytes(made)
            try:
                read(f"bad{suffix}")
            except MegEngineError as error:
                refused += 1
                assert str(error)
            except BaseException as error:
                error.add_note(f"copy {number} of {suffix}")
                raise
        assert refused > 30, suffix


def test_a_graph_file_that_unpacks_to_too_much_is_refused(run, one_line_error, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("graph.json", b" " * (300 << 20))
        archive.writestr("weights.safetensors", b"")
    assert len(packed.getvalue()) < 1 << 20
    (tmp_path / "bomb.mgt").write_bytes(packed.getvalue())
    assert "refused" in one_line_error(run("inspect", tmp_path / "bomb.mgt"))


@pytest.mark.parametrize("value", [0.0, 2.5])
@pytest.mark.parametrize(
    "words",
    [
        ("ptq", "-o", "o.mgt"),
        ("calibrate", "-o", "o.stats"),
        ("qat", "-o", "o.mgt", "--epochs", "1"),
        ("search", "-o", "o.mgt", "--max-mb", "1"),
    ],
    ids=lambda words: words[0],
)
def test_samples_that_are_all_the_same_teach_nothing(run, one_line_error, folder, words, value):
    np.save(folder / "flat.npy", np.full((12, 3, 16, 16), value, np.float32))
    before = set(os.listdir(folder))
    error = one_line_error(run(words[0], "good.onnx", "--data", "flat.npy", *words[1:], cwd=folder))
    assert f"are {value:g}, so no range can be learnt from them" in error
    assert set(os.listdir(folder)) == before


def test_a_run_that_kept_no_sample_leaves_no_file(run, one_line_error, folder):
    done = run("calibrate", "good.onnx", "--data", "small.npy", "-o", "o.stats", cwd=folder)
    assert "small.npy, batch 0: shape" in one_line_error(done)
    assert not (folder / "o.stats.part").exists()


@pytest.mark.parametrize("words", [("--data", "no.npy"), ("--data", "good.npy", "--labels", "no.npy")])
def test_no_array_is_no_reason_to_unpickle(run, one_line_error, folder, words):
    (folder / "no.npy").write_bytes(b"hello")
    error = one_line_error(run("evaluate", "good.onnx", *words, cwd=folder))
    assert "it holds no array of numbers; write it with numpy.save" in error
    assert "pickle" not in error


@pytest.mark.skipif(cuda.available(), reason="there is a GPU")
@pytest.mark.parametrize("verb", ["ptq", "calibrate", "verify"])
def test_a_device_that_cannot_be_used_is_refused_before_anything_is_read(run, verb):
    more = () if verb == "verify" else ("-o", "out.mgt" if verb == "ptq" else "out.stats")
    done = run(verb, "missing.onnx", "--data", "missing", *more, "--device", "gpu0")
    assert done.returncode == 2 and "'--device': device 'gpu0' is not usable: " in done.stderr
    done = run(verb, "missing.onnx", "--data", "missing", *more, "--device", "gup0")
    assert done.returncode == 2 and "did you mean 'gpu0'" in done.stderr
