"""Cases of layers: results in training and evaluation, gradients of inputs and parameters, buffers afterwards.

The layers are made by the package that answers, and get numbers drawn here; a case's inputs are those of the layer.
"""

import numpy as np
from cases import case, cotangent, distinct, f, i

LAYERS = {}  # name of a case -> the call that makes its layer


def fill(layer):
    """Numbers for parameters and buffers that depend only on their names and shapes: in the order of the names."""
    import megengine

    for name, value in sorted(layer.named_tensors()):
        low = (
            0.5
            if "var" in name or (value.size and name.endswith("weight") and max(value.shape) == value.size)
            else -0.7
        )
        value._reset(megengine.tensor(f(*value.shape, low=low, high=0.9, seed=len(name)).reshape(value.shape)))


def leaves(value):
    """Tensors in tuples and lists, in order."""
    if isinstance(value, (tuple, list)):
        return [t for part in value for t in leaves(part)]
    return [] if value is None else [value]


def answers(make, options, inputs):
    """Results, gradients of float inputs and of parameters by name, and the buffers afterwards."""
    import megengine
    import megengine.module
    from megengine.autodiff import GradManager

    layer = make(megengine.module)
    fill(layer)
    layer.train(options.get("training", True))
    parameters = [p for _, p in sorted(layer.named_parameters())]
    moving = [x for x in inputs if x.dtype == np.float32] + parameters
    call = options.get("call", lambda layer, *inputs: layer(*inputs))
    if not options.get("grad", True):
        results = leaves(call(layer, *inputs))
        return results + [b for _, b in sorted(layer.named_buffers())]
    manager = GradManager()
    if moving:
        manager.attach(moving)
    with manager:
        results = leaves(call(layer, *inputs))
        if moving:
            manager.backward(sum((y * megengine.tensor(cotangent(tuple(y.shape)))).sum() for y in results))
    zeros = [np.zeros(t.shape, np.float32) for t in moving]
    gradients = [z if t.grad is None else t.grad for z, t in zip(zeros, moving)]
    return results + gradients + [b for _, b in sorted(layer.named_buffers())]


def layer(make, *inputs, **options):
    """Enter a case of a layer; the text of a case is what makes the layer."""
    mode = "" if options.get("training", True) else ", evaluation"
    name = "module " + make + mode + options.pop("label", "")
    LAYERS[name] = make
    made = eval("lambda M: M." + make)
    case(name, lambda F, *x: answers(made, options, x), *inputs, grad=False)


_PICTURE, _ROW = f(2, 4, 5, 6), f(3, 4)
for _make in ("ReLU()", "LeakyReLU()", "LeakyReLU(0.3)", "PReLU()", "PReLU(4)", "PReLU(1, 0.1)", "Sigmoid()", "SiLU()", "GELU()",
              "Softmax()", "Softmax(1)", "Identity()", "Dropout()", "QuantStub()", "DequantStub()"):  # fmt: skip
    layer(_make, _PICTURE)
layer("Dropout(0.3)", _PICTURE, training=False)
for _make in ("AdaptiveAvgPool2d((2, 3))", "AdaptiveAvgPool2d(2)", "AvgPool2d(2)", "AvgPool2d(3, 2, 1)", "AvgPool2d(3, 2, 1, 'average')",
              "LocalResponseNorm()", "LocalResponseNorm(3, 1.0, 0.5, 0.6)", "PixelShuffle(2)", "SlidingWindow(2)",
              "SlidingWindow((2, 3), (1, 0), (2, 1), (1, 2))", "Pad(((0, 0), (0, 0), (1, 2), (0, 1)))",
              "Pad(((0, 0), (0, 0), (1, 2), (0, 1)), 'constant', 1.5)", "Pad(((0, 0), (0, 0), (1, 2), (0, 1)), 'reflect')",
              "Pad(((0, 0), (0, 0), (1, 2), (0, 1)), 'replicate')", "Pad(((0, 0), (0, 0), (1, 2), (0, 1)), 'edge')"):  # fmt: skip
    layer(_make, _PICTURE)
for _make in ("AdaptiveMaxPool2d(2)", "AdaptiveMaxPool2d((2, 3))", "MaxPool2d(2)", "MaxPool2d(3, 2, 1)"):
    layer(_make, distinct(2, 4, 5, 6))
for _class in ("Conv2d", "ConvRelu2d", "ConvBn2d", "ConvBnRelu2d"):
    layer(_class + "(4, 6, 3, compute_mode='float32')", _PICTURE, grad=False)
layer("DeformableConv2d(4, 6, 3, compute_mode='float32')", _PICTURE, f(2, 18, 3, 4), f(2, 9, 3, 4))
layer("SlidingWindowTranspose((4, 5), 2)", f(1, 2, 3, 4, 2, 2))
layer("SlidingWindowTranspose((5, 7), (2, 3), (1, 0), (2, 1), (1, 2))", f(1, 2, 3, 3, 2, 3))
layer("Concat()", _PICTURE, call=lambda layer, x: layer([x, x * 2], axis=1))
# every mode that MegEngine lists but the gradients of others, the inverses of ERF and ERFC, and RMULH
_UNARY = """ABS ACOS ASIN ASINH ATANH CEIL COS COSH ERF ERFC EXP EXPM1 FAST_TANH FLOOR GELU HSIGMOID H_SWISH
ISINF ISNAN LOG LOG1P LOGSIGMOID NEGATE RELU RELU6 ROUND SIGMOID SIGN SILU SIN SINH SOFTPLUS SQRT SQUARE TAN TANH relu"""
_BINARY = """ADD ATAN2 EQ FLOOR_DIV FUSE_ADD_H_SWISH FUSE_ADD_RELU FUSE_ADD_SIGMOID FUSE_ADD_TANH LEQ LOG_SUM_EXP LT MAX MIN MOD
MUL NEQ POW PRELU SUB SWITCH_GT0 TRUE_DIV fuse_add_relu"""
_FLAT = ["CEIL", "EQ", "FLOOR", "FLOOR_DIV", "ISINF", "ISNAN", "LEQ", "LT", "MOD", "NEQ", "ROUND", "SIGN"]
for _method in _UNARY.split():
    layer("Elemwise(%r)" % _method, f(3, 4, low=0.1, high=0.9), grad=_method not in _FLAT)
layer("Elemwise('ACOSH')", f(3, 4, low=1.1))
for _method in _BINARY.split():
    layer("Elemwise(%r)" % _method, f(3, 4, low=0.5), f(3, 4, low=0.5, seed=1), grad=_method not in _FLAT)
for _method in ("COND_LEQ_MOV", "COND_LT_MOV", "FUSE_MUL_ADD3", "CLIP"):
    layer("Elemwise(%r)" % _method, f(3, 4), f(3, 4, high=0, seed=1), f(3, 4, low=0, seed=2))
layer("Elemwise('FUSE_MUL_ADD4')", f(3, 4), f(3, 4, seed=1), f(3, 4, seed=2), f(3, 4, seed=3))
for _method in ("SHL", "SHR"):
    layer("Elemwise(%r)" % _method, i(6, low=-9, high=90), i(6, high=4, seed=1), grad=False)
for _method in ("AND", "OR", "XOR", "NOT"):
    layer("Elemwise(%r)" % _method, *[i(6, high=2, seed=k) > 0 for k in range(1 + (_method != "NOT"))], grad=False)
_CONV = ("3", "(3, 1), 2, 1", "3, padding=2, dilation=2", "3, groups=2", "3, bias=False", "3, padding=1, padding_mode='reflect'",
         "3, padding=1, padding_mode='replicate'", "3, 1, 1, 1, 1, True, 'cross_correlation', 'default', 'zeros'")  # fmt: skip
for _args in _CONV:
    layer("Conv2d(4, 6, %s)" % _args, _PICTURE)
    layer("Conv1d(4, 6, %s)" % _args.replace("(3, 1), 2, 1", "3, 2, 1"), f(2, 4, 7))
for _args in (
    "3",
    "3, 2, 1",
    "2, padding=1, groups=2, padding_mode='reflect', bias=False",
    "3, dilation=2, padding=1, padding_mode='replicate'",
):
    layer("ConvRelu2d(4, 6, %s)" % _args, _PICTURE)
for _args in ("2", "(1, 2, 3), (1, 2, 1), 1, groups=2, bias=False", "2, dilation=(1, 2, 1)"):
    layer("Conv3d(4, 6, %s)" % _args, f(1, 4, 3, 4, 5))
for _class in ("ConvTranspose2d", "ConvTransposeRelu2d"):
    for _args in ("3", "3, 2, 1", "(2, 3), groups=2, bias=False", "3, dilation=2", "3, (2, 2), (1, 1), (1, 0), (1, 1)"):
        layer("%s(4, 6, %s)" % (_class, _args), f(1, 4, 3, 4))
for _args in (
    "2",
    "2, 2, 1",
    "2, groups=2, bias=False",
    "2, dilation=(1, 2, 1)",
    "3, (2, 2, 2), (1, 1, 1), (1, 0, 1), (1, 1, 1)",
):
    layer("ConvTranspose3d(4, 6, %s)" % _args, f(1, 4, 2, 3, 2))
for _args in ("3", "3, 2, 1", "3, bias=False", "3, dilation=2, padding=1"):
    _out = {"3, 2, 1": (3, 3), "3, dilation=2, padding=1": (3, 4)}.get(_args, (3, 4))
    layer("DeformableConv2d(4, 6, %s)" % _args, _PICTURE, f(2, 18, *_out), f(2, 9, *_out))
layer("DeformableConv2d(4, 6, 3, groups=2)", _PICTURE, f(2, 18, 3, 4), f(2, 9, 3, 4))
layer("LocalConv2d(4, 6, 5, 6, 3)", _PICTURE)
layer("LocalConv2d(4, 6, 5, 6, 3, 2, 1, groups=2)", _PICTURE)
_RIN = np.repeat(np.repeat(np.int32([[[0, 1], [1, 2]]]), 2, 1), 2, 2)
for _args in ("3, padding=1", "3, 2, padding=1", "3, 2, False, 1, 1", "3, padding=2, dilation=2"):
    layer("RegionRestrictedConv(4, 6, %s)" % _args, f(1, 4, 4, 4), _RIN, _RIN)
for _args in ("True, 2, 2, 2, 2, 0.7", "False, 2, 2, 2, 2, 0.7, 0.3"):
    layer(
        "DeformablePSROIPooling(%s)" % _args, f(2, 8, 6, 7), np.float32([[0, 0.5, 0.6, 4.2, 4.4], [1, 1, 1, 5, 5], [0, 3, 2, 1, 5]]),
        f(3, 2, 2, 2), grad=False,
    )  # fmt: skip
for _training in (True, False):
    for _args in ("4", "4, 0.3, 0.5", "4, affine=False", "4, track_running_stats=False", "4, freeze=True"):
        layer("BatchNorm2d(%s)" % _args, _PICTURE, training=_training)
        layer("BatchNorm1d(%s)" % _args, f(3, 4, 5), training=_training)
        if "freeze" not in _args:
            layer("SyncBatchNorm(%s)" % _args, _PICTURE, training=_training, grad=False)
    layer("BatchNorm1d(4)", _ROW, training=_training, label=", two axes")
    for _class in ("ConvBn2d", "ConvBnRelu2d", "ConvTransposeBn2d", "ConvTransposeBnRelu2d"):
        for _args in (
            "3",
            "3, 2, 1, bias=False",
            "3, affine=False",
            "3, groups=2, eps=0.3, momentum=0.5",
            "3, track_running_stats=False",
            "2, dilation=2",
        ):
            layer("%s(4, 6, %s)" % (_class, _args), _PICTURE, training=_training)
    for _class in ("ConvBn2d", "ConvBnRelu2d"):
        for _mode in ("reflect", "replicate"):
            layer("%s(4, 6, 3, padding=1, padding_mode=%r)" % (_class, _mode), _PICTURE, training=_training)
    for _class in ("ConvTransposeBn2d", "ConvTransposeBnRelu2d"):
        layer(_class + "(4, 6, 3, (2, 2), (1, 1), (1, 0), (1, 1), 1, False)", _PICTURE, training=_training)
    for _class in ("LinearBn1d", "LinearBnRelu1d"):
        for _args in (
            "4, 5",
            "4, 5, False",
            "4, 5, eps=0.3, momentum=0.5",
            "4, 5, affine=False",
            "4, 5, track_running_stats=False",
        ):
            layer("%s(%s)" % (_class, _args), _ROW, training=_training)
for _class in ("Linear", "LinearRelu"):
    for _args in ("4, 5", "4, 5, False", "4, 5, True, 'default'"):
        layer("%s(%s)" % (_class, _args), _ROW)
layer("Linear(4, 5)", f(2, 3, 4), label=", three axes")
for _args in ("2, 3, 4", "2, 3, 4, False", "2, 3, 4, True, 'relu'"):
    layer("BatchMatMulActivation(%s)" % _args, f(2, 3, 4))
for _args in ("6", "(5, 6)", "6, 0.3", "6, affine=False"):
    layer("LayerNorm(%s)" % _args, _PICTURE)
for _class, _args in (("GroupNorm", "2, 4"), ("GroupNorm", "1, 4, 0.3"), ("GroupNorm", "4, 4, affine=False"), ("InstanceNorm", "4"),
                      ("InstanceNorm", "4, 0.3"), ("InstanceNorm", "4, affine=False"), ("GeneralNorm", "(5, 6), (2, 3)"),
                      ("GeneralNorm", "(4, 5), (1, 2), 0.3"), ("GeneralNorm", "(2,), 0, affine=False"), ("GeneralNorm", "4, 1")):  # fmt: skip
    layer("%s(%s)" % (_class, _args), _PICTURE)
for _args in ("5, 4", "5, 4, freeze=True"):
    layer("Embedding(%s)" % _args, i(2, 3))
layer("Embedding(5, 4, initial_weight=M.Linear(4, 5).weight)", i(2, 3))
for _args in ("3, 4", "3, 4, False"):
    layer("RNNCell(%s)" % _args, f(2, 3), f(2, 4), grad=False)
    layer(
        "LSTMCell(%s)" % _args,
        f(2, 3),
        f(2, 4),
        f(2, 4, seed=1),
        call=lambda layer, x, h, c: layer(x, (h, c)),
        grad=False,
    )
layer("RNNCell(3, 4, nonlinearity='relu')", f(2, 3), grad=False)
for _class in ("RNN", "LSTM"):
    for _args in (
        "3, 4",
        "3, 4, 2",
        "3, 4, bidirectional=True",
        "3, 4, bias=False",
        "3, 4, batch_first=True",
        "3, 4, 2, dropout=0.5",
    ):
        layer("%s(%s)" % (_class, _args), f(5, 2, 3), grad=False, training=False)
layer("RNN(3, 4, nonlinearity='relu')", f(5, 2, 3), grad=False)
layer("MultiHeadAttention(6, 2)", f(2, 3, 6), f(2, 4, 6), f(2, 4, 6, seed=1), grad=False, training=False)
layer("MultiHeadAttention(6, 2, bias=False)", f(2, 3, 6), f(2, 4, 6), f(2, 4, 6, seed=1), grad=False, training=False)
layer("MultiHeadAttention(6, 2, kdim=5, vdim=7)", f(2, 3, 6), f(2, 4, 5), f(2, 4, 7), grad=False, training=False)
layer("Sequential(M.Conv2d(4, 3, 3), M.ReLU(), M.BatchNorm2d(3))", _PICTURE)
layer("Conv2d(4, 6, 3, 1, (1, 0))", _PICTURE)
layer("ConvRelu2d(4, 6, 3, 1, 0, 2, 2, False)", _PICTURE)
layer("PixelShuffle(1)", _PICTURE)
layer("Dropout(0.0)", _PICTURE)
layer("ConvTranspose3d(4, 6, 2, bias=False)", f(1, 4, 2, 3, 2))
layer("RegionRestrictedConv(4, 6, 3, 2)", f(1, 4, 4, 4), _RIN, _RIN[:, 1:3, 1:3])
layer("RegionRestrictedConv(4, 6, 3, 2, stride=2)", f(1, 4, 4, 4), _RIN, _RIN[:, :1, :1])
layer("LocalConv2d(4, 6, 5, 6, 3, dilation=2)", _PICTURE)
layer("GeneralNorm(normalized_axis=(1, 2), affine=False)", _PICTURE)
layer("GeneralNorm((2,), affine=False)", _PICTURE)
layer("GeneralNorm((2,), 0, 0.3)", _PICTURE)
layer("GeneralNorm((2,), (0,), 0.3)", _PICTURE)
layer("SyncBatchNorm(4, freeze=True)", _PICTURE)
layer("MultiHeadAttention(6, 2, 0.3, 0.3)", f(2, 3, 6), f(2, 4, 6), f(2, 4, 6, seed=1), grad=False, training=False)
layer(
    "MultiHeadAttention(6, 2, add_bias_kv=True)", f(2, 3, 6), f(2, 4, 6), f(2, 4, 6, seed=1), grad=False, training=False
)
for _class in ("RNN", "LSTM"):
    layer(_class + "(3, 4, proj_size=2)", f(5, 2, 3), grad=False)
