"""Edits at module level: what they do, and that they can be undone."""

import numpy as np
import pytest
from block_nets import Block
from edited_nets import X, content, first, module, state
from hypothesis import given, settings
from hypothesis import strategies as st
from megengine_graphs import inputs_of, leaves, listing, traced

import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, MegEngineError, ShapeError
from megengine.quantization import ema_fakequant_qconfig, quantize_qat
from megengine.tensor import Tensor, tensor
from megengine.traced_module import TensorNode, TracedModule, trace_module
from megengine.traced_module.editing.expressions import set_outputs
from megengine.traced_module.editing.rewiring import replace_all_uses, set_input
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.ir.queries import child_graphs


def keep(seen: dict, node, value) -> None:
    seen.setdefault(node.name, value.numpy())


def test_an_inserted_call_takes_part_in_the_result():
    m, net = module(), None
    graph = m.graph
    node = graph.get_function_by_type(F.avg_pool2d).as_unique().output
    before = m(tensor(X)).numpy()
    with graph.insert_exprs():
        graph.replace_node({node: F.relu(node) * 3 + 1})
    graph.lint()
    assert [e.qualified for e in graph.get_function_by_type(F.relu, recursive=False)] == [
        "megengine.functional.nn.relu"
    ]
    seen = {}
    m.run([tensor(X)], lambda n, t: keep(seen, n, t))
    after = np.maximum(seen[node.name], 0) * 3 + 1
    want = after.reshape(2, 4) @ m.fc.weight.numpy().T + m.fc.bias.numpy()
    np.testing.assert_allclose(m(tensor(X)).numpy(), want, rtol=1e-5, atol=1e-5)
    assert graph.undo()
    np.testing.assert_array_equal(m(tensor(X)).numpy(), before)
    assert graph.redo() and not graph.redo()
    np.testing.assert_allclose(m(tensor(X)).numpy(), want, rtol=1e-5, atol=1e-5)
    assert net is None


def test_shapes_behind_an_edit_are_inferred_again():
    m = module()
    graph = m.graph
    node = graph.get_node_by_name("stem_out").as_unique()
    with graph.insert_exprs():
        graph.replace_node({node: F.concat([node, node], axis=0)})
    assert graph.outputs[0].shape == (4, 5)
    assert m(tensor(X)).shape == (4, 5)
    before = state(m)
    with pytest.raises(MegEngineError, match="conv2d: x has 8 channels"), graph.insert_exprs():
        graph.replace_node({node: F.concat([node, node], axis=1)})
    assert state(m) == before


def test_a_new_layer_is_set_and_called():
    m = module()
    graph = m.graph
    self_node = graph.inputs[0]
    node = graph.get_node_by_name("stem_out").as_unique()
    with graph.insert_exprs():
        self_node.extra = M.Conv2d(4, 4, 3, padding=1)
        self_node.bias2 = tensor(np.ones((1, 4, 1, 1), np.float32))
        graph.replace_node({node: self_node.extra(node) + self_node.bias2})
    graph.lint()
    assert "extra.weight" in dict(m.named_parameters())
    y = m.extra(m.stem(tensor(X))) + 1
    seen = {}
    m.run([tensor(X)], lambda n, t: keep(seen, n, t))
    np.testing.assert_allclose(seen["add_out"], y.numpy(), rtol=1e-6)
    assert graph.undo()
    assert not hasattr(m, "extra") and not hasattr(m, "bias2")


def test_submodules_have_graphs_of_their_own_and_one_history():
    m = module()
    inner = m.blocks.__dict__["0"].graph
    start = state(m)
    relu = inner.get_function_by_type(F.relu).as_unique().output
    with inner.insert_exprs():
        inner.replace_node({relu: F.exp(relu)})
    with m.graph.transaction():
        m.graph.rename(m.graph.get_node_by_name("mul_out").as_unique(), "scaled")
        inner.rename(inner.outputs[0], "sum_of_both")
    m.graph.lint()
    assert m.graph.undo()
    assert inner.outputs[0].name == "add_out"
    assert m.graph.undo() and not m.graph.undo()
    assert state(m) == start


def test_edits_of_a_flattened_module_are_not_seen_in_its_source():
    m = module()
    before, want = state(m), m(tensor(X)).numpy()
    flat = m.flatten()
    for node in flat.graph.get_module_by_type(M.Conv2d):
        other = M.Conv2d(node.owner.in_channels, node.owner.out_channels, 1)
        flat.graph.replace_module(node, other)
    flat.graph.inputs[0].extra = M.ReLU()
    assert state(m) == before and not hasattr(m, "extra")
    assert np.array_equal(m(tensor(X)).numpy(), want) and not np.array_equal(flat(tensor(X)).numpy(), want)


def test_layers_that_look_at_values_are_inserted():
    """QAT layers in training, several of them: their observers see nothing while the graph is edited."""
    m = module()
    graph = m.graph
    layers = [quantize_qat(kind(4, 4, 1), qconfig=ema_fakequant_qconfig) for kind in (M.ConvRelu2d, M.ConvBn2d)]
    before, start = [layer.state_dict() for layer in layers], state(m)
    with graph.insert_exprs():
        node = graph.node("mul_out")
        graph.inputs[0].first, graph.inputs[0].second = layers
        graph.replace_node({node: graph.inputs[0].second(graph.inputs[0].first(node))})
    graph.lint()
    for layer, state_before in zip(layers, before, strict=True):
        for key, value in layer.state_dict().items():
            np.testing.assert_array_equal(value, state_before[key])
    m(tensor(X))
    assert not np.array_equal(layers[0].act_observer.max_val.numpy(), before[0]["act_observer.max_val"])
    assert graph.undo() and state(m) == start


class Pyramid(M.Module):
    """One head over pictures of two sizes."""

    def __init__(self):
        super().__init__()
        self.head = M.Sequential(M.Conv2d(3, 3, 1), M.ReLU())

    def forward(self, x):
        return self.head(x), self.head(x[..., :3])


def test_edits_of_a_part_that_is_called_with_several_shapes_fit_all_of_them():
    m = trace_module(Pyramid(), tensor(X))
    head = child_graphs(m.graph)[0]
    before = state(m)
    with pytest.raises(MegEngineError, match="reshape"), head.insert_exprs():
        node = head.outputs[0]
        head.replace_node({node: node.reshape(2, 3, 36)})
    assert state(m) == before
    with head.transaction():  # a result that does not follow the input, as it is for the first call
        fixed = head.constant(np.ones((2, 3, 6, 6), np.float32))
        set_outputs(head, [fixed])
    assert [n.spec.shape for n in m.graph.outputs] == [(2, 3, 6, 6), (2, 3, 6, 6)]
    m.graph.lint()
    assert m.graph.undo() and state(m) == before
    with head.insert_exprs():
        head.replace_node({head.outputs[0]: head.outputs[0].reshape(2, 3, -1)})
    assert [n.spec.shape for n in m.graph.outputs] == [(2, 3, 36), (2, 3, 18)]
    with pytest.raises(GraphError, match=r"Pyramid.head is called by another graph, which uses 1 result; got 2"):
        set_outputs(head, [head.outputs[0], head.outputs[0]])
    m.graph.lint()


def test_a_transaction_that_raises_leaves_nothing():
    m = module()
    start = state(m)
    with pytest.raises(ZeroDivisionError), m.graph.transaction():
        m.graph.rename(m.graph.get_node_by_name("mul_out").as_unique(), "scaled")
        with m.graph.insert_exprs():
            node = m.graph.get_node_by_name("scaled").as_unique()
            m.graph.replace_node({node: node + 1})
        raise ZeroDivisionError
    assert state(m) == start
    with pytest.raises(KeyError), m.graph.insert_exprs():
        F.relu(m.graph.get_node_by_name("mul_out").as_unique())
        raise KeyError
    assert state(m) == start


def test_inputs_and_outputs():
    m = module()
    graph = m.graph
    more = graph.add_input_node((1, 4, 1, 1), name="gain")
    node = graph.get_node_by_name("stem_out").as_unique()
    with graph.insert_exprs():
        graph.replace_node({node: node * more})
    gain = tensor(np.full((1, 4, 1, 1), 2, np.float32))
    once = m(tensor(X), 2.0, gain).numpy()
    graph.add_output_node(node)
    result = m(tensor(X), 2.0, gain)
    assert isinstance(result, tuple) and [r.shape for r in result] == [(2, 5), (2, 4, 6, 6)]
    np.testing.assert_array_equal(result[0].numpy(), once)
    graph.reset_outputs({"a": graph.outputs[0], "b": [node]})
    np.testing.assert_array_equal(m(tensor(X), 2.0, gain)["b"][0].numpy(), result[1].numpy())
    graph.lint()
    while graph.undo():
        pass
    assert listing(m) == listing(module())


def test_a_call_with_a_new_input_may_leave_out_what_was_fixed():
    m = module()
    more = m.graph.add_input_node((1,), name="more")
    with m.graph.insert_exprs():
        m.graph.replace_node({m.graph.outputs[0]: m.graph.outputs[0] + more})
    x, one = tensor(X), tensor(np.ones(1, np.float32))
    want = m(x, 2.0, one).numpy()
    for args, names in (((x, one), ()), ((x,), ("more",)), ((x, 2.0), ("more",)), ((), ("x", "more"))):
        got = m(*args, **{name: {"x": x, "more": one}[name] for name in names})
        np.testing.assert_array_equal(got.numpy(), want)
    for args, words in (((x, 3.0, one), {}), ((x,), {}), ((x, one, one), {}), ((x, one), {"mor": one})):
        with pytest.raises(GraphError, match=r"was not traced with these arguments .*it knows \(x, 2\.0, more\)"):
            m(*args, **words)


def test_arguments_of_a_call():
    m = module()
    graph = m.graph
    pool = graph.get_function_by_type(F.avg_pool2d).as_unique()
    assert pool.named_args["kernel_size"] == 6
    with pytest.raises(MegEngineError, match=r"linear: inp has shape \(2, 16\)"):
        pool.set_arg("kernel_size", 3)
    pool.set_arg("kernel_size", (5, 6))
    assert graph.get_node_by_name("avg_pool2d_out").as_unique().spec.shape == (2, 4, 1, 1)
    mul = graph.get_method_by_type("__mul__").as_unique()
    mul.set_args_kwargs(mul.inputs[0], 5.0)
    assert mul.args == (mul.inputs[0], 5.0)
    pool.set_arg("kernel_size", 6)
    want = module()
    start = want.graph.get_method_by_type("__mul__").as_unique()
    start.set_args_kwargs(start.inputs[0], 5.0)
    assert listing(m) == listing(want)


class Rows(M.Module):
    def forward(self, x):
        rows = x.shape[0]
        return x.reshape(rows, -1) * 2


def test_shapes_are_values_that_are_known():
    """Those that are read while editing, and those that the graph reads already."""
    m = trace_module(Rows(), tensor(np.zeros((2, 3, 2), np.float32)))
    graph, rows, out = m.graph, first(m, "getitem_out"), first(m, "mul_out")
    with graph.insert_exprs():
        y = out.reshape(rows, 1, out.shape[1])
        z = F.broadcast_to(y, (rows, 2, y.shape[2])).reshape(y.shape[0] * 2, -1)
        graph.replace_node({out: z + F.zeros((1,))})
    graph.lint()
    assert graph.outputs[0].shape == (4, 6)
    assert m(tensor(np.ones((5, 4), np.float32))).shape == (10, 4)


class Two(M.Module):
    def forward(self, x):
        return x.reshape(x.shape[0], x.shape[1] * 2) * 2


def test_shapes_that_are_exchanged_for_others():
    """Their own shape stays, and what they tell does not."""
    m = trace_module(Two(), tensor(np.zeros((3, 4, 2), np.float32)))
    graph, before = m.graph, repr(m)
    rows, columns = first(m, "getitem_out"), first(m, "getitem_out_1")
    with pytest.raises(ShapeError, match=r"reshape: shape \(3, 6\) holds 18 elements, the input has 24"):
        set_input(graph, columns.users[0], 0, rows)
    with pytest.raises(ShapeError, match=r"reshape: shape \(3, 6\) holds 18 elements"):
        replace_all_uses(graph, columns, rows)
    assert repr(m) == before and not graph.undo()
    eight, six = (graph.constant(np.int32(n), after=rows.expr) for n in (8, 6))
    graph.replace_node({columns.users[0].output: eight})
    with pytest.raises(ShapeError, match=r"reshape: shape \(3, 6\) holds 18 elements"):
        graph.replace_node({eight: six})
    graph.lint()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.int32(2), None),
        (np.int32(3), None),
        (np.int32(5), r"reshape: 12 elements do not fill shape \(5, -1\)"),
        (np.int32([2, 6, 1]), "reshape"),
    ],
)
def test_constants_in_the_place_of_shapes(value, message):
    """They are what the call asks for: shapes behind it follow, and impossible ones are refused."""
    m = trace_module(Rows(), tensor(np.zeros((2, 3, 2), np.float32)))
    before, rows = repr(m), first(m, "getitem_out")
    made = m.graph.constant(value, after=rows.expr)
    if message is None:
        m.graph.replace_node({rows: made})
        m.graph.lint()
        assert m.graph.outputs[0].shape == (int(value), 12 // int(value))
        assert m(tensor(np.zeros((2, 3, 2), np.float32))).shape == m.graph.outputs[0].shape
        return
    with pytest.raises(MegEngineError, match=message):
        m.graph.replace_node({rows: made})
    m.graph.undo()
    assert repr(m) == before


def test_calls_from_graphs_that_nothing_calls_are_kept_possible():
    """They may be called again: an edit must not break what stands there."""

    class Sum(M.Module):
        def forward(self, x):
            return F.relu(x) * 2 + x

    class Inner(M.Module):
        def forward(self, x):
            return F.exp(x)

    class Outer(M.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x) + 1

    m = trace_module(Outer(), tensor(np.zeros((2, 4), np.float32)))
    inner = m.inner.graph
    with inner.insert_exprs():
        inner.inputs[0].part = trace_module(Sum(), tensor(np.zeros((2, 6), np.float32)))
        inner.replace_node({inner.outputs[0]: inner.inputs[0].part(inner.outputs[0])})
    m.graph.replace_node({first(m, "inner_out"): first(m, "x")})
    remove_dead(m.graph)
    assert not child_graphs(m.graph)
    part, before = child_graphs(inner)[0], repr(inner)
    made = part.constant(np.ones((2, 6), np.float32), after=part.inputs[-1].expr)
    with pytest.raises(ShapeError, match=r"shapes \(2, 6\) and \(2, 4\) do not broadcast"):
        part.replace_node({part.node("mul_out"): made})
    inner.lint()
    assert repr(inner) == before


def edits_of(m: TracedModule, kind: int, choice: int) -> None:
    """One random legal edit (or one that is refused)."""
    graphs = [m.graph, *child_graphs(m.graph)]
    graph = graphs[choice % len(graphs)]
    nodes = [n for n in graph.nodes(recursive=False) if isinstance(n, TensorNode)]
    node = nodes[(choice // 3) % len(nodes)]
    if kind == 0:
        with graph.insert_exprs():
            graph.replace_node({node: F.relu(node) + 0.5})
    elif kind == 1:
        graph.rename(node, f"renamed_{choice}")
    elif kind == 2:
        graph.replace_node({node: nodes[(choice // 7) % len(nodes)]})
    elif kind == 3:
        graph.compile()
    elif kind == 4:
        with graph.transaction():
            with graph.insert_exprs():
                extra = node.reshape(node.shape) * 2 if len(node.spec.shape) else node
            graph.replace_node({node: extra})
    elif kind == 5:
        m.graph.add_output_node(m.graph.nodes(recursive=False)[-1])
    else:
        m.graph.undo()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 10_000)), min_size=1, max_size=12))
def test_random_edits_keep_lint_clean_and_can_all_be_undone(edits):
    m = module()
    start, saved = state(m), content(m)
    for kind, choice in edits:
        before = state(m)
        try:
            edits_of(m, kind, choice)
        except MegEngineError:
            assert state(m) == before
        m.graph.lint()
    done = state(m)
    steps = 0
    while m.graph.undo():
        m.graph.lint()
        steps += 1
    assert state(m) == start
    assert content(m) == saved
    for _ in range(steps):
        assert m.graph.redo()
    assert state(m) == done
    leaves(m(tensor(X)))


def test_queries():
    m = traced("call_mix")
    graph = m.graph
    assert len(graph.get_function_by_type(F.relu)) == 2
    assert graph.get_method_by_type("reshape").as_count() == 3
    assert graph.get_method_by_type("reshape", recursive=False).as_count() == 1
    assert {n.qualname for n in graph.get_module_by_type(M.ReLU)} == {"CallMix.relu", "CallMix.nest.0.1"}
    assert [n.name for n in graph.get_node_by_name("relu_out*")] == ["relu_out", "relu_out_1", "relu_out_2"]
    assert graph.get_node_by_name("RELU_OUT").as_unique().name == "relu_out"
    assert graph.get_expr_by_id([4, 5]).as_dict().keys() == {4, 5}
    assert graph.get_node_by_id(5).as_unique().name == "relu_out"
    node = graph.get_node_by_name("relu_out").as_unique()
    assert [e.id for e in graph.get_dep_exprs(node) if type(e).__name__ != "Input"] == [5, 4, 3, 2]
    assert isinstance(m(*map(tensor, inputs_of("call_mix")))[0], Tensor)


def test_looking_at_layers_in_training_mode_leaves_their_statistics():
    block = Block(3)
    block.train()
    m = trace_module(block, tensor(X))
    norm = block.norm
    before = norm.running_mean.numpy().copy()
    m.graph.lint()
    m.summary()
    with m.graph.insert_exprs():
        again = m.graph.inputs[0].norm(m.graph.outputs[0])
        m.graph.replace_node({m.graph.outputs[0]: again})
    assert np.array_equal(norm.running_mean.numpy(), before)
