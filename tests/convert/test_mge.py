"""MegEngine's deployment graphs (.mge): results of files that MegEngine 1.13 wrote, and what is refused."""

import io
import lzma
import pickle
import random
import struct
from pathlib import Path

import numpy as np
import onnx as library
import pytest

import megengine as mge
from megengine import plan
from megengine.cli.models import load_model
from megengine.convert import onnx
from megengine.convert.mge import load, load_graph
from megengine.convert.mge.flatbuffer import Table
from megengine.core.errors import FileFormatError, OptionError
from megengine.quantization import QuantConfig, quantize_model

FOLDER = Path(__file__).parents[1] / "data" / "megengine" / "deployed"
STORED = dict(np.load(io.BytesIO(lzma.decompress((FOLDER / "operators.npz.xz").read_bytes()))))
NAMES = sorted({key.partition("/")[0] for key in STORED})
HALF = {"half": 4e-3, "half_sums": 2e-3}  # sums of float16 in another order


def stored(name, kind):
    return [STORED[key] for k in range(64) if (key := f"{name}/{kind}{k}") in STORED]


def content(name):
    return STORED[f"{name}/mge"].tobytes()


def results(net, inputs):
    out = net(*(mge.Tensor(x, dtype=x.dtype) for x in inputs))
    return [y.numpy() for y in (out if isinstance(out, (tuple, list)) else [out])]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("refused")])
def test_operators_give_what_megengine_gives(name):
    found, wanted = results(load(content(name)), stored(name, "in")), stored(name, "out")
    assert len(found) == len(wanted)
    for y, w in zip(found, wanted, strict=True):
        assert y.size == w.size and (y.shape == w.shape or y.ndim == 0)
        assert y.dtype == w.dtype
        exact = name.startswith(("quantize", "requantize")) or w.dtype.kind in "iub"
        bound = 0 if exact else HALF.get(name, 2e-6) * max(1.0, np.abs(w[np.isfinite(w)]).max(initial=0))
        np.testing.assert_allclose(y, w.reshape(y.shape), rtol=0, atol=bound)


@pytest.mark.parametrize("name", ["call_mix", "res_fused", "res_fused_q"])
def test_networks_give_what_megengine_gives(name):
    data = np.load(FOLDER / f"{name}.npz")
    wanted = [data[key] for key in data if key.startswith("loaded")]
    for y, w in zip(results(load(FOLDER / f"{name}.mge"), [data["in.0"]]), wanted, strict=True):
        np.testing.assert_allclose(y, w, rtol=0, atol=1e-6 * np.abs(w).max())


def test_inputs_and_results_keep_their_names(tmp_path):
    net = load(content("names"))
    assert [node.name for node in net.graph.inputs[-2:]] == ["left", "right"]
    onnx.export(net, tmp_path / "net.onnx")
    written = library.load(tmp_path / "net.onnx").graph
    assert [item.name for item in written.input] == ["left", "right"]
    assert [item.name for item in written.output] == ["sum", "prod"]


def test_a_bias_belongs_to_its_layer():
    """Behind the residual too, where MegEngine's optimiser puts it."""
    graph = load_graph(content("residual"))
    ops = [(expr.op, len(expr.inputs)) for expr in graph.exprs() if hasattr(expr, "op")]
    assert ops == [("conv2d", 3), ("add", 2), ("relu", 1)]


def test_layers_have_paths():
    graph = load_graph(FOLDER / "res_fused_q.mge")
    assert {"stem", "block1.conv2", "block2.proj", "fc"} <= {expr.meta.get("module") for expr in graph.exprs()}
    assert {"fc_weight", "fc_bias"} <= {expr.output.name for expr in graph.exprs()}


def test_a_network_is_quantized_and_planned():
    x = np.random.default_rng(0).normal(size=(8, 2, 3, 16, 16)).astype(np.float32)
    net = load(FOLDER / "res_fused.mge")
    made = quantize_model(net, [mge.Tensor(one) for one in x], QuantConfig())
    y, w = results(made, [x[0]])[0], results(net, [x[0]])[0]
    assert np.linalg.norm(y - w) < 0.05 * np.linalg.norm(w)
    np.testing.assert_array_equal(plan.compile(made.traced())(x[0])[0], y)


def test_the_command_reads_it():
    assert [node.name for node in load_model(str(FOLDER / "res_fused.mge")).graph.inputs] == ["arg0"]


def test_unknown_operators_are_named_together():
    with pytest.raises(FileFormatError, match="2 operators .* cannot be read here: 'CondTake', 'SVD'.*'net.tm'"):
        load(content("refused_operators"))


def test_packed_layouts_are_refused():
    with pytest.raises(FileFormatError, match="ConvBiasForward.*format is NCHW44; expected NCHW"):
        load(content("refused_layout"))


def test_other_files_are_refused():
    cases = {
        b"MGBC" + bytes(60): "version 1.*dump_format='FBS_V2'",
        b"PK\x03\x04" + bytes(60): "not a .mge file",
        content("conv")[:-8]: "the file is cut",
    }
    for data, told in cases.items():
        with pytest.raises(FileFormatError, match=told):
            load(data)
    with pytest.raises(OptionError, match=r"mge.load: got int; expected the path of a .mge file"):
        load(3)


class _Trap:
    def __reduce__(self):
        return pytest.fail, ("the pickle of a file was opened",)


def test_a_path_without_a_file_is_told(tmp_path):
    with pytest.raises(FileFormatError, match="net.mge: no such file"):
        load(tmp_path / "net.mge")
    with pytest.raises(FileFormatError, match="cannot be read"):
        load(tmp_path)


def test_the_users_pickle_is_not_opened():
    """It lies in the metadata; `N.` (None) is its end."""
    data = content("conv")
    place = data.rindex(b"\x80\x04N.")
    with pytest.raises(pytest.fail.Exception):
        pickle.loads(pickle.dumps(_Trap()))
    load(data[:place] + b"\x80\x04R." + data[place + 4 :])


@pytest.mark.parametrize("name", ["index", "quantized_conv_relu", "resize_nearest"])
def test_a_file_that_is_cut_is_refused(name):
    data = content(name)
    for size in range(0, len(data), 3):
        with pytest.raises(FileFormatError):
            load(data[:size])
        if size > 12:  # with a length that fits
            with pytest.raises(FileFormatError):
                load(struct.pack("<I", size - 4) + data[4 : size - size % 4 - 4])


def test_damage_is_refused_or_read():
    chance = random.Random(0)
    words = (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\1\0\0\0")
    for _ in range(1500):
        data = bytearray(content(chance.choice(NAMES)))
        for _ in range(chance.choice((1, 1, 2, 4))):
            place = chance.randrange(0, len(data) - 4)
            data[place : place + 4] = chance.choice((*words, bytes([data[place] ^ 1 << chance.randrange(8)])))[:4]
        try:
            load(bytes(data))
        except FileFormatError:
            continue


def changed(name, path, kind, value):
    """A file with another number: `path` leads from the model by fields, and in lists of tables by places."""
    data = bytearray(content(name))
    view = memoryview(data)
    table, (*steps, last) = Table(view, 4 + struct.unpack_from("<I", data, 4)[0]), path
    for step in steps:
        table = table.tables(step[0])[step[1]] if isinstance(step, tuple) else table.table(step)
    place = table._target(last[0]) + 4 + last[1] if isinstance(last, tuple) else table._field(last)
    assert place > 0, "the field has its default"
    struct.pack_into(f"<{kind}", data, place, value)
    return bytes(data)


OPERATORS, RESULTS, TENSORS = 2, 4, 11
CONV, CONSTANT, INPUT = ((OPERATORS, k) for k in (2, 1, 0))
CHANGED = {
    "version": ("conv", (1,), "I", 3, "version 3 of the format; expected 2"),
    "no result": ("conv", ((RESULTS, -4),), "I", 0, "the graph has no result"),
    "result": ("conv", ((RESULTS, 0), 0), "I", 9, "result 9 is no value; expected a number below 3"),
    "operand": ("conv", (CONV, (7, 0)), "I", 9, "operator 2 names a value that there is not"),
    "order": ("conv", (CONV, (7, 0)), "I", 2, "reads value 2, which no earlier operator makes"),
    "twice": ("conv", (CONSTANT, (8, 0)), "I", 0, "makes a value that another operator made"),
    "kind": ("conv", (CONV, 3), "B", 9, r"operator 2 \('Convolution'\) .* parameters are of kind 9; expected kind 3"),
    "choice": ("residual", ((OPERATORS, -1), 4, 0), "I", 200, "its mode is number 200; expected one below 8"),
    "shape": ("conv", (CONSTANT, (TENSORS, 0), (1, 0)), "I", 5, "has 576 bytes for 180 elements of float32"),
    "size": ("conv", (INPUT, (TENSORS, 0), (1, 0)), "I", 2**32 - 1, "larger than any memory"),
    "dtype": ("to_half", ((OPERATORS, 1), 4, 0), "b", 15, "dtype QuantizedS4, which is not supported; expected one of"),
    "scale": ("quantize", ((OPERATORS, 1), 4, 2, 0), "f", 0.0, "the scale 0.0; expected a positive, normal, finite"),
    "list": ("conv", ((OPERATORS, -4),), "I", 1 << 30, "a list at byte .* goes beyond its end"),
    "depends": ("reshape", ((OPERATORS, -1), (7, 4)), "I", 0, "its shape or positions depend on values of the inputs"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_what_is_wrong_in_a_file_is_told(case):
    name, path, kind, value, told = CHANGED[case]
    with pytest.raises(FileFormatError, match=told):
        load(changed(name, path, kind, value))


def test_lists_are_no_longer_than_the_file():
    """Also where many operators name the same one."""
    with pytest.raises(FileFormatError, match="its lists and tensors together are longer than the file"):
        load(changed("elemwise_1", ((OPERATORS, -1), (7, -4)), "I", 1640))


def test_a_constant_of_many_places_is_no_bomb():
    data, refused = bytearray(content("arange")), 0
    for place in range(0, len(data) - 4, 4):
        other = bytearray(data)
        struct.pack_into("<I", other, place, 0x7FFFFFF0)
        try:
            load(bytes(other))
        except FileFormatError:
            refused += 1
    assert refused > len(data) // 8  # most places count or lead somewhere
