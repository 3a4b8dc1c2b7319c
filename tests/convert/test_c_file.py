"""Integer networks as C files: the integers of the specification on every input, whatever the compiler does."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

from megengine.cli.app import group
from megengine.convert import c
from megengine.convert.c.exporter import source_of
from megengine.convert.onnx import load
from megengine.core.dtype import qint8, quint8
from megengine.core.errors import GraphError, QuantizationError
from megengine.core.sizes import named
from megengine.core.spec import TensorSpec
from megengine.quantization import QuantConfig, quantize_model
from megengine.quantization.checks.verify import specification
from megengine.traced_module import open_batch
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.formats import native
from megengine.traced_module.ir.graph import InternalGraph
from tests.helpers.c_file import STRICT, Calls, CFile, extremes, needs_gcc, number, stored
from tests.helpers.quant_nets import Builder, concat_net, drawn_net, gated_net, residual_net, transposed_net

pytestmark = needs_gcc
F32 = np.dtype(np.float32)


def checked(folder, model, *flags, compiler="gcc"):
    """The network as a C file, which gives the results of the specification for extreme inputs."""
    file = CFile(folder, model, *flags, compiler=compiler)
    for arrays in extremes(file.graph):
        file.check(*arrays)
    return file


def made(net, **settings):
    b, graph = net()
    return quantize_model(graph, b.data(), QuantConfig(**settings))


# ---------------------------------------------------------------- networks


@pytest.mark.parametrize("net", [residual_net, concat_net, transposed_net, gated_net])
def test_networks(tmp_path, net):
    file = checked(tmp_path, made(net))
    total = int(re.search(r"All values together have (\d+) bytes", file.text)[1])
    assert file.size < total  # places are shared
    assert c.to_source(file.graph) == file.text == c.to_source(file.graph.clone())


@pytest.mark.parametrize("settings", [{"profile": "onnx-qlinear"}, {"precision": "w4a8"}, {"precision": "w8a16"}])
def test_other_types(tmp_path, settings):
    file = checked(tmp_path, made(residual_net, **settings))
    assert ("net_nibble" in file.text) == (settings.get("precision") == "w4a8")
    assert ("net_i16 *y0" in file.text) == (settings.get("precision") == "w8a16")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_drawn_networks(tmp_path, seed):
    checked(tmp_path, made(lambda: drawn_net(seed)))


FLAGS = {
    "optimised": ("gcc", "-O3", "-march=native", "-ffast-math"),
    "old": ("gcc", "-std=c89", "-Os"),
    "c++": ("g++", "-O2"),
}


@pytest.mark.parametrize("how", FLAGS)
def test_no_flag_of_a_compiler_changes_integers(tmp_path, how):
    compiler, *flags = FLAGS[how]
    checked(tmp_path, made(residual_net), *flags, compiler=compiler)


def float_ends():
    """A network that ends in float: a layer whose sums have one order, functions, a softmax."""
    b = Builder()
    x = b.relu(b.conv(b.x, 6, label="first"), label="act")
    x = b.conv(x, 4, label="last")
    return b, b.done(b.op("softmax", b.op("silu", x), axis=1), b.op("mean", x, axis=(2, 3), keepdims=False))


def test_steps_in_float_have_one_order(tmp_path):
    """Fused multiplications and additions, which compilers make where processors have them, would round once."""
    model = made(float_ends, exclude=("last",))
    file = checked(tmp_path, model, "-O3", "-march=native", "-std=gnu99")
    assert "fp-contract" in file.text


@pytest.mark.parametrize(
    ("option", "refusal"),
    [
        ("-ffast-math", "compile this file without -ffast-math"),
        ("-mfpmath=387", "operations in float round to float"),
        ("-march=sapphirerapids", None),  # it has float16, which is no wider than float
    ],
)
def test_files_are_compiled_where_float_rounds_to_float(tmp_path, option, refusal):
    if subprocess.run(["gcc", option, "-x", "c", "-c", "-", "-o", "/dev/null"], input=b"", check=False).returncode:
        pytest.skip(f"the compiler does not take {option}")
    c.export(made(float_ends, exclude=("last",)), tmp_path / "net.c")
    line = ["gcc", "-std=gnu99", option, "-c", str(tmp_path / "net.c"), "-o", str(tmp_path / "net.o")]
    said = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (said.returncode == 0) == (refusal is None), said.stderr
    assert refusal is None or refusal in said.stderr


_MAIN = """
#include <stdio.h>
#include "net.c"
static int64_t arena[NET_ARENA_SIZE / 8];
static float x[NET_X_IN_SIZE], y[NET_LOGITS_OUT_SIZE];
int main(void)
{
    fread(x, sizeof x[0], NET_X_IN_SIZE, stdin);
    net_run(x, y, arena);
    fwrite(y, sizeof y[0], NET_LOGITS_OUT_SIZE, stdout);
    return 0;
}
"""


def test_nothing_undefined(tmp_path):
    model = made(residual_net)
    graph = model.integer_graph
    (tmp_path / "net.c").write_text(c.to_source(graph))
    (tmp_path / "main.c").write_text(_MAIN)
    flags = ["-O1", "-g", "-fsanitize=undefined,address", "-fno-sanitize-recover=all"]
    subprocess.run(["gcc", *flags, str(tmp_path / "main.c"), "-o", str(tmp_path / "main")], check=True)
    for (x,) in extremes(graph):
        ran = subprocess.run([str(tmp_path / "main")], input=x.tobytes(), capture_output=True, check=False)
        assert ran.returncode == 0, ran.stderr.decode()
        got = np.frombuffer(ran.stdout, np.float32).reshape(graph.outputs[0].shape)
        np.testing.assert_array_equal(got, specification(graph, [x])[graph.outputs[0].name])


# ---------------------------------------------------------------- names, arguments, refusals


def test_hostile_names(tmp_path):
    b = Builder()
    x = b.relu(b.conv(b.x, 4, label="*/ int main??/"), label='"\\\n#error')
    model = quantize_model(b.done(b.conv(x, 3, label="double"), b.conv(x, 3, label="Double é")), b.data())
    graph = model.integer_graph
    graph.name = "*/ #include \\\n"
    (graph.inputs[0]).name = "int"
    checked(tmp_path, graph)
    assert re.search(
        r"void int_9_run\(const float \*int_1_in, float \*\w+_out, float \*\w+_out\d?, void \*arena\)",
        c.to_source(graph, name="_int__9"),
    )
    assert "void net_9_run(" in c.to_source(graph, name="9") and "void net_run(" in c.to_source(graph, name="__")


def test_outputs_that_are_other_values(tmp_path):
    """An output twice, an input, a constant, another shape of a value, and an input that nothing reads."""
    calls = Calls()
    x, unread = (calls.operand(stored(quint8(0.1, 3), 2, 3, seed=k), fixed=False) for k in range(2))
    y = calls.graph.apply("requantize", x, attrs={"ratio": 0.5, "lo": -3, "hi": 200, "dtype": quint8(0.2, 3)})
    flat = calls.graph.apply("reshape", y, attrs={"shape": (6,)})
    constant = calls.graph.constant(np.arange(3, dtype=np.float32))
    calls.outputs += [y, flat, y, x, constant, calls.graph.apply("add", constant, constant)]
    calls.check(tmp_path)
    assert unread.name == "x1"


def test_an_open_batch_is_one_sample(tmp_path):
    b, graph = residual_net()
    model = quantize_model(open_batch(graph).graph, b.data())
    file = checked(tmp_path, model)
    assert file.graph.inputs[0].shape == (1, 3, 8, 8) and number(file.text, "NET_X_IN_SIZE") == 192


def test_a_network_that_does_not_take_one_sample():
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Reshape", ["c", "shape"], ["y"])]
    ends = [helper.make_tensor_value_info(*one) for one in (("x", 1, ["n", 3, 4, 4]), ("y", 1, None))]
    constants = {"w": np.ones((4, 3, 1, 1), np.float32), "shape": np.array([2, 64])}
    stored_values = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], stored_values)
    net = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    model = quantize_model(net, [np.random.default_rng(0).normal(0, 1, (2, 3, 4, 4)).astype(np.float32)])
    with pytest.raises(GraphError, match=r"does not take one sample: .*--input-shape NAME=4,3,224,224"):
        c.to_source(model)


@pytest.mark.parametrize(("result", "remedy"), [(False, "--prune"), (True, "--drop-output extra")])
def test_ends_of_types_without_a_c_form(result, remedy):
    b, graph = residual_net()
    integer = quantize_model(graph, b.data()).integer_graph.clone()
    extra = add_input(integer, "extra", TensorSpec((2,), np.dtype(np.float16)))
    if result:
        set_outputs(integer, [*integer.outputs, extra])
    with pytest.raises(GraphError, match=f"'extra' .* is float16, which has no C form; .* {remedy}"):
        c.to_source(integer)


def test_refusals_name_all_nodes():
    b = Builder()
    x = b.relu(b.conv(b.x, 4, label="first"), label="act")
    x = b.conv(b.op("asinh", b.op("sin", x, label="wave"), label="middle"), 4, label="last")
    model = quantize_model(b.done(b.op("asinh", x, label="end")), b.data())
    with pytest.raises(
        GraphError, match=r"C export: \d nodes? of network 'net' ha(s|ve) no C form: .*end \(asinh: none for this op\)"
    ):
        c.to_source(model)
    with pytest.raises(GraphError, match="mge-quantize edit MODEL -o part.mgt --extract FIRST:LAST"):
        c.to_source(model)
    _, graph = residual_net()
    with pytest.raises(
        QuantizationError, match="C export: network 'net' has no integer value; quantize it first: mge-quantize ptq"
    ):
        c.to_source(graph)


def refusal(op, values, attrs, fixed=()):
    calls = Calls()
    nodes = [calls.operand(v, fixed=k in fixed) for k, v in enumerate(values)]
    set_outputs(calls.graph, [calls.graph.apply(op, *nodes, attrs=attrs)])
    with pytest.raises(GraphError) as error:
        source_of(calls.graph, "net")
    return str(error.value)


U8 = quint8(0.1, 3)
_HALVED = {"ratio": 0.5, "lo": -3, "hi": 252, "dtype": U8}


def test_refusals_of_single_ops():
    x = stored(U8, 1, 2, 3, 3)
    floats = np.ones((2, 3), np.float32)
    factor = {"lo": 0, "hi": 9, "dtype": U8}
    scales = [np.full(2, v, np.float32) for v in (np.float32(2.0**100), 0.0)]
    window = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1, "ratio": 0.0, **factor}
    w, b = np.ones((2, 2, 1, 1), np.int8), np.zeros(2, np.int32)
    assert "its scales make results that are not finite" in refusal("qconv2d", [x, w, b, *scales], window, {1, 2, 3, 4})
    scales[0][:] = 1
    assert "is computed by the network; expected a constant" in refusal(
        "qconv2d", [x, w, b, *scales], window, {1, 2, 3}
    )
    long = stored(U8, 1, 66000, 1, 1)
    wide = np.ones((2, 66000, 1, 1), np.int8)
    assert "sums of 66000 products may not fit int32" in refusal(
        "qconv2d", [long, wide, b, *scales], window, {1, 2, 3, 4}
    )
    assert "expected 8 or 16 bits with one scale" in refusal("quantize", [floats], {"dtype": qint8((0.1, 0.2), axis=0)})
    assert "(greater: none for these dtypes)" in refusal("greater", [floats.astype(np.int32)] * 2, {})
    norm = {"axes": 1, "E": 1e-90, "centred": True, "dtype": U8}
    assert "E is 1e-90; expected at least" in refusal("qnorm", [stored(U8, 2, 3), floats[0], floats[0]], norm, {1, 2})
    border = {"widths": ((1, 0), (0, 1)), "mode": "constant", "value": 0.5}
    assert "it pads values of float32 with 0.5" in refusal("pad", [floats], border)
    assert "it makes int32 of float32" in refusal("cast", [floats], {"dtype": np.dtype(np.int32)})
    apart = {"axis": (0, 2), "keepdims": False}
    assert "axes (0, 2) are not side by side" in refusal("mean", [np.ones((2, 3, 2), np.float32)], apart)
    assert "it compares values of float32" in refusal("max", [floats], {"axis": (1,), "keepdims": False})


def test_open_sizes_are_refused():
    graph = InternalGraph("net")
    x = add_input(graph, "x", TensorSpec((named("batch", 1), 3, named("height", 8)), F32))
    set_outputs(graph, [graph.apply("requantize", graph.apply("quantize", x, attrs={"dtype": U8}), attrs=_HALVED)])
    with pytest.raises(GraphError, match=r"'net' leaves sizes open \(x\); .* --input-shape NAME=1,3,224,224"):
        c.to_source(graph)


def test_values_too_large_for_indices_are_refused():
    with pytest.raises(GraphError, match="x has 2147483648 elements; expected at most 2147483647"):
        graph = InternalGraph("net")
        x = add_input(graph, "x", TensorSpec((2, 2**30), F32))
        set_outputs(graph, [graph.apply("requantize", graph.apply("quantize", x, attrs={"dtype": U8}), attrs=_HALVED)])
        c.to_source(graph)


def test_the_example_of_the_page(tmp_path):
    b = Builder()
    graph = b.done(b.linear(b.op("mean", b.relu(b.conv(b.x, 4)), axis=(2, 3), keepdims=False), 5, label="y"))
    c.export(quantize_model(graph, b.data()), tmp_path / "net.c")
    page = (Path(__file__).parent.parent.parent / "docs" / "c-file.md").read_text()
    (tmp_path / "main.c").write_text(re.findall(r"```c\n(.*?)```", page, re.DOTALL)[0])
    line = ["gcc", "-std=c99", *STRICT, "main.c", "net.c", "-o", "main"]
    assert not subprocess.run(line, cwd=tmp_path, capture_output=True, check=False).stderr
    assert subprocess.run([tmp_path / "main"], check=False).returncode == 0


def test_the_command(tmp_path):
    model = made(residual_net)
    native.save(model.integer_graph, tmp_path / "q.mgt")
    path = tmp_path / "my net.c"
    ran = CliRunner().invoke(group, ["export", str(tmp_path / "q.mgt"), "-o", str(path)])
    assert ran.exit_code == 0 and f"wrote {path}" in ran.output, ran.output
    assert (
        path.read_text() == c.to_source(model, name="my net")
        and "void my_net_run(const float *x_in" in path.read_text()
    )
    before = path.read_bytes()
    c.export(model, path)
    assert path.read_bytes() == before
    _, graph = residual_net()
    native.save(graph, tmp_path / "float.mgt")
    ran = CliRunner().invoke(group, ["export", str(tmp_path / "float.mgt"), "-o", str(tmp_path / "float.c")])
    assert (
        ran.exit_code == 1
        and "quantize it first: mge-quantize ptq" in ran.output
        and not (tmp_path / "float.c").exists()
    )
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".c"] == ["my net.c"]
