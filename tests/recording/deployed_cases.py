"""Small graphs that the real MegEngine 1.13 dumps, with the results of its graph runtime; see `tests/data/megengine/deployed/operators.npz.xz`.

Runs where MegEngine is (Python 3.8): python tests/recording/deployed_cases.py OUT.npz.xz. One case is one operator or a few,
with its parameters away from their defaults. The file holds, for each case, the bytes of the .mge file, the inputs and
the results of running that file with MegEngine (not those of the function: its dump writes `clip` and `sign` wrongly).
"""

import io
import lzma
import sys
import tempfile
from pathlib import Path

import megengine as mge
import megengine.functional as F
import megengine.module as M
import numpy as np
from megengine import jit
from megengine.core._imperative_rt.core2 import apply
from megengine.core.ops import builtin
from megengine.core.tensor.dtype import qint8, qint32, quint8
from megengine.utils.comp_graph_tools import GraphInference

rng = np.random.RandomState(0)
CASES = {}


def f(*shape):
    return rng.randn(*shape).astype("float32")


def n(*values):
    return mge.tensor(np.array(values, "int32"))


def c(*shape):
    return mge.tensor(f(*shape))


def case(name, function, *inputs, **options):
    CASES[name] = function, inputs, options


x = f(1, 4, 6, 6)
weight, bias = c(4, 4, 3, 3), c(1, 4, 1, 1)
case("conv", lambda a: F.conv2d(a, weight, None, 2, (1, 3), (2, 1)), f(1, 4, 9, 11))
case("conv_groups", lambda a: F.conv2d(a, GROUPED, None, groups=2), x)
GROUPED = c(2, 3, 2, 3, 3)
case("conv_transpose", lambda a: F.conv_transpose2d(a, weight, bias, 2, 1), x)
case("conv3d", lambda a: F.conv3d(a, VOLUME, None, (1, 2, 3), (1, 0, 2)), f(1, 3, 5, 6, 7))
case("conv_transpose3d", lambda a: F.conv_transpose3d(a, TURNED, None, (1, 2, 3), (1, 0, 1)), f(1, 4, 3, 4, 5))
VOLUME, TURNED = c(5, 3, 2, 2, 2), c(4, 2, 2, 2, 2)
FUSED = {"enable_fuse_conv_bias_nonlinearity": True}
for word in ("relu", "sigmoid", "hswish"):
    case(f"conv_bias_{word}", lambda a, w=word: getattr(F, w)(F.conv2d(a, weight, bias, 1, 1)), x, **FUSED)
case("conv_bias", lambda a: F.conv2d(a, weight, bias, 1, 1), x, **FUSED)
case(
    "conv_bias_z", lambda a: F.relu(F.conv2d(a, weight, bias, 1, 1) + a), x, enable_fuse_conv_bias_with_z=True, **FUSED
)
case("residual", lambda a: F.relu(F.conv2d(a, weight, bias, 1, 1) + a), x)
case("max_pool", lambda a: F.max_pool2d(a, (3, 2), (2, 1), (1, 0)), x)
case("avg_pool", lambda a: F.avg_pool2d(a, 3, 2, 1, mode="average"), x)
case("avg_pool_inside", lambda a: F.avg_pool2d(a, 3, 2, 1), x)
case("adaptive_avg", lambda a: F.adaptive_avg_pool2d(a, (3, 2)), x)
case("adaptive_max", lambda a: F.adaptive_max_pool2d(a, 2), x)
case("batched_matmul", lambda a, b: F.matmul(a, b, transpose_a=True, transpose_b=True), f(2, 4, 3), f(2, 5, 4))
case("matmul", lambda a, b: F.matmul(a, b, transpose_b=True), f(3, 4), f(5, 4))
case("linear", lambda a: F.linear(a, ROWS, BIAS), f(2, 3, 4))
ROWS, BIAS = c(5, 4), c(5)
for word in ("sum", "mean", "max", "min", "prod"):
    case(f"reduce_{word}", lambda a, w=word: getattr(F, w)(a, axis=1), x)
case("reduce_all", lambda a: F.mean(a) * 2, x)
case("reduce_two", lambda a: F.mean(a, axis=(2, 3), keepdims=True), x)
case("norm", lambda a: F.norm(a, 2, axis=1), x)
case("reshape", lambda a: F.reshape(a, (1, -1, 9)), x)
case("flatten", lambda a: F.flatten(a, 1), x)
case("transpose", lambda a: F.transpose(a, (0, "x", 2, 3, 1)), x)
case("expand_dims", lambda a: F.expand_dims(a, (0, 2)), f(2, 3))
case("squeeze", lambda a: F.squeeze(a, (0, 2)), f(1, 3, 1, 2))
case("concat", lambda a, b: F.concat([a, b, a], axis=-1), f(2, 3), f(2, 2))
case("stack", lambda a: F.stack([a, a + 1], axis=1), f(2, 3))
case("split", lambda a: F.split(a, [1, 3], axis=1), x)
case("broadcast_to", lambda a: F.broadcast_to(a, (2, 3, 4)), f(1, 4))
case("to_half", lambda a: a.astype("float16").astype("float32"), f(2, 3))
case("to_int", lambda a: a.astype("int32"), f(2, 3) * 5)
case("of_bytes", lambda a: a.astype("float32") * 0.5, (f(2, 3) * 50 + 100).astype("uint8"))
case("to_bool", lambda a: a.astype("bool"), f(2, 3))
case("softmax", lambda a: F.softmax(a, axis=1), x)
case("softmax_last", lambda a: F.softmax(a, axis=-1), f(2, 5))
case("logsoftmax", lambda a: F.logsoftmax(a, axis=-1), f(2, 5))
case("layer_norm", lambda a: F.nn.layer_norm(a, (6,), True, GAIN, SHIFT, eps=1e-3), f(2, 4, 6))
case("layer_norm_plain", lambda a: F.nn.layer_norm(a, (4, 6), False, eps=1e-3), f(2, 4, 6))
GAIN, SHIFT = c(6), c(6)
case("group_norm", lambda a: F.nn.group_norm(a, 2, True, GAINS, bias, eps=1e-3), x)
GAINS = c(1, 4, 1, 1)
case("batch_norm", lambda a: F.nn.batch_norm(a, GAINS, SPREAD, bias, GAINS, training=False, eps=1e-3), x)
SPREAD = mge.tensor(np.abs(f(1, 4, 1, 1)))
case("local_response_norm", lambda a: F.nn.local_response_norm(a, 3, 1.5, 2e-4, 0.7), x)
case("resize", lambda a: F.nn.interpolate(a, (9, 7), mode="bilinear"), x)
case("resize_corners", lambda a: F.nn.interpolate(a, (9, 7), mode="bilinear", align_corners=True), x)
case("resize_nearest", lambda a: F.nn.interpolate(a, scale_factor=2, mode="nearest"), x)
case("resize_cubic", lambda a: F.nn.interpolate(a, (9, 7), mode="bicubic"), x)
case("resize_3d", lambda a: F.nn.interpolate(a, (4, 5, 6), mode="trilinear"), f(1, 2, 3, 4, 4))
matrix = np.array([[[1, 0.1, 0], [0, 0.9, 0.2], [0, 0.01, 1]]], "float32")
edge = {"border_mode": "constant", "border_val": 0.5}
case("warp", lambda a, m: F.vision.warp_perspective(a, m, (5, 5), **edge), x, matrix)
case("warp_rows", lambda a, m: F.vision.warp_perspective(a, m, (5, 5), format="NHWC"), f(1, 6, 6, 3), matrix)
case("warp_affine", lambda a, m: F.vision.warp_affine(a, m, (5, 5), **edge, format="NCHW"), x, matrix[:, :2])
case(
    "remap",
    lambda a, m: F.vision.remap(a, m, border_mode="constant", scalar=2.0, interp_mode="nearest"),
    *(x, f(1, 4, 4, 2) * np.float32(3)),
)
case("index", lambda a: a[:, 1:3, ::2, -1], x)
case("index_turned", lambda a: a[..., ::-1], x)
case("index_positions", lambda a: a[:, n(0, 2)], x)
case("index_apart", lambda a: a[:, n(0, 2, 1), :, n(1, 3, 4)], f(2, 3, 4, 5))
case("index_computed", lambda a: a[:, :, : a.shape[2] // 2], x)
case("index_written", lambda a: written(a), f(3, 4))


def written(a):
    a = a * 1
    a[1:2] = 0.5
    a[:, n(0, 2)] = 1.0
    return a


case("embedding", lambda i: F.nn.embedding(i, TABLE), np.array([[1, 2], [3, 6]], "int32"))
TABLE = c(7, 5)
case("gather", lambda a, i: F.gather(a, 1, i), f(3, 4), np.array([[0, 1], [3, 2], [1, 1]], "int32"))
case("one_hot", lambda i: F.one_hot(i, 5), np.array([1, 3], "int32"))
case("argmax", lambda a: F.argmax(a, axis=1), x)
case("argmin", lambda a: F.argmin(a, axis=-1, keepdims=True), x)
case("topk", lambda a: F.topk(a, 3, descending=True), f(3, 6))
case("argsort", lambda a: F.argsort(a, descending=True), f(3, 6))
case("cumsum", lambda a: apply(builtin.Cumsum(axis=0, exclusive=True, reverse=True), a)[0], f(3, 4))
case("where", lambda a, b: F.where(a > b, a, b), f(3, 6), f(3, 6))
for word in ("constant", "reflect", "replicate"):
    case(f"pad_{word}", lambda a, w=word: F.nn.pad(a, ((0, 0), (0, 0), (1, 2), (3, 0)), w, 1.5), x)
case("pixel_shuffle", lambda a: F.pixel_shuffle(a, 2), x)
case("colours", lambda a: F.vision.cvt_color(a, "BGR2GRAY"), f(1, 4, 5, 3))
regions = np.array([[0, 1, 1, 8, 9]], "float32")
case("roi_align", lambda a, r: F.vision.roi_align(a, r, (2, 3), "average", 0.5, (2, 3), True), x, regions)
case("roi_pooling", lambda a, r: F.vision.roi_pooling(a, r, (2, 3), "max", 0.5), x, regions)
case("deformable", lambda a, o, m: F.deformable_conv2d(a, weight, o, m, None, 1, 1), x, f(1, 18, 6, 6), f(1, 9, 6, 6))
case("local", lambda a: F.local_conv2d(a, PLACES, None), x)
PLACES = c(1, 4, 4, 4, 3, 3, 4)
case("windows", lambda a: F.sliding_window(a, (3, 2), (1, 0), (2, 1), (1, 1)), x)
case("windows_back", lambda a: F.sliding_window_transpose(F.sliding_window(a, 3, 1, 2), (6, 6), 3, 1, 2), x)
case("correlation", lambda a, b: F.vision.correlation(a, b, 1, 2, 1, 1, 2, True), x, x + 1)
case("arange", lambda a: a + F.arange(0.0, a.shape[0] * 1.0), f(4))
case("eye", lambda a: a + F.eye(3, 4), f(3, 4))
case("diag", lambda a: F.diag(a, 1), f(3, 4))
case("matinv", lambda a: F.matinv(a), f(3, 3))
case("dot", lambda a, b: F.dot(a, b), f(4), f(4))
lstm, rnn = M.LSTMCell(3, 4), M.RNNCell(3, 4)
case("lstm_cell", lambda a: lstm(a)[0], f(2, 3))
case("rnn_cell", lambda a: rnn(a), f(2, 3))
small = np.abs(f(2, 3)) / 4
ONE = (
    "RELU ABS ACOS ASIN CEIL COS EXP EXPM1 FLOOR LOG LOG1P NEGATE SIGMOID SIN TANH ROUND ERF ERFINV ERFC ERFCINV H_SWISH "
    "SILU GELU COSH ASINH TAN SOFTPLUS RELU6 HSIGMOID LOGSIGMOID SQRT SQUARE SIGN FAST_TANH"
)
case("elemwise_1", lambda a: [apply(builtin.Elemwise(mode), a)[0] for mode in ONE.split()], small)
TWO = (
    "ADD SUB MUL TRUE_DIV FLOOR_DIV MAX MIN MOD POW LOG_SUM_EXP LT LEQ EQ ATAN2 FUSE_ADD_RELU FUSE_ADD_SIGMOID "
    "FUSE_ADD_TANH FUSE_ADD_H_SWISH SWITCH_GT0 PRELU SIGMOID_GRAD"
)
case("elemwise_2", lambda a, b: [apply(builtin.Elemwise(mode), a, b)[0] for mode in TWO.split()], small + 1, f(2, 3))
THREE = "COND_LEQ_MOV COND_LT_MOV FUSE_MUL_ADD3"
case("elemwise_3", lambda *a: [apply(builtin.Elemwise(m), *a)[0] for m in THREE.split()], f(2, 3), f(2, 3), f(2, 3))
case("elemwise_4", lambda *a: apply(builtin.Elemwise("FUSE_MUL_ADD4"), *a)[0], *(f(2, 3) for _ in range(4)))
whole = np.array([5, -9], "int32"), np.array([2, 3], "int32")
WHOLE = "SHL SHR RMULH FLOOR_DIV MOD"
case("elemwise_integers", lambda a, b: [apply(builtin.Elemwise(mode), a, b)[0] for mode in WHOLE.split()], *whole)
truth = np.array([True, False]), np.array([True, True])
case("elemwise_truth", lambda a, b: [F.logical_not(a), *(g(a, b) for g in LOGIC)], *truth)
LOGIC = F.logical_and, F.logical_or, F.logical_xor
case("names", lambda a, b: (a + b, a * b), f(2, 3), f(2, 3), arg_names=["left", "right"], output_names=["sum", "prod"])
case("half", lambda a: F.relu(F.conv2d(a, weight, bias)), x, enable_ioc16=True)
case("half_sums", lambda a: F.relu(F.conv2d(a, weight, bias)), x, enable_io16xc32=True)
wide = f(2, 30)
case("quantize", lambda a: a.astype(qint8(0.1)).astype("float32"), wide)
case("quantize_uint8", lambda a: a.astype(quint8(0.1, 100)).astype("float32"), wide)
case("requantize", lambda a: a.astype(qint8(0.1)).astype(qint8(0.17)).astype("float32"), wide)
W8, B32 = c(8, 4, 3, 3).astype(qint8(0.03)), c(1, 8, 1, 1).astype(qint32(0.03 * 0.1))
D8, C32 = c(4, 1, 1, 3, 3).astype(qint8(0.03)), c(1, 4, 1, 1).astype(qint32(0.03 * 0.1))


def layer(name, weight, bias, scale, word, **options):
    function = F.quantized.conv_bias_activation

    def run(a):
        y = function(a.astype(qint8(0.1)), weight, bias, dtype=qint8(scale), nonlinear_mode=word, **options)
        return y.astype("float32")

    case(name, run, f(1, 4, 8, 8))


layer("quantized_conv", W8, B32, 0.2, "identity", padding=1)
layer("quantized_conv_relu", W8, B32, 0.1, "relu", padding=1, stride=2)
layer("quantized_conv_wide", W8, B32, 0.05, "identity", padding=2, dilation=2)
layer("quantized_depthwise", D8, C32, 0.05, "relu", padding=1, groups=4)
layer("quantized_depthwise_plain", D8, C32, 0.05, "identity", padding=1, groups=4)
layer("quantized_conv_hswish", W8, B32, 0.2, "h_swish", padding=1)
QTWO = "QADD QFUSE_ADD_RELU QMUL QMAX QMIN QSUB QTRUE_DIV QFUSE_ADD_SIGMOID QFUSE_ADD_TANH QFUSE_ADD_H_SWISH"
QONE = "QRELU QABS QSIGMOID QEXP QTANH QFAST_TANH QNEGATE QCEIL QCOS QFLOOR QSIN QROUND QERF QH_SWISH"


def typed(mode, *inputs):
    return apply(builtin.ElemwiseMultiType(mode, dtype=qint8(0.05)), *inputs)[0].astype("float32")


case(
    "quantized_2", lambda a, b: pairs(a.astype(qint8(0.1)), b.astype(qint8(0.07))), wide, np.abs(wide) + np.float32(0.3)
)
case("quantized_1", lambda a: [typed(mode, a.astype(qint8(0.1))) for mode in QONE.split()], wide)


def pairs(a, b):
    return [typed(mode, a, b) for mode in QTWO.split()]


case("quantized_pool", lambda a: F.avg_pool2d(a.astype(qint8(0.1)), 2).astype("float32"), x)
case("quantized_max_pool", lambda a: F.max_pool2d(a.astype(qint8(0.1)), 2).astype("float32"), x)
case("quantized_matmul", lambda a: F.matmul(a.astype(qint8(0.1)), M8).astype(qint8(0.3)).astype("float32"), f(3, 4))
M8, T8 = c(4, 5).astype(qint8(0.03)), c(4, 4, 3, 3).astype(qint8(0.03))
case("quantized_transpose", lambda a: turned(a.astype(qint8(0.1))), f(1, 4, 5, 5))


def turned(a):
    y = F.quantized.conv_transpose2d(a, T8, None, dtype=qint8(0.3), stride=2, padding=1)
    return y.astype("float32")


case(
    "loaded_inputs",
    lambda a, b: (a + b, a * b),
    f(2, 3),
    f(2, 3),
    input_data=["arg_0:#rand(0,1,2,3);arg_1:#rand(0,1,2,3)"],
)
case("refused_layout", lambda a: F.relu(F.conv2d(a, weight, bias)), x, enable_nchw44=True)
case("refused_operators", lambda a: refused(a), f(3, 4))


def refused(a):
    return F.cond_take(a > 0, a)[0], F.svd(a)[1]


def recorded(name, folder):
    """Bytes of the file, inputs, and what MegEngine's graph runtime gives for them."""
    function, inputs, options = CASES[name]
    traced = jit.trace(function, symbolic=True, capture_as_const=True)
    traced(*map(mge.tensor, inputs))
    path = str(Path(folder) / "graph.mge")
    traced.dump(path, **options)
    found = {"mge": np.frombuffer(Path(path).read_bytes(), np.uint8)}
    found.update((f"in{k}", value) for k, value in enumerate(inputs))
    if name.startswith("refused"):
        return found
    if name == "loaded_inputs":  # which GraphInference does not open
        found.update((f"out{k}", value.numpy()) for k, value in enumerate(traced(*map(mge.tensor, inputs))))
        return found
    runtime = GraphInference(path)
    names = options.get("arg_names", [f"arg_{k}" for k in range(len(inputs))])
    results = runtime.run(inp_dict=dict(zip(names, inputs))).values()
    found.update((f"out{k}", np.asarray(value)) for k, value in enumerate(results))
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made = {name: recorded(name, folder) for name in CASES}
    flat = {f"{name}/{key}": value for name, one in made.items() for key, value in one.items()}
    content = io.BytesIO()
    np.savez(content, **flat)
    Path(sys.argv[1]).write_bytes(lzma.compress(content.getvalue()))
