"""Logs of edits: what is replayed is what was done, on copies of the model only, and reading a log runs nothing."""

import json
import zipfile

import numpy as np
import pytest
from block_nets import BlockNet
from hypothesis import given, settings
from hypothesis import strategies as st
from megengine_graphs import listing

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import FileFormatError, GraphError, MegEngineError, MissingFileError
from megengine.core.spec import TensorSpec
from megengine.models import resnet18
from megengine.tensor import tensor
from megengine.traced_module import EditLog, TracedModule, diff, lower, optimize, trace_module
from megengine.traced_module.editing.edit_log import LOG
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.editing.rewiring import set_attrs, set_input
from megengine.traced_module.formats import native as files
from megengine.traced_module.ir.queries import child_graphs
from megengine.traced_module.passes import PassManager, run_passes


class Net(BlockNet):
    def __init__(self):
        super().__init__()
        self.drop = M.Dropout(0.5)

    def end(self, x):
        return self.fc(self.drop(x.reshape(x.shape[0], -1)))


X = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
ORIGINAL = trace_module(Net().eval(), tensor(X))


# ---------------------------------------------------------------- edits: each on a fresh copy


def insert(m: TracedModule) -> None:
    graph = m.graph
    with graph.insert_exprs():
        node = graph.node("mul_out")
        graph.replace_node({node: F.concat([F.relu(node), node * 0.5], axis=1)[:, :4]})


def several_results(m: TracedModule) -> None:
    graph = m.graph
    with graph.insert_exprs():
        a, b = F.split(graph.node("mul_out"), 2, axis=1)
        graph.replace_node({graph.node("mul_out"): F.concat([b, a], axis=1)})


def insert_inside(m: TracedModule) -> None:
    graph = child_graphs(m.graph)[1]
    relu = graph.get_function_by_type(F.relu, recursive=False).as_unique()
    with graph.insert_exprs():
        graph.replace_node({relu.output: F.sigmoid(relu.output)})
    graph.erase(relu) if not relu.output.users else None


def new_layers(m: TracedModule) -> None:
    graph = m.graph
    with graph.insert_exprs():
        graph.inputs[0].extra = M.Linear(5, 3)
        graph.inputs[0].offset = tensor(np.arange(3, dtype=np.float32))
        graph.replace_node({graph.outputs[0]: graph.inputs[0].extra(graph.outputs[0]) + graph.inputs[0].offset})


def rename(m: TracedModule) -> None:
    m.graph.rename(m.graph.outputs[0], "prediction")
    m.graph.rename(m.graph.node("mul_out"), "scaled")


def other_arguments(m: TracedModule) -> None:
    mul = m.graph.get_method_by_type("__mul__", recursive=False).as_list()[0]
    mul.set_arg("value", 3.0)
    mul.set_args_kwargs(mul.args[0], 4.0)


def other_operands(m: TracedModule) -> None:
    graph = m.graph
    add = child_graphs(graph)[0].get_method_by_type("__add__", recursive=False).as_unique()
    add.replace_inputs({add.inputs[1]: add.inputs[0]})


def other_layer(m: TracedModule) -> None:
    node = m.graph.get_calls_of(M.Linear).as_list()[0].inputs[0]
    m.graph.replace_module(node, M.Linear(4, 7))


class Head(M.Module):
    def __init__(self):
        super().__init__()
        self.block, self.fc = M.Sequential(M.Linear(5, 5), M.ReLU()), M.Linear(5, 5)

    def forward(self, x):
        return self.fc(self.block(x)) * 0.5


def traced_part(m: TracedModule) -> None:
    """A traced module becomes a part of the model, is called twice, edited there, and replaced by another one."""
    graph = m.graph
    head = trace_module(Head(), tensor(np.zeros((2, 5), np.float32)))
    with graph.insert_exprs():
        graph.inputs[0].head = head
        once = graph.inputs[0].head(graph.outputs[0])
        graph.replace_node({graph.outputs[0]: graph.inputs[0].head(once)})
    inner = child_graphs(graph)[-1]
    mul = inner.get_method_by_type("__mul__", recursive=False).as_unique()
    mul.set_arg("value", 0.25)
    deep = child_graphs(inner)[0]
    with deep.insert_exprs():
        deep.replace_node({deep.outputs[0]: F.exp(deep.outputs[0])})
    node = graph.get_node_by_name("head").as_unique()
    graph.replace_module(node, head)  # as it was before these edits
    inner = child_graphs(graph)[-1]
    inner.rename(inner.outputs[0], "half")


def erase(m: TracedModule) -> None:
    graph = m.graph
    drop = graph.get_calls_of(M.Dropout).as_unique()
    graph.replace_node({drop.output: drop.inputs[1]})
    graph.erase(drop)
    graph.compile()


def inputs_and_outputs(m: TracedModule) -> None:
    graph = m.graph
    node = graph.add_input_node((2, 5), name="bias")
    with graph.insert_exprs():
        graph.replace_node({graph.outputs[0]: graph.outputs[0] + node})
    graph.add_output_node(graph.node("mul_out"))
    graph.reset_outputs({"a": graph.outputs[0], "b": [graph.outputs[1]]})


def new_inputs(m: TracedModule) -> None:
    graph = m.graph
    graph.inputs[0].start = tensor(np.zeros_like(X))
    with graph.insert_exprs():  # the old input is used no more
        zero = graph.inputs[0].start
        graph.replace_node({graph.inputs[1]: zero * 1.0})
    (new,) = graph.reset_inputs(tensor(X))
    graph.replace_node({graph.get_node_by_name("start").as_list()[0]: new})


def passes(m: TracedModule) -> None:
    for graph in m.graphs:
        run_passes(graph, [p for p in all_passes() if p.name != "FuseAddMul"])


def all_passes():
    from megengine.traced_module.passes import get_registered_pass

    return [get_registered_pass(n) for n in ("FuseConvBn", "DropIdentities", "EliminateCommon", "FuseAddMul")]


def in_one_step(m: TracedModule) -> None:
    with m.graph.transaction("mine"):
        insert(m)
        rename(m)


EDITS = (
    *(insert, insert_inside, new_layers, rename, other_arguments, other_operands, other_layer, erase),
    *(inputs_and_outputs, new_inputs, passes, in_one_step, traced_part, several_results),
)


def state(m: TracedModule, folder) -> tuple:
    """Printout, ids, and the bytes of both kinds of files."""
    mge.save(m, folder / "net.tm")
    files.save(m, folder / "net.mgt")
    return listing(m), (folder / "net.tm").read_bytes(), (folder / "net.mgt").read_bytes()


def results(m: TracedModule) -> list[np.ndarray]:
    given = [tensor(np.resize(X, n.shape)) for n in m.graph.inputs if hasattr(n, "spec")]
    return [t.numpy() for t in m.graph.interpret(*given)]


def assert_same(a: TracedModule, b: TracedModule, folder) -> None:
    assert state(a, folder) == state(b, folder)
    assert not diff(a, b)
    for x, y in zip(results(a), results(b), strict=True):
        assert np.array_equal(x, y)


def saved(log: EditLog, folder) -> EditLog:
    log.save(folder / "edits.log")
    return EditLog.load(folder / "edits.log")


@pytest.mark.parametrize("edit", EDITS, ids=lambda e: e.__name__)
def test_a_replayed_edit_is_the_edit(edit, tmp_path):
    a, b, untouched = ORIGINAL.clone(), ORIGINAL.clone(), ORIGINAL.clone()
    edit(a)
    log = a.edit_log
    assert len(log) and log.to_text()
    saved(log, tmp_path).replay(b)
    assert_same(a, b, tmp_path)
    assert [s.what for s in b.edit_log.steps] == [s.what for s in log.steps]
    again = ORIGINAL.clone()
    b.edit_log.replay(again)  # the log of a replay is the log
    assert_same(a, again, tmp_path)
    while b.graph.undo():
        pass
    assert_same(b, untouched, tmp_path)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([*EDITS[:5], "undo", "redo"]), max_size=8))
def test_undone_edits_are_gone_and_redone_ones_back(tmp_path_factory, actions):
    folder = tmp_path_factory.mktemp("log")
    a, b = ORIGINAL.clone(), ORIGINAL.clone()
    for action in actions:
        if action == "undo":
            a.graph.undo()
        elif action == "redo":
            a.graph.redo()
        else:
            try:
                action(a)
            except MegEngineError:  # the name is taken, the call is gone: refused, as always
                continue
    log = a.edit_log
    assert len(log) == len(a.graph._journal.done)
    saved(log, folder).replay(b)
    assert_same(a, b, folder)


def test_a_session_with_undo_in_words():
    m = ORIGINAL.clone()
    rename(m)
    assert m.edit_log.to_text().splitlines() == [
        "rename: fc_out is now called prediction",
        "rename: mul_out is now called scaled",
    ]
    m.graph.undo()
    assert m.edit_log.to_text() == "rename: fc_out is now called prediction"
    m.graph.redo()
    assert len(m.edit_log) == len(m.graph.edit_log) == 2
    passes(m)
    assert [s.what for s in m.edit_log.steps][2:4] == ["FuseConvBn", "DropIdentities"]


def test_passes_of_optimize_are_in_its_log(tmp_path):
    made = optimize(ORIGINAL, "all")
    other = ORIGINAL.clone()
    saved(made.edit_log, tmp_path).replay(other)
    assert_same(made, other, tmp_path)


def test_graphs_of_ops_keep_edits_when_told(tmp_path):
    a, b = lower(ORIGINAL), lower(ORIGINAL)
    a.graph.rename(a.graph.outputs[0], "y")
    assert len(a.edit_log) == 0  # as what passes replace would stay in memory
    a = lower(ORIGINAL)
    a.graph.keep_edits()
    run_passes(a.graph)
    y = a.graph.outputs[0]
    set_outputs(a.graph, [a.graph.apply("softmax", y, attrs={"axis": 1}, name="p"), y])
    set_attrs(a.graph, a.graph.node("p").expr, {"axis": 0})
    set_input(a.graph, a.graph.node("p").expr, 0, a.graph.constant(np.zeros(y.shape, np.float32), before=y.expr))
    add_input(a.graph, "unused", TensorSpec((1,), np.dtype(np.float32)))
    saved(a.edit_log, tmp_path).replay(b)
    for m in (a, b):
        files.save(m, tmp_path / f"{m is a}.mgt")
    assert repr(a) == repr(b) and (tmp_path / "True.mgt").read_bytes() == (tmp_path / "False.mgt").read_bytes()
    assert not b.graph._journal.recording


# ---------------------------------------------------------------- what does not fit


class Other(Net):
    def forward(self, x):
        return self.fc(F.avg_pool2d(self.stem(x), 6).reshape(2, -1))


@pytest.mark.parametrize("edit", EDITS, ids=lambda e: e.__name__)
def test_another_model_is_left_as_it_was(edit, tmp_path):
    m = ORIGINAL.clone()
    rename_output = m.graph.outputs[0].name
    edit(m)
    other = trace_module(Other().eval(), tensor(X))
    other.graph.rename(other.graph.outputs[0], "something")
    other.graph.undo()
    before = state(other, tmp_path)
    try:
        saved(m.edit_log, tmp_path).replay(other)
    except GraphError as error:
        assert "replay: edit " in str(error) and "does not fit this model" in str(error)
        assert state(other, tmp_path) == before and len(other.edit_log) == 0
        assert other.graph.redo() and other.graph.outputs[0].name == "something" != rename_output
    else:  # it touched nothing that differs
        assert edit in (new_layers, other_layer, new_inputs, traced_part)


def test_the_step_that_does_not_fit_is_named():
    m = ORIGINAL.clone()
    rename(m)
    other = ORIGINAL.clone()
    other.graph.rename(other.graph.node("mul_out"), "product")
    with pytest.raises(GraphError, match=r"edit 2 of 2 \(rename\) does not fit this model: .*no node 'mul_out'"):
        m.edit_log.replay(other)
    assert other.graph.outputs[0].name == "fc_out" and len(other.edit_log) == 1
    m = ORIGINAL.clone()
    other_arguments(m)
    other = ORIGINAL.clone()
    other.graph.get_method_by_type("__mul__", recursive=False).as_unique().set_arg("value", 5.0)
    with pytest.raises(GraphError, match=r"found .*__mul__\(5.0, .*expected .*__mul__\(2.0, "):
        m.edit_log.replay(other)
    with pytest.raises(GraphError, match="expected a TracedModule or an InternalGraph, got Net"):
        m.edit_log.replay(Net())
    with pytest.raises(GraphError, match="give the outermost one"):
        m.edit_log.replay(child_graphs(other.graph)[0])
    with pytest.raises(GraphError, match="a transaction is open"), other.graph.transaction():
        m.edit_log.replay(other)


def test_what_a_log_cannot_hold_is_named(tmp_path):
    m = ORIGINAL.clone()
    inner = trace_module(M.Sequential(M.Linear(5, 5)).eval(), tensor(np.zeros((2, 5), np.float32)))
    object.__setattr__(inner, "thing", object())
    rename(m)
    m.graph.inputs[0].inner = inner
    with pytest.raises(FileFormatError, match=r"edit 3 of 3 \(set_attribute\) cannot be kept in a log: thing is a obj"):
        m.edit_log.save(tmp_path / "edits.log")
    assert not list(tmp_path.iterdir())
    other = ORIGINAL.clone()
    with pytest.raises(MegEngineError, match="cannot be kept in a log"):
        m.edit_log.replay(other)
    assert not diff(other, ORIGINAL)


def test_an_attached_part_is_a_copy_with_names_and_ids_of_the_model(tmp_path):
    m, head = ORIGINAL.clone(), trace_module(Head(), tensor(np.zeros((2, 5), np.float32)))
    before = repr(head)
    want = head.fc(F.exp(head.block(m(tensor(X))))) * 0.5
    with m.graph.insert_exprs():
        m.graph.inputs[0].head = head
        m.graph.replace_node({m.graph.outputs[0]: m.graph.inputs[0].head(m.graph.outputs[0])})
    inner = m.head.graph
    with inner.insert_exprs():
        block = inner.node("block_out")
        inner.replace_node({block: F.exp(block)})
    np.testing.assert_array_equal(m(tensor(X)).numpy(), want.numpy())
    assert repr(head) == before and m.head is not head and m.head.fc is head.fc
    assert inner.qualname == "Net.head" and child_graphs(inner)[0].qualname == "Net.head.block"
    assert inner.node("fc_out").qualname == "Net.head.fc.[out]"
    ids = [e.id for e in m.graph.exprs()], [n.id for n in m.graph.nodes()]
    assert all(len(set(found)) == len(found) for found in ids)
    modules = {e.meta["module"] for e in lower(m).graph.exprs() if e.kind == "Apply"}
    assert {"head", "head.fc", "head.block.0"} <= modules
    m.graph.lint()
    for form in (m.flatten(), lower(m)):
        np.testing.assert_allclose(form(tensor(X)).numpy(), want.numpy(), rtol=1e-6)
    assert m.graph.undo() and m.graph.undo() and not m.graph.undo()
    assert_same(m, ORIGINAL.clone(), tmp_path)
    assert m.graph.redo() and m.graph.redo()
    np.testing.assert_array_equal(m(tensor(X)).numpy(), want.numpy())


# ---------------------------------------------------------------- files from others


def rewritten(folder, change) -> EditLog:
    """A log of all edits in which the JSON was changed."""
    m = ORIGINAL.clone()
    for edit in (insert, other_layer, rename, other_arguments):
        edit(m)
    m.edit_log.save(folder / "edits.log")
    with zipfile.ZipFile(folder / "edits.log") as archive:
        described, weights = json.loads(archive.read(LOG)), archive.read("weights.safetensors")
    change(described)
    with zipfile.ZipFile(folder / "edits.log", "w") as archive:
        archive.writestr(LOG, json.dumps(described))
        archive.writestr("weights.safetensors", weights)
    return EditLog.load(folder / "edits.log")


def _find(described, do):
    return next(e for s in described["steps"] for e in s["edits"] if e["do"] == do)


HOSTILE = {
    "function": lambda d: _find(d, "link")["expr"].update(kind="CallFunction", function="os.system", args=["true"]),
    "method": lambda d: _find(d, "link")["expr"].update(kind="CallMethod", method="__reduce__", args=[{"node": "x"}]),
    "layer": lambda d: d["steps"][3]["layers"] and d["steps"][3]["layers"][0].update(type="os.system"),
    "class": lambda d: _find(d, "module").update(path="__class__", was=None),
    "private": lambda d: _find(d, "module").update(path="_graphs", was=None),
    "name": lambda d: _find(d, "rename").update(new="</script>"),
    "kind": lambda d: _find(d, "rename").update(do="exec"),
    "type": lambda d: _find(d, "rename").update(new=["a"]),
    "graph": lambda d: _find(d, "rename").update(graph=["blocks.7", 0]),
    "module": lambda d: _find(d, "module").update(value=1),
    "traced": lambda d: _find(d, "module").update(traced=[{"state": {"forward": {"layer": 0}}, "graphs": []}]),
    "no graphs": lambda d: _find(d, "module").update(traced=[{"state": {}}]),
    "id": lambda d: _find(d, "link")["expr"].update(id=-1),
    "nested": lambda d: _find(d, "link")["expr"].update(args=[{"node": {"node": "x"}}]),
    "missing": lambda d: _find(d, "link").pop("expr"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_logs_are_refused_and_nothing_is_changed(name, tmp_path):
    def change(described):
        before = json.dumps(described)
        HOSTILE[name](described)
        assert json.dumps(described) != before or name == "layer"
        if name == "layer":
            step = next(s for s in described["steps"] if s["layers"])
            step["layers"][0]["type"] = "os.system"

    m = ORIGINAL.clone()
    with pytest.raises(GraphError, match=r"edit \d of \d .* does not fit this model"):
        rewritten(tmp_path, change).replay(m)
    assert not diff(m, ORIGINAL) and len(m.edit_log) == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_changes_of_a_log_do_no_harm(tmp_path_factory, data):
    def change(described):
        at, path = described, []
        while isinstance(at, (dict, list)) and at and (not path or data.draw(st.integers(0, 5))):
            key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            path.append((at, key))
            at = at[key]
        holder, key = path[-1]
        holder[key] = data.draw(st.sampled_from([None, -1, 10**30, 1.5, "", "x", [], {}, [[]], {"node": "x"}, True]))

    folder = tmp_path_factory.mktemp("log")
    m = ORIGINAL.clone()
    try:
        rewritten(folder, change).replay(m)
    except MegEngineError:
        assert not diff(m, ORIGINAL) and len(m.edit_log) == 0
    else:
        m.graph.lint()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"PK\x03\x04", "damaged or not a log file"),
        (b"\x80\x04K\x01.", "a pickle, as megengine.save writes"),
        (None, "no such file"),
    ],
)
def test_what_is_no_log(content, message, tmp_path):
    path = tmp_path / "edits.log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        EditLog.load(path)


def test_other_archives_are_no_logs(tmp_path):
    files.save(ORIGINAL, tmp_path / "net.mgt")
    with pytest.raises(FileFormatError, match=r"expected log.json"):
        EditLog.load(tmp_path / "net.mgt")
    with pytest.raises(FileFormatError, match="format is 'x'; expected 'megengine-edits'"):
        rewritten(tmp_path, lambda d: d.update(format="x"))
    with pytest.raises(FileFormatError, match="version is 3; this program reads versions 1 and 2"):
        rewritten(tmp_path, lambda d: d.update(version=3))
    with pytest.raises(MissingFileError, match="there is no folder"):
        EditLog(()).save(tmp_path / "none" / "edits.log")
    EditLog(()).save(tmp_path / "empty.log")
    assert len(EditLog.load(tmp_path / "empty.log")) == 0


def test_steps_of_passes_are_told_by_what_they_come_to():
    """Names that a pass uses in between are not told; each module has its own part."""
    model = trace_module(resnet18().eval(), tensor(np.zeros((1, 3, 32, 32), np.float32)))
    run_passes(model, ["FuseConvBn"])
    words = model.edit_log.to_text()
    assert words.startswith("FuseConvBn: in layer1.1: another conv2, conv1, conv2_out, conv1_out; add_out uses ")
    assert "in layer2.0.downsample: another 0, _0_out; outputs are _0_out; without _1_out, _1; " in words
    assert words.endswith("; another conv1, conv1_out; relu_out uses bn1_out -> conv1_out; without bn1_out, bn1")
    assert "_out_1" not in words
    ops = lower(trace_module(resnet18().eval(), tensor(np.zeros((1, 3, 32, 32), np.float32))))
    ops.graph.keep_edits()
    PassManager(["fold_batch_norm"]).run(ops)
    assert "; new " in ops.edit_log.to_text()
    assert "const_tensor" not in ops.edit_log.to_text()
