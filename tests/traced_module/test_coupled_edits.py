"""Edits that need each other: in a transaction shapes may be wrong in between, and are checked at its end."""

import numpy as np
import pytest
from saved_content import content

import megengine.functional as F
import megengine.module as M
from megengine import models
from megengine.core.errors import GraphError, MegEngineError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.tensor import tensor
from megengine.traced_module import EditLog, TracedModule, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.editing.rewiring import set_attrs, set_inputs
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.queries import child_graphs

X = tensor(np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32))
RESNET = trace_module(models.resnet18().eval(), X)
MOBILE = trace_module(models.mobilenet_v2().eval(), X)


def layer(graph: InternalGraph, kind: type, index: int, recursive: bool = False):
    return graph.get_calls_of(kind, recursive=recursive).as_list()[index].inputs[0]


def drop_stage(model: TracedModule) -> None:
    """The last stage goes, and the head takes what is left of the channels."""
    graph = model.graph
    graph.replace_node({graph.node("layer4_out"): graph.node("layer3_out")})
    graph.replace_module(layer(graph, M.Linear, 0), M.Linear(256, 10))


def drop_stage_new_head(model: TracedModule) -> None:
    """The same, with a new layer beside the old one, which nothing uses any more and which is impossible."""
    graph = model.graph
    graph.replace_node({graph.node("layer4_out"): graph.node("layer3_out")})
    old = graph.outputs[0]
    with graph.insert_exprs():
        graph.inputs[0].head = M.Linear(256, 10)
        graph.replace_node({old: graph.inputs[0].head(old.expr.inputs[1])})


def other_width(model: TracedModule) -> None:
    """Two convolutions and the batch norm between them, inside of a block."""
    block = child_graphs(child_graphs(model.graph)[0])[0]
    convs, norms = block.get_calls_of(M.Conv2d).as_list(), block.get_calls_of(M.BatchNorm2d).as_list()
    block.replace_module(convs[0].inputs[0], M.Conv2d(64, 24, 3, padding=1, bias=False))
    block.replace_module(convs[1].inputs[0], M.Conv2d(24, 64, 3, padding=1, bias=False))
    block.replace_module(norms[0].inputs[0], M.BatchNorm2d(24).eval())


def other_width_backwards(model: TracedModule) -> None:
    """The consumer first."""
    graph = model.graph
    graph.replace_module(layer(graph, M.Linear, 0), M.Linear(2048, 7))
    with graph.insert_exprs():
        graph.inputs[0].wide = M.Conv2d(512, 2048, 1)
        graph.replace_node({graph.node("layer4_out"): graph.inputs[0].wide(graph.node("layer4_out"))})


EDITS = [drop_stage, drop_stage_new_head, other_width, other_width_backwards]


@pytest.mark.parametrize("edit", EDITS, ids=lambda e: e.__name__)
def test_what_is_repaired_within_a_transaction_is_accepted_undone_redone_and_replayed(edit, tmp_path):
    model, before = RESNET.clone(), content(RESNET)
    with model.graph.transaction("coupled"):
        edit(model)
    model.graph.lint()
    model(X)
    after = content(model)
    assert len(model.edit_log) == 1
    assert model.graph.undo() and content(model) == before
    assert model.graph.redo() and content(model) == after
    model.edit_log.save(tmp_path / "log")
    other = RESNET.clone()
    EditLog.load(tmp_path / "log").replay(other)
    assert content(other) == after


@pytest.mark.parametrize("edit", [drop_stage, other_width, other_width_backwards], ids=lambda e: e.__name__)
def test_the_same_edits_one_by_one_are_refused(edit):
    model = RESNET.clone()
    with pytest.raises(MegEngineError):
        edit(model)


def test_the_first_edit_that_is_not_repaired_is_named_and_all_are_taken_back():
    model, before = RESNET.clone(), content(RESNET)
    graph = model.graph

    def coupled():
        with graph.transaction():
            graph.rename(graph.outputs[0], "scores")
            graph.replace_module(layer(graph, M.Conv2d, 0), M.Conv2d(3, 32, 7, stride=2, padding=3))  # repaired
            graph.replace_node({graph.node("layer4_out"): graph.node("layer3_out")})  # not repaired
            graph.replace_module(layer(graph, M.BatchNorm2d, 0), M.BatchNorm2d(32).eval())
            set_inputs(graph.outputs[0].expr, [graph.outputs[0].expr.inputs[0], graph.node("maxpool_out")])
            with graph.insert_exprs():
                graph.inputs[0].wider = M.Conv2d(32, 64, 1)
                graph.replace_node({graph.node("maxpool_out"): graph.inputs[0].wider(graph.node("maxpool_out"))})

    with pytest.raises(
        ShapeError, match=r"edit 3 of 6 in this transaction, replace_node \(.*layer3_out.*\), makes 'scores' of ResNet"
    ):
        coupled()
    assert content(model) == before
    assert not graph.undo()


def test_a_body_that_builds_on_what_is_not_repaired_is_told_so():
    model, before = RESNET.clone(), content(RESNET)
    graph = model.graph

    def build():
        with graph.transaction():
            graph.replace_module(layer(graph, M.Conv2d, 0), M.Conv2d(3, 32, 7, stride=2, padding=3))
            with graph.insert_exprs():
                graph.inputs[0].more = M.Conv2d(32, 8, 1)
                graph.inputs[0].more(graph.node("relu_out"))

    with pytest.raises(MegEngineError) as told:
        build()
    assert any("edit 1 of 2" in note and "bn1_out" in note for note in told.value.__notes__)
    assert content(model) == before


def test_an_edit_that_is_refused_inside_of_a_transaction_leaves_nothing_of_itself():
    model = RESNET.clone()
    graph = model.graph
    with graph.transaction():
        graph.rename(graph.outputs[0], "scores")
        expected = content(model)
        with pytest.raises(ZeroDivisionError), graph.insert_exprs():
            graph.replace_node({graph.outputs[0]: F.relu(graph.outputs[0])})
            raise ZeroDivisionError
        with pytest.raises(GraphError, match="reset_inputs: expected tensors"):
            graph.reset_inputs(X, "no tensor")
        assert content(model) == expected
    assert [step.to_text() for step in model.edit_log.steps] == ["transaction: fc_out is now called scores"]
    log = model.edit_log
    other = RESNET.clone()
    log.replay(other)
    assert content(other) == content(model)


def test_edits_of_ops_that_keep_shapes_may_change_them_together():
    graph = InternalGraph("ops")
    graph.keep_edits()
    x = add_input(graph, "x", TensorSpec((2, 6), np.dtype(np.float32)))
    wide = graph.apply("broadcast_to", x, attrs={"shape": (3, 2, 6)}, name="wide")
    flat = graph.apply("reshape", wide, attrs={"shape": (6, 6)}, name="flat")
    set_outputs(graph, [flat])
    with pytest.raises(ShapeError, match="changes its results"):
        set_attrs(graph, wide.expr, {"shape": (4, 2, 6)})
    with graph.transaction():
        set_attrs(graph, wide.expr, {"shape": (4, 2, 6)})
        set_attrs(graph, flat.expr, {"shape": (8, 6)})
    graph.lint()
    assert flat.shape == (8, 6)
    assert graph.undo() and flat.shape == (6, 6)
    with pytest.raises(ShapeError, match="edit 1 of 1 in this transaction, set_attrs"), graph.transaction():
        set_attrs(graph, wide.expr, {"shape": (4, 2, 6)})
    assert wide.shape == (3, 2, 6)


def test_many_widths_at_once_of_a_mobilenet():
    """Each inverted residual gets other inner widths: convolution, depthwise convolution, projection and norms."""
    model = MOBILE.flatten()
    graph, before = model.graph, content(model)
    with graph.transaction():
        for read in graph.get_module_by_type(M.Conv2d).as_list():
            old, (call,) = read.owner, read.users
            if old.groups > 1 and old.in_channels >= 96:
                below = call.inputs[1].expr
                while below.kind != "CallMethod" or not isinstance(below.inputs[0].owner, M.Conv2d):
                    below = below.inputs[-1].expr
                n = old.in_channels + 8
                wide = M.Conv2d(below.inputs[0].owner.in_channels, n, 1, bias=False)
                graph.replace_module(below.inputs[0], wide)
                deep = M.Conv2d(n, n, 3, stride=old.stride, padding=old.padding, groups=n, bias=False)
                graph.replace_module(read, deep)
        for read in graph.get_module_by_type(M.BatchNorm2d).as_list():
            n = read.users[0].inputs[1].shape[1]
            if n != read.owner.num_features:
                graph.replace_module(read, M.BatchNorm2d(n).eval())
        for read in graph.get_module_by_type(M.Conv2d).as_list():
            n, old = read.users[0].inputs[1].shape[1], read.owner
            if old.groups == 1 and n != old.in_channels:
                graph.replace_module(read, M.Conv2d(n, old.out_channels, 1, bias=False))
    graph.lint()
    model(X)
    assert graph.undo() and content(model) == before
