"""What no result needs goes: from graphs of submodules, from the module, from its files and its state dict."""

import numpy as np
import pytest
from saved_content import content
from zoo import ZOO

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import models
from megengine.convert import onnx
from megengine.core.errors import GraphError
from megengine.tensor import tensor
from megengine.traced_module import EditLog, TracedModule, lower, trace_module
from megengine.traced_module.editing.edit_records import EditStep
from megengine.traced_module.editing.expressions import set_outputs
from megengine.traced_module.editing.extracting import extract
from megengine.traced_module.ir.queries import applied

X = tensor(np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32))
RESNET = trace_module(models.resnet18().eval(), X)
NEEDED = ("conv1", "bn1", "layer1")  # of the first stage


def first_stage(model: TracedModule) -> None:
    model.graph.reset_outputs(model.graph.node("layer1_out"))
    model.graph.compile()


def extracted(model: TracedModule) -> None:
    extract(model.graph, [], [model.graph.node("layer1_out")])


def replaced(model: TracedModule) -> None:
    """Everything behind the first stage gives way to a pooling."""
    graph = model.graph
    with graph.insert_exprs():
        made = graph.node("layer1_out").mean(axis=(2, 3))
        graph.replace_node({graph.outputs[0]: made})
    graph.compile()


def erased(model: TracedModule) -> None:
    graph = model.graph
    graph.reset_outputs(graph.node("layer1_out"))
    graph.compile()
    graph.compile()  # nothing is left to do


WAYS = [first_stage, extracted, replaced, erased]
FORMS = {"as traced": lambda m: m.clone(), "flattened": lambda m: m.flatten()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
def test_weights_that_nothing_uses_are_dropped_and_come_back(way, form, tmp_path):
    model = FORMS[form](RESNET)
    before, other = content(model), FORMS[form](RESNET)
    way(model)
    assert {name.split(".")[0] for name in model.state_dict()} == set(NEEDED)
    assert sum(p.size for p in model.parameters()) == 157_504
    model.graph.lint()
    want, after = model(X).numpy(), content(model)
    model.edit_log.save(tmp_path / "log")
    EditLog.load(tmp_path / "log").replay(other)
    assert content(other) == after
    for suffix in (".mgt", ".tm"):
        mge.save(model, tmp_path / f"net{suffix}")
        assert (tmp_path / f"net{suffix}").stat().st_size < 1_000_000
        np.testing.assert_array_equal(mge.load(tmp_path / f"net{suffix}")(X).numpy(), want)
    while model.graph.undo():
        pass
    assert content(model) == before
    while model.graph.redo():
        pass
    assert content(model) == after


class Inner(M.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.never, self.table = M.Linear(4, 4), M.Linear(4, 4), tensor(np.ones(4, np.float32))
        self.last = M.Linear(4, 4)

    def forward(self, x, twice=False):
        y = F.relu(self.fc(x))
        z = self.last(y * self.table)
        return z + z if twice else z


class Outer(M.Module):
    def __init__(self):
        super().__init__()
        self.first, self.other, self.aux = Inner(), Inner(), M.Linear(4, 4)
        self.again = self.first

    def forward(self, x):
        return self.first(x) + self.again(x, twice=True) + self.other(x)


SMALL = tensor(np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32))


def test_graphs_of_submodules_are_cleaned_too():
    model = trace_module(Outer().eval(), SMALL)
    before = content(model)
    inner = model.other.graph
    relu = inner.get_function_by_type(F.relu).as_unique().output
    with inner.insert_exprs():
        F.exp(relu) + 1  # nothing uses it
        inner.replace_node({inner.outputs[0]: relu * 2})
    model.graph.compile()
    assert not inner.get_calls_of(M.Linear)[1:] and not inner.get_function_by_type(F.exp).as_list()
    assert [n for n, _ in model.other.named_children()] == ["fc"]
    assert [n for n, _ in model.first.named_children()] == ["fc", "last"]
    assert "aux" not in vars(model) and "table" not in vars(model.other)
    model(SMALL)
    while model.graph.undo():
        pass
    assert content(model) == before


def test_graphs_of_a_flattened_module_that_nothing_calls_stay_while_they_have_all_they_read():
    model = trace_module(Outer().eval(), SMALL).flatten()
    model.graph.compile()
    assert len(model.first.graphs) == 2 and "aux" not in vars(model)
    want = model.first(SMALL, twice=True).numpy()
    graph, before = model.graph, content(model)
    fc = graph.get_node_by_name("first_relu*").as_list()[0]
    graph.reset_outputs(fc)
    graph.compile()
    assert list(model.state_dict()) == ["first.fc.bias", "first.fc.weight"]
    assert not model.first.graphs  # they read `last`, which is gone
    other = trace_module(Outer().eval(), SMALL).flatten()
    other.load_state_dict(trace_module(Outer().eval(), SMALL).state_dict())
    model.edit_log.replay(other)
    assert repr(other) == repr(model) and not other.first.graphs
    graph.undo()
    graph.undo()
    assert content(model) == before
    np.testing.assert_array_equal(model.first(SMALL, twice=True).numpy(), want)


def test_results_that_went_can_come_back_until_the_graph_is_compiled():
    """As in MegEngine, whose programs do so: `reset_outputs` says what is returned, `compile` drops the rest."""
    model = RESNET.clone()
    graph, last = model.graph, model.graph.outputs[0]
    graph.reset_outputs(graph.node("layer1_out"))
    graph.add_output_node(last)
    np.testing.assert_array_equal(model(X)[1].numpy(), RESNET(X).numpy())
    graph.reset_outputs(graph.node("layer1_out"))
    graph.compile()
    with pytest.raises(GraphError, match="fc_out.* does not belong to graph 'ResNet'; it was taken out of it"):
        graph.add_output_node(last)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_onnx_file_holds_the_weights_that_its_results_need(compiled, tmp_path):
    model = RESNET.clone()
    model.graph.reset_outputs(model.graph.node("layer1_out"))
    if compiled:
        model.graph.compile()
    onnx.export(model, tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").stat().st_size < 1_000_000
    np.testing.assert_allclose(onnx.load(tmp_path / "net.onnx")(X).numpy(), model(X).numpy(), rtol=1e-4, atol=1e-4)


def test_a_copy_of_a_graph_leaves_the_module_alone():
    model = trace_module(Outer().eval(), SMALL)
    before = content(model)
    copy = model.graph.clone()
    copy.reset_outputs(copy.nodes(recursive=False).as_list()[3])
    copy.compile()
    assert content(model) == before


def test_constants_of_ops_go_with_what_uses_them():
    ops = lower(trace_module(Outer().eval(), SMALL))
    graph = ops.graph
    held = len(list(ops.named_tensors()))
    set_outputs(graph, [applied(graph, "relu").as_list()[0].output])
    graph.compile()
    assert 0 < len(list(ops.named_tensors())) < held


@pytest.mark.filterwarnings("ignore::megengine.traced_module.tracing.specialization.SpecializationWarning")
@pytest.mark.parametrize("name", ZOO)
def test_nets_of_every_kind_compute_the_same_without_what_they_do_not_use(name):
    net, args = ZOO[name]()
    kwargs = args[-1] if name == "autoencoder" else {}
    args = args[: len(args) - bool(kwargs)]
    model = trace_module(net, *args, **kwargs)
    before = content(model)
    for made in (model.clone(), model.flatten()):
        start = content(made)
        made.graph.compile()
        made.graph.lint()
        wants, gots = (F.concat([t.reshape(-1) for t in _tensors(m(*args, **kwargs))]) for m in (model, made))
        np.testing.assert_array_equal(gots.numpy(), wants.numpy())
        made.graph.undo()
        assert content(made) == start
    assert content(model) == before


def _tensors(value):
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _tensors(v)]
    return [t for v in value.values() for t in _tensors(v)] if isinstance(value, dict) else [value.astype("float32")]


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"do": "drop", "path": "", "name": "aux", "was": "no.Such"}, "the attribute 'aux'"),
        ({"do": "drop", "path": "aux", "name": "weight", "was": ""}, "'aux' is a Linear; expected a traced module"),
        ({"do": "drop", "path": "", "name": "__class__", "was": ""}, "does not fit this model"),
        ({"do": "forget"}, "is the outermost graph, or is called"),
    ],
    ids=["another class", "in a layer", "a name of Python's", "a graph in use"],
)
def test_logs_that_drop_what_is_not_there_are_refused(edit, told):
    model = trace_module(Outer().eval(), SMALL)
    before = content(model)
    log = EditLog((EditStep("hostile", (0, 0), (0, 0), [{"graph": ["", 0], **edit}], [], [], {}),))
    with pytest.raises(GraphError, match=told):
        log.replay(model)
    assert content(model) == before
