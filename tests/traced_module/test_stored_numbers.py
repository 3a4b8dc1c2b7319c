"""Numbers in files that cannot be, refused by name when the file is loaded: scales, multipliers, called attributes."""

import io
import json
import zipfile

import numpy as np
import pytest
from quant_nets import residual_net

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.dtype import qint8, quantized
from megengine.core.errors import DTypeError, FileFormatError
from megengine.core.spec import TensorSpec
from megengine.quantization import quantize_model
from megengine.tensor import Tensor
from megengine.traced_module import InternalGraph, save_tm, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.formats import native

WEIGHTS = "weights.safetensors"
MULTIPLIERS = (np.nan, np.inf, -np.inf, 0.0, -1.0, 1e-40)


@pytest.fixture(scope="module")
def integers(tmp_path_factory):
    """A file of an integer graph."""
    builder, graph = residual_net()
    path = tmp_path_factory.mktemp("files") / "int.mgt"
    native.save(quantize_model(graph, builder.data()).traced(), path)
    return path.read_bytes()


def changed(content, change, arrays=lambda stored: stored):
    """A file with another graph.json or other weights."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        root, stored = json.loads(archive.read("graph.json")), archive.read(WEIGHTS)
    change(root)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("graph.json", json.dumps(root))
        archive.writestr(WEIGHTS, arrays(stored))
    return made.getvalue()


def load(content, tmp_path):
    path = tmp_path / "damaged.mgt"
    path.write_bytes(content)
    return native.load(path)


def of_product(root, place):
    """The name of the product's constant: w, b, M, B are inputs 1 to 4."""
    return next(e for e in root["exprs"] if e.get("op") == "qconv2d")["inputs"][place]


def with_first_number(stored, name, value):
    head = 8 + int.from_bytes(stored[:8], "little")
    at = head + json.loads(stored[8:head])[name]["data_offsets"][0]
    return stored[:at] + np.float32(value).tobytes() + stored[at + 4 :]


@pytest.mark.parametrize(
    ("name", "value"), [*(("M", v) for v in MULTIPLIERS), *(("B", v) for v in (np.nan, np.inf, -np.inf))]
)
def test_multipliers_and_offsets(integers, tmp_path, name, value):
    found = []
    changed(integers, lambda root: found.append(of_product(root, 3 if name == "M" else 4)))
    damaged = changed(integers, lambda root: None, lambda stored: with_first_number(stored, found[0], value))
    with pytest.raises(FileFormatError, match=rf"\(qconv2d\): {name} of channel 0 is .*; expected finite"):
        load(damaged, tmp_path)
    sound = changed(integers, lambda root: None, lambda stored: with_first_number(stored, found[0], 0.5))
    assert load(sound, tmp_path)


SCALES = {
    "one too many": ({"scale": [0.1] * 4, "axis": 0}, "4 scales along axis 0; the shape is"),
    "no such axis": ({"scale": [0.1] * 3, "axis": 7}, "3 scales along axis 7; the shape is"),
    "none": ({"scale": [], "axis": 0}, "0 scales along axis 0; expected some"),
    "no axis": ({"scale": [0.1] * 3, "axis": None}, "3 scales need an axis"),
    "an axis that is no integer": ({"scale": [0.1] * 3, "axis": "0"}, "along axis '0'; expected some, and an integer"),
    "zero": ({"scale": 0.0}, "scale must be a positive, normal, finite float32, got 0.0"),
    "negative": ({"scale": -1.0}, "got -1.0"),
    "denormal": ({"scale": 1e-40}, "got 1e-40"),
    "text": ({"scale": "x"}, "scale is 'x'"),
}


def dtypes(value):
    if isinstance(value, dict) and "zero_point" in value:
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from dtypes(inner)


@pytest.mark.parametrize("case", SCALES)
@pytest.mark.parametrize("kind", ["ops", "input", "layers"])
def test_scales(case, kind, tmp_path):
    change, said = SCALES[case]
    content = {"ops": stored_ops, "input": quantized_input, "layers": quantized_layer}[kind](tmp_path)

    def change_all(root):
        for found in list(dtypes(root)):
            found.update(change)

    with pytest.raises(FileFormatError, match=said):
        load(changed(content, change_all), tmp_path)


def written(model, tmp_path):
    path = tmp_path / "sound.mgt"
    native.save(model, path)
    assert native.load(path)
    return path.read_bytes()


def stored_ops(tmp_path):
    graph = InternalGraph("net")
    w = graph.constant(Tensor(np.ones((3, 2), np.int8), dtype=quantized("qint8", [0.1, 0.2, 0.3], 0, 0)))
    x = add_input(graph, "x", TensorSpec((3, 2), np.dtype(np.float32)))
    set_outputs(graph, [graph.apply("add", x, graph.apply("dequantize", w))])
    return written(graph, tmp_path)


def quantized_input(tmp_path):
    graph = InternalGraph("net")
    x = add_input(graph, "x", TensorSpec((3, 2), qint8(0.5)))
    set_outputs(graph, [graph.apply("dequantize", x)])
    return written(graph, tmp_path)


class Holder(M.Module):
    def __init__(self):
        super().__init__()
        self.table = Tensor(np.ones((3, 2), np.int8), dtype=quantized("qint8", [0.1, 0.2, 0.3], 0, 0))
        self.fc = M.Linear(2, 2)

    def forward(self, x):
        return F.relu(self.fc(x)) + self.table.astype("float32").sum()


def quantized_layer(tmp_path):
    return written(trace_module(Holder().eval(), mge.Tensor(np.ones((1, 2), np.float32))), tmp_path)


def test_the_result_of_an_integer_layer_has_one_scale():
    from megengine.quantization.modules.int_modules import QuantizedElemwise

    made = QuantizedElemwise("ADD", qint8(0.5))
    with pytest.raises(DTypeError, match="output_dtype is .* with scales along an axis; the result of a layer has one"):
        made.__setstate__({**made.__getstate__(), "output_dtype": quantized("qint8", [0.1, 0.2], 0, 0)})


@pytest.mark.parametrize("suffix", [".mgt", ".tm"])
def test_an_attribute_that_is_no_layer_is_called(suffix, tmp_path):
    """The read of a layer is pointed at its weight; the call of that is refused when the file is loaded."""
    net = Holder()
    net.table = Tensor(np.ones((3, 2), np.int8), dtype=qint8(0.5))
    traced = trace_module(net.eval(), mge.Tensor(np.ones((1, 2), np.float32)))
    read = next(e for e in traced.graph.exprs(recursive=False) if getattr(e, "name", "") == "fc")
    read._path = "fc.weight"
    path = tmp_path / f"net{suffix}"
    (native.save if suffix == ".mgt" else save_tm)(traced, path)
    with pytest.raises(FileFormatError, match=r"calls a Parameter; expected a layer or a module"):
        mge.load(path)


@pytest.mark.parametrize("suffix", [".pkl", ".tm"])
@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-40, float("nan"), float("inf")])
def test_scales_in_pickles(scale, suffix, tmp_path):
    """What MegEngine notes of a quantized dtype is a number that stands in the file as it is."""
    right = float(np.float32(0.123))
    stored = Tensor(np.ones((3, 2), np.int8), dtype=qint8(right))
    path = tmp_path / f"net{suffix}"
    if suffix == ".tm":
        net = Holder()
        net.table = stored
        save_tm(trace_module(net.eval(), mge.Tensor(np.ones((1, 2), np.float32))), path)
    else:
        mge.save({"w": stored}, path)
    content, old, new = path.read_bytes(), np.array(right, ">f8").tobytes(), np.array(scale, ">f8").tobytes()
    assert content.count(old) and mge.load(path)
    path.write_bytes(content.replace(old, new))
    with pytest.raises(FileFormatError, match="scale must be a positive, normal, finite float32"):
        mge.load(path)


def test_elemwise_names_its_operands():
    with pytest.raises(TypeError, match="Elemwise: FUSE_ADD_RELU got 1 tensor; expected 2: x, y"):
        M.Elemwise("FUSE_ADD_RELU")(mge.Tensor([1.0]))
