"""Settings of layers that a traced module calls: what shapes depend on is an edit of the graph."""

import numpy as np
import pytest
from saved_content import content

import megengine.module as M
from megengine import models
from megengine.core.errors import GraphError, MegEngineError
from megengine.tensor import tensor
from megengine.traced_module import EditLog, register_as_builtin, trace_module
from megengine.traced_module.editing.edit_records import EditStep

X = tensor(np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32))
RESNET = trace_module(models.resnet18().eval(), X)


def test_a_stride_is_inferred_through_the_graph_undone_redone_and_replayed(tmp_path):
    model, before = RESNET.clone(), content(RESNET)
    model.conv1.stride = (1, 1)
    assert model.graph.node("conv1_out").shape == (1, 64, 64, 64)
    assert model.graph.node("layer1_out").shape == (1, 64, 32, 32)
    model.graph.lint()
    values = {}
    model.run([X], lambda node, value: values.update({node.name: value.shape}) if node.graph is model.graph else None)
    assert values["layer4_out"] == model.graph.node("layer4_out").shape == (1, 512, 4, 4)
    after = content(model)
    assert model.edit_log.to_text() == 'set_layer: stride of conv1 is {"tuple": [1, 1]}'
    assert RESNET.conv1.stride == (2, 2)
    model.edit_log.save(tmp_path / "log")
    other = RESNET.clone()
    EditLog.load(tmp_path / "log").replay(other)
    assert content(other) == after
    assert model.graph.undo() and content(model) == before and model.conv1.stride == (2, 2)
    assert model.graph.redo() and content(model) == after


def test_a_setting_that_makes_a_call_impossible_is_refused_with_what_to_do():
    model, before = RESNET.clone(), content(RESNET)
    layer = model.layer1
    conv = getattr(layer, "0").conv1
    with pytest.raises(MegEngineError, match=r"stride = \(2, 2\) of ResNet.layer1.0.conv1, a Conv2d .*transaction"):
        conv.stride = (2, 2)
    assert conv.stride == (1, 1) and content(model) == before and not model.graph.undo()


def test_settings_that_need_each_other_in_a_transaction():
    model, before = RESNET.clone(), content(RESNET)
    block = getattr(model.layer1, "0")
    with model.graph.transaction():
        block.conv1.stride = (2, 2)
        block.conv2.stride = (1, 1)
        graph = block.graph
        with graph.insert_exprs():
            graph.inputs[0].pool = M.MaxPool2d(2)
            graph.replace_node({graph.inputs[1]: graph.inputs[0].pool(graph.inputs[1])})
        block.conv1.stride = (1, 1)
    model.graph.lint()
    model(X)
    assert model.graph.undo() and content(model) == before


@register_as_builtin
class Counting(M.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.limit = 0, 3

    def forward(self, x):
        self.calls += 1
        count(self)
        return x[:, : self.limit]


def count(layer):
    layer.calls += 1


def test_what_a_layer_sets_itself_is_its_own_business():
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.part = Counting()

        def forward(self, x):
            return self.part(x) * 2

    net = Net()
    model = trace_module(net, tensor(np.ones((2, 5), np.float32)))
    for _ in range(2):
        model(tensor(np.ones((2, 5), np.float32)))
    assert model.part.calls >= 2 and not len(model.edit_log)
    model.part.limit = 2
    assert model.graph.outputs[0].shape == (2, 2)
    model.train().eval()
    assert len(model.edit_log) == 1


def test_a_layer_that_no_graph_has_any_more_is_free():
    net = models.resnet18().eval()
    trace_module(net, X)  # nobody keeps it
    conv = net.layer1[0].conv1 if hasattr(net.layer1, "__getitem__") else getattr(net.layer1, "0").conv1
    conv.stride = (2, 2)
    assert conv.stride == (2, 2)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"name": "stride", "was": 7}, "'stride' of 'conv1': found"),
        ({"name": "no_such"}, "'conv1' has no layer '' with a setting 'no_such'"),
        ({"node": "layer1"}, "'layer1' has no layer '' with a setting 'stride'"),
        ({"name": "__class__"}, "does not fit this model"),
        ({"value": {"layer": 0}}, "expected a plain value|does not fit this model"),
    ],
    ids=["another value", "no such setting", "no layer", "a name of Python's", "a layer"],
)
def test_logs_of_settings_that_do_not_fit_are_refused(edit, told):
    model, before = RESNET.clone(), content(RESNET)
    was = {"tuple": [2, 2]}
    good = {"do": "setting", "graph": ["", 0], "node": "conv1", "inner": "", "name": "stride", "was": was, "value": was}
    log = EditLog((EditStep("hostile", (0, 0), (0, 0), [{**good, **edit}], [], [], {}),))
    with pytest.raises(GraphError, match=told):
        log.replay(model)
    assert content(model) == before


@register_as_builtin
class Holder(M.Module):
    """A layer of the user's with layers in containers."""

    def __init__(self):
        super().__init__()
        self.row = M.Sequential(M.Sequential(M.Conv2d(3, 3, 3)), M.ReLU())
        self.some = [M.Conv2d(3, 3, 1)]
        self.named = {"a": M.Conv2d(3, 3, 1)}

    def forward(self, x):
        return self.named["a"](self.some[0](self.row(x)))


def strided():
    return M.Conv2d(3, 3, 3, stride=2)


def with_stride(layer):
    layer.stride = (2, 2)


INSIDE = {
    "a layer of a Sequential": lambda h: h.row.__setitem__(0, strided()),
    "a layer of a Sequential by its name": lambda h: setattr(h.row, "0", strided()),
    "a layer of a Sequential in a Sequential": lambda h: h.row[0].__setitem__(0, strided()),
    "a layer less in a Sequential": lambda h: h.row.__delitem__(0),
    "a Sequential": lambda h: setattr(h, "row", M.Sequential(strided())),
    "a list": lambda h: setattr(h, "some", [strided()]),
    "a dict": lambda h: setattr(h, "named", {"a": strided()}),
    "a setting in a Sequential": lambda h: with_stride(h.row[0][0]),
    "a setting in a list": lambda h: with_stride(h.some[0]),
    "a setting in a dict": lambda h: with_stride(h.named["a"]),
}


@pytest.mark.parametrize("change", INSIDE.values(), ids=INSIDE)
def test_layers_inside_of_a_layer_change_by_an_edit(change, tmp_path):
    traced = trace_module(M.Sequential(Holder(), M.ReLU()), X)
    before, specs = content(traced), [n.shape for n in traced.graph.outputs]
    change(getattr(traced, "0"))
    after = content(traced)
    assert [n.shape for n in traced.graph.outputs] == [traced(X).shape] != specs
    assert traced.graph.undo() and content(traced) == before and traced(X).shape == specs[0]
    assert traced.graph.redo() and content(traced) == after


def test_a_layer_inside_of_a_layer_that_does_not_fit_is_refused():
    traced = trace_module(M.Sequential(Holder(), M.ReLU()), X)
    before = content(traced)
    with pytest.raises(MegEngineError, match="0 = Conv2d of Sequential.0, a Sequential that a traced module calls"):
        getattr(traced, "0").row[0] = M.Conv2d(4, 3, 3)
    assert content(traced) == before
