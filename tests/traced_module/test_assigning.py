"""Assignments to traced modules and to their layers are edits: inferred, refused, undone, logged and replayed."""

import numpy as np
import pytest
from saved_content import content

import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, MegEngineError, ShapeError
from megengine.quantization import ema_fakequant_qconfig, quantize, quantize_qat
from megengine.tensor import Parameter, tensor
from megengine.traced_module import EditLog, trace_module

X = tensor(np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32))


def weight(*shape):
    return Parameter(np.full(shape, 0.5, np.float32))


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.body = M.Sequential(M.ConvBn2d(3, 4, 3), M.ReLU())
        self.scale = weight(4)
        self.fc = M.Linear(4, 6)

    def forward(self, x):
        return self.fc(F.mean(self.body(x), (2, 3)) * self.scale)


TRACED = trace_module(Net().eval(), X)


@pytest.fixture
def model():
    return TRACED.clone()


def layer_tensors(model, count):
    model.fc.weight, model.fc.bias = weight(count, 4), weight(count)


EDITS = {
    "a layer": (lambda m: setattr(m, "fc", M.Linear(4, 2)), (2, 2)),
    "a module that is no layer": (lambda m: setattr(m, "fc", M.Sequential(M.Linear(4, 9), M.Linear(9, 5))), (2, 5)),
    "a layer of a submodule": (lambda m: setattr(m.body, "0", M.Conv2d(3, 4, 1)), (2, 6)),
    "a submodule": (lambda m: setattr(m, "body", M.Conv2d(3, 4, 5)), (2, 6)),
    "a tensor": (lambda m: setattr(m, "scale", weight(1, 4)), (2, 6)),
    "a layer inside a layer": (lambda m: setattr(m.body.graph.node("_0").owner, "conv", M.Conv2d(3, 4, 1)), (2, 6)),
    "a tensor of a layer": (lambda m: setattr(m.fc, "bias", weight(1, 6)), (2, 6)),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_assignment_is_inferred_undone_redone_and_replayed(edit, model, tmp_path):
    assign, shape = EDITS[edit]
    before = content(model)
    assign(model)
    after = content(model)
    assert before != after and model.graph.outputs[0].shape == shape == model(X).shape
    model.graph.lint()
    model.edit_log.save(tmp_path / "log")
    other = TRACED.clone()
    EditLog.load(tmp_path / "log").replay(other)
    assert content(other) == after
    assert model.graph.undo() and content(model) == before
    assert model.graph.redo() and content(model) == after


REFUSED = {
    "a layer that does not fit": (
        lambda m: setattr(m, "fc", M.Linear(5, 2)),
        "fc = Linear of Net: linear.*transaction",
    ),
    "nothing": (lambda m: setattr(m, "fc", None), "fc = NoneType: graph 'Net' reads a Module there"),
    "a tensor for a layer": (lambda m: setattr(m, "fc", weight(4)), "fc = Parameter: graph 'Net' reads a Module there"),
    "a layer for a tensor": (lambda m: setattr(m, "scale", M.ReLU()), "scale = ReLU: graph 'Net' reads a Tensor there"),
    "a tensor that does not fit": (lambda m: setattr(m, "scale", weight(3)), "scale = Parameter of Net.*broadcast"),
    "a weight that does not fit": (lambda m: setattr(m.fc, "weight", weight(6, 7)), r"weight = Parameter of Net\.fc"),
    "taking a layer away": (lambda m: delattr(m, "fc"), "del fc: Net.fc is read by graph 'Net' and used by fc_out"),
}


@pytest.mark.parametrize("edit", REFUSED)
def test_an_impossible_assignment_is_refused_and_changes_nothing(edit, model):
    assign, message = REFUSED[edit]
    before = content(model)
    with pytest.raises(MegEngineError, match=message):
        assign(model)
    assert content(model) == before and not model.graph.undo()


def test_what_is_read_inside_a_container_keeps_it():
    class Listed(M.Module):
        def __init__(self):
            super().__init__()
            self.layers = [M.ReLU(), M.Sigmoid()]

        def forward(self, x):
            return self.layers[1](self.layers[0](x))

    model = trace_module(Listed(), X)
    with pytest.raises(GraphError, match=r"'layers' holds 'layers\.\d', which graph 'Listed' reads"):
        model.layers = M.ReLU()


def test_tensors_of_a_layer_that_need_each_other_in_a_transaction(model):
    with pytest.raises(ShapeError, match="nothing was changed"):
        layer_tensors(model, 3)
    with model.graph.transaction():
        layer_tensors(model, 3)
    assert model.graph.outputs[0].shape == (2, 3) == model(X).shape


def test_weights_of_the_same_shape_and_what_no_graph_reads_are_no_edits(model):
    model.fc.weight, model.scale, model.more = weight(6, 4), weight(4), M.ReLU()
    model.more = M.Linear(3, 4)
    del model.more
    assert not model.graph.undo() and not hasattr(model, "more")


@pytest.mark.parametrize("change", [quantize_qat, quantize], ids=["quantize_qat", "quantize"])
def test_converting_a_traced_module_is_one_edit(change):
    class Small(M.Module):
        def __init__(self):
            super().__init__()
            self.quant, self.dequant = M.QuantStub(), M.DequantStub()
            self.conv, self.add = M.ConvRelu2d(3, 3, 1), M.Elemwise("FUSE_ADD_RELU")

        def forward(self, x):
            x = self.quant(x)
            return self.dequant(self.add(x, self.conv(x)))

    net = Small()
    if change is quantize:
        net = quantize_qat(net, qconfig=ema_fakequant_qconfig)
        net(X)
    traced = trace_module(net.eval(), X).clone()
    before = content(traced)
    changed = change(traced)
    changed(X)
    changed.graph.lint()
    assert changed.graph.undo() and content(traced) == before and not changed.graph.undo()


def test_a_layer_whose_weight_is_read_is_assigned_to():
    class Tied(M.Module):
        def __init__(self):
            super().__init__()
            self.fc = M.Linear(3, 3)

        def forward(self, x):
            return F.matmul(self.fc(x), self.fc.weight)

    traced = trace_module(Tied(), tensor(np.ones((2, 3), np.float32)))
    x = tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    with pytest.raises(GraphError, match=r"'fc.weight' is read by .*, and the new one has float32\[4, 3\] there"):
        traced.fc = M.Linear(3, 4)
    traced.fc = new = M.Linear(3, 3, bias=False)
    np.testing.assert_allclose(traced(x).numpy(), x.numpy() @ new.weight.numpy().T @ new.weight.numpy(), rtol=1e-5)
    traced.graph.lint()
