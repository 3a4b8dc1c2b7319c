"""Functions whose number of results depends on values, inserted into graphs: MegEngine takes them without values."""

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.convert.onnx import export
from megengine.core.sizes import is_open, name_of, names_of
from megengine.plan import compile as compile_plan
from megengine.tensor import DeferredValueError
from megengine.traced_module import diff, lower, trace_module
from megengine.traced_module.pictures import drawing, page
from tests.helpers.onnx_runtime import session_of

BOXES = np.array([[0, 0, 4, 4], [1, 1, 5, 5], [10, 10, 12, 12], [0, 0, 4.1, 4]], np.float32)


class Boxes(M.Module):
    def forward(self, x):
        return x * 2


class Rows(M.Module):
    """The rows that begin with a large number, through a layer."""

    def __init__(self):
        super().__init__()
        self.scale = M.Linear(4, 4)

    def forward(self, x):
        return self.scale(x[x[:, 0] > 1])


def twice(o, rows):
    first, second = (F.cond_take(o > bound, o)[0] for bound in (3, 1))
    return F.concat([first, second, first])


CALLS = {
    "cond_take": lambda o, rows: F.cond_take(o > 3, o)[0],
    "mask": lambda o, rows: o[o > 3] + 1,
    "mask of rows": lambda o, rows: o[o[:, 0] > 1].reshape(-1, 2),
    "reshape to a length": lambda o, rows: (lambda y: y.reshape(y.shape[0], 1) + 0)(o[o > 3]),
    "reshape to a shape": lambda o, rows: (lambda y: F.reshape(y, (1, y.size)).reshape(y.shape))(o[o > 3]),
    "reshape of rows": lambda o, rows: (lambda y: y.reshape(y.shape[0] * 2, y.shape[1] // 2, 1))(o[o[:, 0] > 1]),
    "broadcast": lambda o, rows: (lambda y: F.broadcast_to(y.reshape(-1, 1), (y.shape[0], 3)))(o[o > 3]),
    "slice": lambda o, rows: (lambda y: y[: y.shape[0] - 1] + y[1 : y.shape[0]])(o[o > 1]),
    "zeros": lambda o, rows: (lambda y: F.zeros((y.shape[0], 2)) + F.expand_dims(y, 1))(o[o > 3]),
    "ones like": lambda o, rows: (lambda y: F.ones_like(y) + F.full(y.shape, 2.5))(o[o > 3]),
    "arange": lambda o, rows: (lambda y: F.arange(1, y.shape[0] * 2, 2) * y)(o[o > 3]),
    "a constant": lambda o, rows: F.broadcast_to(mge.tensor([1.5]), (o[o > 3].shape[0],)),
    "eye": lambda o, rows: (lambda y: F.eye(y.shape[0], 3, dtype="int32"))(o[o > 3]),
    "nms": lambda o, rows: F.vision.nms(o, o[:, 3], 0.5),
    "kept boxes": lambda o, rows: o[F.vision.nms(o, o[:, 3], 0.5)] * 2,
    "twice": twice,
    "in a submodule": lambda o, rows: F.concat([rows(o), rows(o + 1)]),
}


def inserted(name, rows):
    traced = trace_module(Boxes(), mge.tensor(BOXES))
    graph = traced.graph
    with graph.insert_exprs():
        graph.inputs[0].rows = rows
        graph.reset_outputs(CALLS[name](graph.outputs[0], graph.inputs[0].rows))
    graph.compile()
    return traced


def specs(model):
    return [node.spec for node in model.graph.outputs]


def check(name, rows, *models):
    for values in (BOXES, BOXES[::-1].copy(), BOXES * 0.1):
        want = CALLS[name](mge.tensor(values * 2), rows)
        for run in models:
            got = run(mge.tensor(values))
            got = np.asarray(got[0] if isinstance(got, (list, tuple)) else got)
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_inserted_computes_as_outside_in_every_form(name, tmp_path):
    rows = Rows()
    traced = inserted(name, rows)
    mge.save(traced, tmp_path / "a.mgt")
    mge.save(traced, tmp_path / "a.tm")
    read, ops = mge.load(tmp_path / "a.mgt"), lower(traced)
    export(ops, tmp_path / "a.onnx")
    session = session_of(tmp_path / "a.onnx")
    models = [traced, traced.flatten(), traced.clone(), read, mge.load(tmp_path / "a.tm"), ops]
    for model in models:
        model.graph.lint()
    check(name, rows, *models, compile_plan(ops), lambda x: session.run(None, {"x": x.numpy()}))
    assert specs(read) == specs(traced)
    assert not diff(traced, read)
    assert "<svg" in drawing.to_svg(traced.graph)
    assert "<html" in page.to_html(traced)


@pytest.mark.parametrize("name", ["twice", "in a submodule"])
def test_edits_around_it_keep_the_names(name):
    rows = Rows()
    traced = inserted(name, rows)
    before, graph = specs(traced), traced.graph
    with graph.insert_exprs():
        graph.replace_node({graph.inputs[1]: graph.inputs[1] + 0})  # all is inferred again
    graph.lint()
    assert specs(traced) == before
    while graph.undo():
        graph.lint()
    while graph.redo():
        graph.lint()
    assert specs(traced) == before
    check(name, rows, traced)


def test_each_call_has_a_length_of_its_own():
    traced = inserted("twice", Rows())
    lengths = [name_of(n.shape[0]) for n in traced.graph.get_node_by_name("cond_take_out*").as_list()]
    assert lengths[0] == lengths[1] != lengths[2] == lengths[3]
    traced = inserted("in a submodule", Rows())
    for model in (traced, traced.flatten()):
        assert len(names_of(model.graph.outputs[0].shape)) == 2


def test_names_follow_from_the_edits_alone():
    assert specs(inserted("twice", Rows())) == specs(inserted("twice", Rows()))


def test_a_mask_of_known_values_has_a_known_length():
    graph = trace_module(Boxes(), mge.tensor(BOXES)).graph
    mask = mge.tensor(np.array([True, False, True, True]))
    with graph.insert_exprs():
        graph.reset_outputs(graph.outputs[0][mask])
    graph.lint()
    assert graph.outputs[0].shape[0] == 3
    assert not is_open(graph.outputs[0].shape)


class Reshapes(M.Module):
    def forward(self, x):
        y = x[x[:, 0] > 1]
        return y.reshape(y.shape[0], 2, 2).reshape(y.shape)


def test_reshapes_to_counted_lengths_are_lowered():
    low = lower(trace_module(Reshapes(), mge.tensor(BOXES)))
    for values in (BOXES, BOXES * 2, BOXES * 0):
        np.testing.assert_array_equal(low(mge.tensor(values)).numpy(), values[values[:, 0] > 1])


class Assigns(M.Module):
    def forward(self, x):
        y = x[x[:, 0] > 1] * 1
        half = y.shape[0] // 2
        y[half:, 1] = F.arange(y.shape[0] - half)
        y[:half] = 7
        return y


def test_assignments_to_counted_slices_are_lowered():
    model = trace_module(Assigns(), mge.tensor(BOXES))
    for values in (BOXES, BOXES * 2, BOXES * 0):
        want = values[values[:, 0] > 1]
        half = len(want) // 2
        want[half:, 1] = np.arange(len(want) - half)
        want[:half] = 7
        for run in (model, lower(model)):
            np.testing.assert_array_equal(run(mge.tensor(values)).numpy(), want)


@pytest.mark.parametrize(
    "call",
    [
        lambda y: F.linspace(0, 1, y.shape[0]),
        lambda y: F.split(y, y.shape[0]),
    ],
)
def test_what_needs_the_number_of_a_counted_length_is_refused(call):
    """No example of the length stands for it."""
    traced = trace_module(Boxes(), mge.tensor(BOXES))
    before = repr(traced)
    with pytest.raises(DeferredValueError, match="depends on values"), traced.graph.insert_exprs():
        call(traced.graph.outputs[0][traced.graph.outputs[0] > 3])
    assert repr(traced) == before
