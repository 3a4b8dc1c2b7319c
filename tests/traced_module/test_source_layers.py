"""Layers in generated Python: made with their arguments, changed ones set, those that cannot be written refused."""

import json
from pathlib import Path

import pytest
import source_nets
from written_source import One, changed, check, formatted, x

import megengine as mge
import megengine.module as M
from megengine.core.errors import GraphError
from megengine.traced_module import register_as_builtin, trace_module, wrap
from megengine.traced_module.source import save_source, to_source
from megengine.traced_module.source.layers import Layers

LAYERS = json.loads((Path(__file__).parents[1] / "data" / "megengine" / "layers.json").read_text())


@pytest.mark.parametrize("call", [call for call in LAYERS if not call.startswith("Sequential")])
def test_a_layer_is_made_with_its_arguments(call):
    layer = eval(f"M.{call}", {"M": M})
    made = Layers().made(layer, "net.layer")
    assert made.fixes == []
    again = made.kind(**made.arguments)
    assert repr(again) == repr(layer)
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in layer.state_dict().items()}


def half(layer):
    for name in ("weight", "bias"):
        setattr(layer, name, mge.Parameter(getattr(layer, name).astype("float16")))
    return layer


CHANGED = {
    "half": (lambda: half(M.Linear(4, 3)), ['self.layer.weight = Parameter(F.zeros((3, 4), dtype="float16"))']),
    "padding": (lambda: changed(M.MaxPool2d(2), padding=(1, 0)), ["M.MaxPool2d(2, stride=2, padding=(1, 0))"]),
    "no bias": (lambda: changed(M.Linear(4, 3), bias=None), ["M.Linear(4, 3, bias=False)"]),
    "lrn": (lambda: M.LocalResponseNorm(3, k=1.5), ["M.LocalResponseNorm(kernel_size=3, k=1.5)"]),
    "norm": (lambda: M.BatchNorm2d(4, freeze=True, eps=1e-3), ["M.BatchNorm2d(4, eps=0.001, freeze=True)"]),
    "recurrent": (
        lambda: M.RNN(4, 5, nonlinearity="relu", bidirectional=True),
        ['M.RNN(4, 5, nonlinearity="relu", bidirectional=True)'],
    ),
    "pad": (lambda: M.Pad(((0, 0), (0, 0), (1, 2), (0, 1)), constant_val=2.0), ["constant_val=2.0"]),
    "no statistics": (
        lambda: changed(M.BatchNorm2d(4), affine=False, weight=None, bias=None, momentum=0.5),
        ["M.BatchNorm2d(4, momentum=0.5, affine=False)"],
    ),
    "mode": (lambda: M.AvgPool2d(2, mode="average"), ['M.AvgPool2d(2, stride=2, mode="average")']),
}
INPUTS = {"half": ((2, 4), "float16"), "recurrent": ((3, 2, 4), "float32"), "no bias": ((2, 4), "float32")}


@pytest.mark.parametrize("kind", CHANGED)
def test_layers_that_were_changed(kind, tmp_path):
    make, expected = CHANGED[kind]
    shape, dtype = INPUTS.get(kind, ((2, 4, 6, 6), "float32"))
    given = x(*shape).astype(dtype)
    module = trace_module(One(make()).eval(), given)
    net = check(module, tmp_path / "net.py", given)
    text = (tmp_path / "net.py").read_text()
    assert all(part in text for part in expected), text
    assert [v.dtype for v in net.parameters()] == [v.dtype for v in module.parameters()]
    formatted(tmp_path)


def test_functions_and_layers_of_the_users(tmp_path):
    given = x(3, 4)
    module = trace_module(source_nets.Containers().eval(), given)
    net = check(module, tmp_path / "net.py", given)
    text = (tmp_path / "net.py").read_text()
    assert "from source_nets import Gain, swish" in text
    assert "self.own = [Gain(4), Gain(4, power=2)]" in text
    assert "swish(own_2_out, beta=2.0)" in text
    assert 'setattr(self, "class", M.Linear(4, 4))' in text and 'getattr(self, "class")(' in text
    assert list(net.state_dict()) == list(module.state_dict())
    assert net(x(5, 4))[0].shape == (10, 2)  # the shape is read again
    formatted(tmp_path)


def test_a_layer_that_forgets_its_arguments_is_refused(tmp_path):
    module = trace_module(One(source_nets.Forgetful(4)), x(2, 4))
    with pytest.raises(GraphError, match=r"layer: a Forgetful .* given for 'channels'; keep it as an attribute"):
        save_source(module, tmp_path / "net.py")
    assert list(tmp_path.iterdir()) == []


def test_functions_that_cannot_be_imported_are_refused():
    @wrap
    def inner(x):
        return x * 2

    class Net(M.Module):
        def forward(self, x):
            return inner(x)

    module = trace_module(Net(), x(2))
    with pytest.raises(GraphError, match=r"<locals>\.inner cannot be imported .* top level") as caught:
        to_source(module)
    assert "Net" in caught.value.__notes__[0]

    @register_as_builtin
    class Layer(M.Module):
        def forward(self, x):
            return x

    with pytest.raises(GraphError, match=r"<locals>\.Layer cannot be imported"):
        to_source(trace_module(One(Layer()), x(2)))
