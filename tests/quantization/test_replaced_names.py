"""Rules find layers by the names, ops and paths of the user's network, whatever they are rewritten into."""

import numpy as np
import pytest
from zoo import ZOO

import megengine.functional as F
import megengine.module as M
from megengine import random
from megengine.core.errors import OptionError
from megengine.quantization import QuantConfig, quantize_model, verify
from megengine.quantization.pipeline.annotate import annotate
from megengine.quantization.pipeline.canonicalize import canonicalize
from megengine.quantization.pipeline.preview import preview
from megengine.quantization.pipeline.selection import hits, layers_of
from megengine.tensor import Tensor
from megengine.traced_module import lower, trace_module
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.passes import drop_identities, fold_batch_norm, fold_constants
from megengine.traced_module.passes.fold_affine import fold_affine

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", sorted(ZOO))
def test_every_layer_of_a_network_is_found(name):
    net, args = ZOO[name]()
    named = args[-1] if isinstance(args[-1], dict) and name == "autoencoder" else {}
    graph = lower(trace_module(net, *args[: len(args) - bool(named)], **named)).graph
    layers = layers_of(canonicalize(graph))
    fold_constants(graph)
    drop_identities(graph)  # what gives what it gets is no layer
    names = {node.name for e in graph.exprs() if isinstance(e, Apply) for node in e.outputs}
    assert all(hits(name, layers, "exclude") for name in names)
    fold_batch_norm(graph)
    fold_affine(graph)  # what is folded into a layer is found by its name alone
    for expr in (e for e in graph.exprs() if isinstance(e, Apply)):
        path = str(expr.meta.get("module") or "")
        found = set(hits(expr.outputs[0].name, layers, "exclude"))
        assert found & set(hits(f"op:{expr.op}", layers, "exclude")), expr
        assert not path or found & set(hits(path, layers, "exclude")), expr


def test_what_is_folded_into_a_layer_takes_no_other_with_it():
    norms = M.Sequential(M.Conv2d(4, 4, 1), M.BatchNorm2d(4), M.Conv2d(4, 4, 1)).eval()
    model = trace_module(norms, Tensor(RNG.standard_normal(PICTURE).astype(np.float32)))
    layers = layers_of(canonicalize(lower(model).graph))
    assert hits("_1_batch_norm_out", layers, "exclude") == hits("0", layers, "exclude") == ["_0_conv2d_out"]
    for rule in ("1", "op:batch_norm", "*norm*"):
        with pytest.raises(OptionError, match="selects no layer"):
            hits(rule, layers, "exclude")


class Beside(M.Module):
    """A layer between two convolutions, which stay integers without it."""

    def __init__(self, layer, space=2):
        super().__init__()
        kind = M.Conv3d if space == 3 else M.Conv2d
        self.before, self.layer, self.after = kind(4, 4, 1), layer, kind(4, 4, 1)

    def forward(self, x):
        return self.after(self.layer(F.relu(self.before(x))))


class Computed(M.Module):
    def __init__(self):
        super().__init__()
        self.weights = M.Linear(4, 4 * 4 * 9)

    def forward(self, x):
        w = F.reshape(self.weights(F.mean(x, axis=(2, 3))), (4, 4, 3, 3))
        return F.conv2d(x, w, padding=1)


class Spelled(M.Module):
    def __init__(self, formula):
        super().__init__()
        self.formula = formula

    def forward(self, x):
        return self.formula(x)


def halves(x):
    a, b = F.split(x, 2, axis=1)
    return F.concat([b, a], axis=1)


VOLUME, PICTURE = (1, 4, 4, 5, 6), (1, 4, 6, 7)
CASES = {  # layer, shape of the input, what is excluded, a name that it has
    "volume": (M.Conv3d(4, 4, 3, padding=1), VOLUME, "layer_conv3d_out", "layer_conv3d_out"),
    "raised volume": (
        M.ConvTranspose3d(4, 4, 2, stride=2),
        VOLUME,
        "op:conv_transpose3d",
        "layer_conv_transpose3d_out",
    ),
    "computed kernel": (Computed(), PICTURE, "layer_conv2d_out", "layer_conv2d_out"),
    "batch norm": (M.BatchNorm2d(4), PICTURE, "layer_batch_norm_out", "layer_batch_norm_out"),
    "parts": (Spelled(halves), PICTURE, "op:split", "layer_split_out_1"),
    "gate": (Spelled(lambda x: x * F.sigmoid(x)), PICTURE, "op:sigmoid", "layer_sigmoid_out"),
    "hard gate": (Spelled(lambda x: x * (F.relu6(x + 3) / 6)), PICTURE, "op:relu6", "layer_relu6_out"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_excluded_by_its_own_name_computes_in_float(case):
    random.seed(0)
    layer, shape, rule, name = CASES[case]
    data = [RNG.standard_normal(shape).astype(np.float32) for _ in range(3)]
    model = trace_module(Beside(layer, len(shape) - 2).eval(), Tensor(data[0]))
    settings = QuantConfig(exclude=(rule,))
    annotation = annotate(canonicalize(lower(model).graph), settings)
    ((_, _, found),) = preview(model, settings).rules
    assert found and all(annotation.floating[name] == f"excluded by {rule!r}" for name in found)
    assert f"excluded by {rule!r}" in annotation.explain(name)
    quantized = quantize_model(model, data, settings)
    assert verify(quantized, data).exact


def test_names_that_nothing_has_are_refused():
    model = trace_module(Beside(M.Conv3d(4, 4, 3), 3), Tensor(RNG.standard_normal(VOLUME).astype(np.float32)))
    with pytest.raises(OptionError, match=r"'layer_conv3d_ou' selects no layer; nearest: layer_conv3d_out"):
        preview(model, QuantConfig(exclude=("layer_conv3d_ou",)))
