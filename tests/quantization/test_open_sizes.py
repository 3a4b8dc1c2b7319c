"""Networks with open axes are quantized on inputs of several sizes and are exact at others."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from megengine.autodiff import GradManager
from megengine.convert.onnx import export_qdq, load
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import CalibrationError
from megengine.plan import compile as compile_plan
from megengine.quantization import prepare_qat, quantize_model
from megengine.quantization.checks import verify
from megengine.tensor import Tensor
from megengine.traced_module import TracedModule
from megengine.traced_module.formats import native
from tests.convert.test_onnx_open_sizes import NETS, data, runtime

LAYERS = {"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN"}
CASES = {
    name: [(1, 3, 24, 16), (2, 3, 12, 20)] if len(shapes[0]) == 4 else [(2, 7), (1, 12)]
    for name, (make, shapes) in NETS.items()
    if name != "blocks" and any(node.op_type in LAYERS for node in make().graph.node)  # blocks are of one size
}


@pytest.mark.parametrize("name", CASES)
def test_exact_at_sizes_that_were_not_calibrated(name, tmp_path):
    """Verified with plans, saved and read, and exported as QDQ, at other sizes."""
    make, shapes = NETS[name]
    made = quantize_model(load(make()), [data(shape) for shape in CASES[name]])
    inputs = [data(shape) for shape in shapes]
    assert verify(made, inputs, threads=(1,)).exact
    native.save(made.traced(), tmp_path / "net.mgt")
    read, plan = native.load(tmp_path / "net.mgt"), compile_plan(made.integer_graph)
    export_qdq(made, tmp_path / "net.onnx")
    exported, qdq = runtime(onnx.load(tmp_path / "net.onnx"), optimised=False), TracedModule.from_graph(made.qdq_graph)
    for x in inputs:
        np.testing.assert_array_equal(read(x).numpy(), made(x).numpy())
        np.testing.assert_array_equal(plan(x)[0], made(x).numpy())
        difference = np.abs(exported(x) - qdq(x).numpy())
        # float sums may fall on the other side of a step; in QDQ files the state of a recurrent layer is not rounded
        assert np.quantile(difference, 0.5) < (5e-3 if name == "tagger" else 1e-5), x.shape


PADDED = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N,3,H,W] x) => (float[N,4,h,w] y)
    { c = Conv <auto_pad="SAME_UPPER", strides=[2,2]> (x, w)
      r = Relu (c)
      y = Conv <auto_pad="SAME_LOWER", strides=[2,2], group=4> (r, d) }"""


def test_training_at_sizes_other_than_the_example():
    """Paddings that follow from the sizes are those of each batch, forwards and backwards."""
    rng, model = np.random.default_rng(0), onnx.parser.parse_model(PADDED)
    for name, shape in {"w": (4, 3, 3, 3), "d": (4, 1, 3, 3)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name))
    batches = [rng.normal(size=shape).astype(np.float32) for shape in ((1, 3, 17, 22), (1, 3, 8, 9), (1, 3, 6, 6))]
    for x in batches:
        fixed = prepare_qat(load(model, input_shapes=x.shape), calibration=[x]).train()
        of_any = prepare_qat(load(model), calibration=[x]).train()
        gradients = []
        for module in (of_any, fixed):
            names, parameters = zip(*module.named_parameters(), strict=True)
            manager = GradManager().attach(list(parameters))
            with manager:
                manager.backward((module(Tensor(x)) ** 2).sum())
            gradients.append({name: p.grad.numpy() for name, p in zip(names, parameters, strict=True)})
        for name, gradient in gradients[0].items():
            np.testing.assert_allclose(gradient, gradients[1][name], rtol=1e-5, atol=1e-6)
        converted = of_any.eval().convert()
        np.testing.assert_array_equal(of_any(Tensor(x)).numpy(), converted(Tensor(x)).numpy())


def rotated():
    """Positions as angles (RoPE) between two products: x [1, L, 16] float32."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1,L,16] x) => (float[1,L,16] y)
        <int64 zero={0}, int64 one={1}, int64[1] last={1}>
        {
          h = MatMul(x, w)
          s = Shape(x)
          l = Gather(s, one)
          i = Range(zero, l, one)
          f = Cast<to=1>(i)
          p = Unsqueeze(f, last)
          halves = MatMul(p, frequencies)
          angles = Concat<axis=-1>(halves, halves)
          c = Cos(angles)
          n = Sin(angles)
          a, b = Split<axis=-1>(h)
          m = Neg(b)
          r = Concat<axis=-1>(m, a)
          hc = Mul(h, c)
          rn = Mul(r, n)
          q = Add(hc, rn)
          y = MatMul(q, v)
        }""")
    rng = np.random.default_rng(0)
    values = {"frequencies": 100 ** (-np.arange(8) / 8)[None]} | {k: rng.normal(size=(16, 16)) / 4 for k in "wv"}
    model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), k) for k, v in values.items())
    return model


def test_values_that_follow_from_sizes_hold_for_lengths_that_were_not_calibrated():
    """In integers, positions up to 7 would be the range: at 64 the signal was no larger than the noise."""
    rng = np.random.default_rng(1)

    def drawn(shape):
        return rng.uniform(-1, 1, shape).astype(np.float32)

    network, runs = load(rotated()), runtime(rotated())
    made = quantize_model(network, [drawn((1, 8, 16)) for _ in range(8)])
    left = {one.op: one.reason for one in made.report.floating}
    assert left["cos"] == "cos follows from sizes alone, so its range holds for one length only"
    for length in (3, 8, 64):
        x = drawn((1, length, 16))
        noise = np.square(made(x).numpy() - runs(x)).mean() / np.square(runs(x)).mean()
        assert -10 * np.log10(noise) > 27, length
    assert verify(made, [drawn((1, 64, 16))], threads=(1,)).exact


def meeting_data(bias):
    """A function of the places, added to scores of attention: x [1, L, 16] float32."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1,L,16] x) => (float[1,L,16] y)
        <int64 zero={0}, int64 one={1}, int64[1] last={1}, int64[1] first={0}, float slope={-0.25}, float far={4}>
        {
          q = MatMul(x, w)
          k = Transpose<perm=[0, 2, 1]>(x)
          scores = MatMul(q, k)
          s = Shape(x)
          l = Gather(s, one)
          i = Range(zero, l, one)
          f = Cast<to=1>(i)
          rows = Unsqueeze(f, last)
          columns = Unsqueeze(f, first)
          difference = Sub(rows, columns)
          distance = Abs(difference)"""
        + bias
        + """
          b = Add(scores, bias)
          p = Softmax<axis=-1>(b)
          y = MatMul(p, x)
        }"""
    )
    w = np.random.default_rng(0).normal(size=(16, 16)) / 16
    model.graph.initializer.append(numpy_helper.from_array(w.astype(np.float32), "w"))
    return model


GROWING = {
    "grows": ("bias = Mul(distance, slope)", True),
    "ends": ("near = Min(distance, far)\nbias = Mul(near, slope)", False),
    "turns": ("bias = Cos(distance)", False),
}


@pytest.mark.parametrize("name", GROWING)
def test_values_that_grow_with_sizes_meet_data_in_float(name):
    """ALiBi, calibrated at 6 places: in integers the farthest were as far as 6 at every length."""
    bias, grows = GROWING[name]
    rng = np.random.default_rng(1)
    network, runs = load(meeting_data(bias)), runtime(meeting_data(bias))
    made = quantize_model(network, [rng.normal(size=(1, 6, 16)).astype(np.float32) for _ in range(8)])
    left = {one.name: one.reason for one in made.report.floating}
    assert left.get("b") == ("add reads bias, which follows from sizes alone and grows with them" if grows else None)
    x = rng.normal(size=(1, 80, 16)).astype(np.float32)
    noise = np.square(made(x).numpy() - runs(x)).mean() / np.square(runs(x)).mean()
    assert not grows or -10 * np.log10(noise) > 20  # 3 dB in integers
    assert verify(made, [x], threads=(1,)).exact


def test_data_that_does_not_fit_is_named():
    make, _ = NETS["pooling"]
    with pytest.raises(CalibrationError, match=r"batch 1, input 'x': expected shape \(batch, 3, height, width\), got"):
        quantize_model(load(make()), [data((1, 3, 8, 8)), np.zeros((1, 4, 8, 8), np.float32)])


NORMALISED = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N,3,H,W] x) => (float[N,4,h,w] y)
    { c = Conv (x, w)
      n = InstanceNormalization (c, s, b)
      r = Relu (n)
      y = Conv <strides=[2,2]> (r, d) }"""


def test_norms_over_open_axes_are_integers():
    """No float sum stands between integers, whose last bit another runtime has otherwise: its integers are ours."""
    rng, model = np.random.default_rng(0), onnx.parser.parse_model(NORMALISED)
    for name, shape in {"w": (4, 3, 3, 3), "s": (4,), "b": (4,), "d": (4, 4, 3, 3)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(0, 0.5, shape).astype(np.float32), name))
    made = quantize_model(load(model), [data((1, 3, 24, 16))])
    assert "qnorm" in {getattr(e, "op", "") for e in made.integer_graph.exprs()}
    inputs = [data(shape) for shape in ((1, 3, 24, 16), (2, 3, 17, 9), (1, 3, 6, 50))]
    assert verify(made, inputs, threads=(1,)).exact
    exported = runtime(to_model(made.integer_graph), optimised=False)
    for x in inputs:
        np.testing.assert_array_equal(exported(x), made(x).numpy())
        steps = compile_plan(made.integer_graph).at(x.shape).steps
        assert not [s for s in steps if s.kernel == "reference"]
