"""Building with modules: layers and modules of the user's, set, called and put in the place of others."""

import importlib.util
import inspect

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import traced_module as tm
from megengine.core.errors import GraphError, NameInUseError, OptionError
from megengine.tensor import tensor
from megengine.traced_module.editing.parts import set_attribute
from megengine.traced_module.ir.queries import graphs_of
from megengine.traced_module.passes.rewriting import Rule, rewrite
from megengine.traced_module.patterns import any_, call
from megengine.traced_module.source import save_source

X = tensor(np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32))


class Inner(M.Module):
    def __init__(self):
        super().__init__()
        self.fc = M.Linear(4, 4)

    def forward(self, x, twice=False):
        y = F.relu(self.fc(x))
        return y * 2 if twice else y


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.a, self.fc = Inner(), M.Linear(4, 4)

    def forward(self, x):
        return self.fc(self.a(x))


class Norm(M.Module):
    """A layer of the user's."""

    def __init__(self):
        super().__init__()
        self.weight = mge.Parameter(np.full((4,), 2, np.float32))

    def forward(self, x):
        return (x - F.mean(x, axis=-1, keepdims=True)) * self.weight


class OtherNorm(Norm):
    pass


MODEL = tm.trace_module(Net(), X)


def check(model, start=MODEL):
    """Sound, saved, undone, done again, replayed: always the same."""
    for graph in graphs_of(model):
        graph.lint()
    text, log = repr(model), model.edit_log
    steps = 0
    while model.graph.undo():
        steps += 1
    assert repr(model) == repr(start) and sorted(model.state_dict()) == sorted(start.state_dict())
    for _ in range(steps):
        model.graph.redo()
    assert repr(model) == text
    again = start.clone()
    log.replay(again)
    assert repr(again) == text
    np.testing.assert_array_equal(again(X).numpy(), model(X).numpy())


def behind(model, make, graph=None):
    """Put what `make(self_node, node)` builds behind the last value."""
    graph = graph or model.graph
    out = graph.outputs[0]
    with graph.insert_exprs(out.expr):
        graph.replace_node({out: make(graph.inputs[0], out)})
    return model


def setting(name, module, calls=1):
    def make(self_node, node):
        setattr(self_node, name, module)
        part = getattr(self_node, name)
        for _ in range(calls):
            node = part(node)
        return node

    return make


MODULES = {
    "a layer": lambda: M.Linear(4, 4),
    "a Sequential": lambda: M.Sequential(M.Linear(4, 4), M.ReLU()),
    "a nested Sequential": lambda: M.Sequential(M.Sequential(M.Linear(4, 4)), Inner(), Norm()),
    "a module of the user's": Inner,
    "a whole net": Net,
    "a traced module": lambda: tm.trace_module(Inner(), X),
}


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("place", ["top", "submodule"])
def test_modules_are_inserted_as_they_are(kind, place, tmp_path):
    module = MODULES[kind]()
    model = MODEL.clone()
    behind(model, setting("head", module), model.a.graph if place == "submodule" else None)
    wanted = module(MODEL(X)) if place == "top" else MODEL.fc(module(MODEL.a(X)))
    mge.save(model, tmp_path / "net.mgt")
    mge.save(model, tmp_path / "net.tm")
    for form in (
        model,
        model.flatten(),
        tm.lower(model),
        mge.load(tmp_path / "net.mgt"),
        mge.load(tmp_path / "net.tm"),
    ):
        np.testing.assert_allclose(form(X).numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)
    assert repr(mge.load(tmp_path / "net.mgt")) == repr(model)
    check(model)


# what MegEngine 1.13 names the nodes of the same insertion: (id of the expression, name, qualname)
OF_MEGENGINE = [
    (11, "inn", "Net.inn"), (12, "inn_out", "Net.inn.[out]"), (13, "self", "Net.inn"), (14, "x", "Net.inn.[x]"),
    (15, "fc", "Net.inn.fc"), (16, "fc_out", "Net.inn.fc.[out]"), (17, "relu_out", "Net.inn.[func_relu]"),
]  # fmt: skip


def test_names_and_ids_are_those_of_megengine():
    model = behind(MODEL.clone(), setting("inn", Inner()))
    made = [(e.id, n.name, n.qualname) for e in model.graph.exprs() for n in e.outputs]
    assert made[11:] == OF_MEGENGINE
    twice = behind(MODEL.clone(), setting("inn", Inner(), calls=2))
    assert [e.name for e in twice.graph.exprs(recursive=False)][-3:] == ["inn", "inn_out", "inn_out_1"]
    again = behind(MODEL.clone(), lambda self_node, node: self_node.fc(node))
    assert again.graph.outputs[0].name == "fc_1_out"  # reads count
    both = behind(
        behind(MODEL.clone(), lambda self_node, node: self_node.fc(node)),
        lambda self_node, node: self_node.fc(self_node.fc(node)),
    )  # one read in each body
    assert [e.name for e in both.graph.exprs(recursive=False)][-3:] == ["fc_1_out", "fc_2_out", "fc_2_out_1"]
    for model in (twice, again, both):
        check(model)


def test_several_results_stay_together_beside_a_new_one():
    model = MODEL.clone()
    graph = model.graph
    graph.reset_outputs([graph.node("x"), graph.node("fc_out")])
    graph.add_output_node(graph.node("fc_out"))
    graph.add_output_node(graph.node("x"))
    ((x, fc), again), last = model(X)  # as in MegEngine, whose result is (what it was, the value)
    np.testing.assert_array_equal([x.numpy(), fc.numpy()], [last.numpy(), again.numpy()])
    np.testing.assert_array_equal(fc.numpy(), MODEL(X).numpy())


def test_what_uses_values_made_behind_the_given_place_goes_behind_them():
    model = MODEL.clone()
    early, late = model.graph.node("a_out"), model.graph.node("fc_out")
    with model.graph.insert_exprs(early.expr):
        at_place = F.exp(early)
        moved = F.abs(late)
        behind_it = F.sin(early)
        model.graph.replace_node({late: at_place + moved * behind_it})
    assert at_place.expr.comes_before(late.expr) and late.expr.comes_before(moved.expr)
    assert moved.expr.comes_before(behind_it.expr)  # as in MegEngine, whose insertions stay together
    check(model)


def test_a_module_that_was_set_on_the_traced_module_is_traced_when_a_node_calls_it():
    module = Inner()
    model = MODEL.clone()
    model.inn = module
    behind(model, lambda self_node, node: self_node.inn(node))
    assert isinstance(model.inn, tm.TracedModule)
    np.testing.assert_allclose(model(X).numpy(), module(MODEL(X)).numpy(), rtol=1e-6)
    model.graph.lint()


def test_a_second_module_under_a_taken_name_gets_a_count():
    first, second = M.Linear(4, 4), Inner()
    model = behind(MODEL.clone(), setting("fc", first))
    behind(model, setting("fc", second))
    assert model.fc_1 is first and isinstance(model.fc_2, tm.TracedModule)
    np.testing.assert_allclose(model(X).numpy(), second(first(MODEL(X))).numpy(), rtol=1e-5)
    assert [e.name for e in model.graph._exprs][-4:] == ["fc_1", "fc_1_out", "fc_2", "fc_2_out"]
    check(model)
    assert set_attribute(model.graph.inputs[0], "fc", M.ReLU()) == "fc_3"
    for name in ("training", "name", "forward", "_graphs"):
        with pytest.raises((NameInUseError, GraphError)):
            set_attribute(model.graph.inputs[0], name, M.ReLU())


def test_a_module_may_be_called_in_several_ways():
    module = Inner()

    def make(self_node, node):
        self_node.head = module
        return self_node.head(self_node.head(node), twice=True)

    model = behind(MODEL.clone(), make)
    assert len(model.head.graphs) == 2
    np.testing.assert_allclose(model(X).numpy(), module(module(MODEL(X)), twice=True).numpy(), rtol=1e-5)
    check(model)


def test_a_module_that_was_set_is_called_later_and_its_layers_are_read_then():
    model = MODEL.clone()
    graph = model.graph
    set_attribute(graph.inputs[0], "head", M.Sequential(M.Linear(4, 4), M.ReLU()))
    with (
        graph.insert_exprs(),
        pytest.raises(GraphError, match="'head' is a Sequential, which is traced when it is cal"),
    ):
        graph.inputs[0].head[0](graph.outputs[0])

    def make(self_node, node):
        value = self_node.head(node)
        return self_node.head[0](value)

    behind(model, make)
    fc = model.graph.node("head_0").owner
    np.testing.assert_allclose(model(X).numpy(), fc(F.relu(fc(MODEL(X)))).numpy(), rtol=1e-5)
    check(model)


def test_modules_are_called_directly():
    """They become attributes under their own name, or that of their class; a part of the model is called as it is."""
    linear, named, inner = M.Linear(4, 4), M.Linear(4, 4, name="head"), Inner()
    model = behind(MODEL.clone(), lambda self_node, node: inner(named(linear(linear(node)))))
    behind(model, lambda self_node, node: M.Linear(4, 4, bias=False)(model.fc(node)))
    assert [n for n in vars(model) if n in ("linear", "head", "inner", "linear_1")] == [
        "linear", "head", "inner", "linear_1"
    ]  # fmt: skip
    assert model.graph.get_module_by_type(M.Linear).as_count() == 7 - 1
    check(model)


def test_rules_build_modules():
    x = any_()
    rule = Rule("soften", call(F.relu, x), lambda m: M.Sequential(M.Linear(4, 4), M.Sigmoid())(M.Linear(4, 4)(m[x])))
    model = MODEL.clone()
    assert rewrite(model.graph, [rule]) == 1
    assert "soften" in model.graph.node("a.linear_out").meta["passes"]
    assert isinstance(model.a.sequential, tm.TracedModule)
    check(model)


# ---------------------------------------------------------------- in the place of others


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("path", ["fc", "a", "a.fc"])
def test_modules_take_the_place_of_others(kind, path):
    module = MODULES[kind]()
    if path == "a" and kind in ("a layer", "a Sequential", "a nested Sequential", "a whole net"):
        pytest.skip("a is called with an argument that these do not take")
    model = MODEL.clone()
    node = model.graph.node(path)
    node.graph.replace_module(node, module)
    start = Net()
    start.fc, start.a = MODEL.fc, MODEL.a
    if path == "a.fc":
        wanted = MODEL.fc(F.relu(module(X)))
    else:
        wanted = module(MODEL.a(X)) if path == "fc" else MODEL.fc(module(X))
    np.testing.assert_allclose(model(X).numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)
    check(model)


class Two(M.Module):
    """One module, called with two kinds of arguments, from two graphs."""

    def __init__(self):
        super().__init__()
        self.a = Inner()

    def forward(self, x):
        return self.a(self.a(x), twice=True)


class Third(M.Module):
    def forward(self, x, twice=False):
        return F.exp(x) if twice else F.tanh(x)


def test_a_replacement_is_traced_for_every_call():
    start = tm.trace_module(Two(), X)
    model = start.clone()
    model.graph.replace_module(model.graph.node("a"), Third())
    np.testing.assert_allclose(model(X).numpy(), np.exp(np.tanh(X.numpy())), rtol=1e-5)
    assert len(model.a.graphs) == 2
    check(model, start)
    model = start.clone()  # a layer that both graphs of one module call
    inner = model.a.graphs[1]
    inner.replace_module(inner.node("fc"), M.Sequential(M.Linear(4, 4), Norm()))
    check(model, start)
    model.a.graphs[0].replace_module(model.a.graphs[0].node("fc"), M.Linear(4, 4, bias=False))
    check(model, start)
    with pytest.raises(Exception, match="linear|matmul|shape"):
        inner.replace_module(inner.node("fc"), M.Linear(4, 5))
        model.a.graphs[1].replace_module(model.a.graphs[1].node("fc"), M.Linear(3, 4))


class Scaled(M.Module):
    def forward(self, value, scale=3, *, more=1):
        return value * scale * more


@pytest.mark.parametrize("make", [Scaled, lambda: tm.trace_module(Scaled(), X)], ids=["a class", "traced"])
def test_calls_get_the_defaults_of_what_they_call_now(make):
    """Without them they would not enter its graph."""
    model = MODEL.clone()
    model.graph.replace_module(model.graph.node("fc"), make())
    call_of_it = model.graph.node("fc_out").expr
    assert call_of_it.args[1:] == (model.graph.node("a_out"), 3) and call_of_it.kwargs == {"more": 1}
    model.graph.add_output_node("fc.mul_out")
    assert len(model.flatten().graph.get_calls_of(M.Module)) == 1  # of the other layer
    check_outputs = model(X)
    np.testing.assert_allclose(check_outputs[0].numpy(), MODEL.a(X).numpy() * 3, rtol=1e-6)
    np.testing.assert_allclose(check_outputs[1].numpy(), MODEL.a(X).numpy() * 3, rtol=1e-6)


def test_a_module_whose_parts_are_read_by_path_is_not_replaced():
    model = MODEL.clone()
    graph = model.graph
    with graph.insert_exprs():
        graph.replace_node({graph.outputs[0]: graph.inputs[0].a.fc(graph.outputs[0])})
    with pytest.raises(GraphError, match="'a.fc' is read by Net through Net.a; replace the layers inside it"):
        graph.replace_module(graph.node("a"), Third())
    inner = model.a.graph
    inner.replace_module(inner.node("fc"), M.Linear(4, 4, bias=False))
    graph.lint()


# ---------------------------------------------------------------- classes


def test_new_layers_keep_their_class(tmp_path):
    model = behind(MODEL.clone(), setting("norm", OtherNorm()))
    graph = model.graph
    assert 'norm = getattr(self, "norm") -> (OtherNorm)' in repr(graph)
    for kind, count in ((Norm, 1), (OtherNorm, 1), (Inner, 0), (M.LayerNorm, 0), ((Norm, M.Linear), 3)):
        assert graph.get_module_by_type(kind).as_count() == count
    assert [e.name for e in graph.get_calls_of(Norm)] == ["norm_out"]
    mge.save(model, tmp_path / "net.mgt")
    assert mge.load(tmp_path / "net.mgt").graph.get_module_by_type(Norm).as_count() == 1
    assert 'getattr(self, "a") -> (Module)' in repr(graph)  # traced with the model, printed as MegEngine does
    tm.optimize(model, "all")(X)


# ---------------------------------------------------------------- names as torch.fx has them


def test_uses_are_replaced_through_the_node():
    model = MODEL.clone()
    node = model.graph.node("a_out")
    with model.graph.inserting_after(node):
        users = node.replace_all_uses_with(F.exp(node))
    assert [u.name for u in users] == ["fc_out"]
    np.testing.assert_allclose(model(X).numpy(), MODEL.fc(F.exp(MODEL.a(X))).numpy(), rtol=1e-5)
    check(model)


@pytest.mark.parametrize("by", ["node", "expr"])
def test_places_in_front_and_behind(by):
    model = MODEL.clone()
    graph = model.graph
    fc_out, x = graph.node("fc_out"), graph.inputs[1]
    place = fc_out if by == "node" else fc_out.expr
    with graph.inserting_before(place):
        F.exp(x)
    with graph.inserting_after(place):
        F.tanh(fc_out)
    with graph.inserting_before(x if by == "node" else x.expr):
        F.cos(x)
    names = [e.name for e in graph._exprs]
    assert names[0] == "cos_out" and names[-3:] == ["exp_out", "fc_out", "tanh_out"]
    with pytest.raises(GraphError, match="is made after the place of insertion"), graph.inserting_before(place):
        F.exp(fc_out)
    with pytest.raises(GraphError, match="does not belong"), graph.inserting_before(MODEL.graph.outputs[0]):
        pass
    check(model)


# ---------------------------------------------------------------- arguments and inputs


class Asks(M.Module):
    def __init__(self):
        super().__init__()
        self.a, self.fc = Pair(), M.Linear(4, 4)

    def forward(self, x, y):
        return self.fc(self.a([x, y], other=x))


class Pair(M.Module):
    def forward(self, pair, *, other):
        return pair[0] * pair[1] + other


def test_operands_of_calls_of_modules_are_set_by_name_and_place():
    start = tm.trace_module(Asks(), X, X)
    model = start.clone()
    graph = model.graph
    _, x, y = graph.inputs
    call_of_fc, call_of_a = graph.node("fc_out").expr, graph.node("a_out").expr
    call_of_fc.set_arg(0, x)
    assert call_of_fc.inputs[1] is x
    call_of_fc.set_arg("x", y)
    assert call_of_fc.inputs[1] is y
    call_of_a.set_arg("other", y)
    call_of_a.set_arg("pair_1", x)  # the name of an input of the graph
    assert [n.name for n in call_of_a.inputs] == ["a", "x", "x", "y"]
    call_of_fc.set_arg("x", graph.node("a_out"))
    for name, message in (
        ("self", "'self' is the module that .* calls; put another one there by replace_module"),
        (1, "has 1 argument given by position; got 1"),
        ("inp", "has no parameter 'inp'"),
    ):
        with pytest.raises(OptionError, match=message):
            call_of_fc.set_arg(name, x)
    with pytest.raises(OptionError, match="did you mean 'pair_0'"):
        call_of_a.set_arg("pairs_0", x)
    with pytest.raises(GraphError, match="the first argument of .* is the module; it stays: fc"):
        call_of_fc.set_args_kwargs(x, y)
    for graph in graphs_of(model):
        graph.lint()


def test_a_renamed_input_is_renamed_in_the_call(tmp_path):
    start = tm.trace_module(Asks(), X, X)
    model = start.clone()
    model.graph.rename(model.graph.inputs[1], "image")
    mge.save(model, tmp_path / "net.mgt")
    for form in (model, mge.load(tmp_path / "net.mgt"), model.clone()):
        np.testing.assert_array_equal(form(image=X, y=X).numpy(), start(X, X).numpy())
    assert list(inspect.signature(start.forward).parameters) == list(inspect.signature(model.forward).parameters)
    with pytest.raises(Exception, match="missing a required argument: 'image'"):
        model(x=X, y=X)
    log = model.edit_log
    assert model.graph.undo()
    start(x=X, y=X)
    model(x=X, y=X)
    again = start.clone()
    log.replay(again)
    again(image=X, y=X)


def test_a_renamed_keyword_is_renamed_in_the_call():
    start = tm.trace_module(Pair(), [X, X], other=X)
    model = start.clone()
    model.graph.rename(model.graph.node("other"), "more")
    model.graph.rename(model.graph.node("pair_0"), "first")  # a part of an argument
    np.testing.assert_array_equal(model([X, X], more=X).numpy(), start([X, X], other=X).numpy())
    model.graph.undo()
    model.graph.undo()
    model([X, X], other=X)
    inner = tm.trace_module(Asks(), X, X)
    node = inner.a.graph.node("other")
    node.graph.rename(node, "more")  # its callers say `other`, and go on
    np.testing.assert_array_equal(inner(X, X).numpy().shape, (2, 4))
    inner.graph.lint()


# ---------------------------------------------------------------- refused


class Reads(M.Module):
    def forward(self, x):
        return x * 2 if float(x.sum()) > 0 else x


def test_modules_that_ask_for_values_are_refused():
    model = MODEL.clone()
    with pytest.raises(GraphError, match="Reads asks for values while it is traced, and nodes have none"):
        behind(model, setting("head", Reads()))
    node = model.graph.node("fc")
    with pytest.raises(GraphError, match="Reads asks for values"):
        model.graph.replace_module(node, Reads())
    assert repr(model) == repr(MODEL) and not model.graph.undo()


def test_other_wrong_modules_are_refused():
    model = MODEL.clone()
    graph = model.graph
    with pytest.raises(GraphError, match="cannot be a part of itself"):
        set_attribute(graph.inputs[0], "me", model)
    with pytest.raises(GraphError, match="does not fit Pair: missing a required"):
        graph.replace_module(graph.node("fc"), Pair())
    with graph.insert_exprs():
        graph.inputs[0].unused = M.Linear(4, 4)
        node = graph.inputs[0].unused
    assert node.users == []
    with pytest.raises(GraphError, match="nothing calls Net.unused, so a Inner cannot be traced"):
        graph.replace_module(node, Inner())
    with pytest.raises(GraphError, match="expected a Module or a tensor, got list"):
        set_attribute(graph.inputs[0], "many", [M.ReLU()])


def test_generated_python_of_inserted_and_replaced_composites_computes_the_same(tmp_path):
    model = MODEL.clone()
    graph = model.graph
    out = graph.outputs[0]
    with graph.inserting_after(out):
        graph.inputs[0].tail = M.Sequential(M.Sigmoid(), M.Sequential(M.ReLU()))
        out.replace_all_uses_with(graph.inputs[0].tail(out))
    save_source(model, tmp_path / "built.py")
    spec = importlib.util.spec_from_file_location("built", tmp_path / "built.py")
    assert spec is not None and spec.loader is not None
    built = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(built)
    np.testing.assert_allclose(built.load()(X).numpy(), model(X).numpy(), rtol=1e-6)


FUNCTIONS = {
    "==": lambda x: (x == 0.5) * x,
    "!=": lambda x: (x != np.float32(0.5)) * 2.0,
    "array ==": lambda x: (x == x_like(x)) * 1.0,
    "array *": lambda x: x_like(x) * x,
    "T": lambda x: x.T,
    "size": lambda x: x / x.size,
    "ndim": lambda x: x * x.ndim,
    "len": lambda x: x * (len(x) + len(x.shape)),
}


def x_like(_):
    return np.where(np.arange(8).reshape(2, 4) % 2, 0.5, 2).astype(np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_asked_of_a_node_is_computed(name):
    """As of tensors: comparisons with numbers and arrays, numbers of axes and elements."""
    model = MODEL.clone()
    node = model.graph.outputs[0]
    with model.graph.insert_exprs():
        model.graph.replace_node({node: FUNCTIONS[name](F.round(node * 2) / 2)})
    wanted = FUNCTIONS[name](np.rint(MODEL(X).numpy() * 2) / 2)
    np.testing.assert_allclose(model(X).numpy(), wanted, rtol=1e-6)
    check(model)


def test_nodes_are_looked_for_by_what_they_are():
    model = MODEL.clone()
    first, last = model.graph.node("a.fc_out"), model.graph.outputs[0]
    with model.graph.insert_exprs():
        assert first and last and first != last and last in [first, last] and {last: 1}[last] == 1
    assert len(last.shape) == last.ndim == 2 and last.size == 8


def test_an_input_that_is_used_is_replaced_as_the_error_says(tmp_path):
    model, wider = MODEL.clone(), tensor(np.ones((5, 4), np.float32))
    graph, old = model.graph, model.graph.inputs[1]
    (new,) = graph.reset_inputs(wider)
    files = (lambda: mge.save(model, tmp_path / "x.tm"), lambda: tm.save(model, tmp_path / "x.mgt"))
    for refused in (lambda: model(wider), graph.lint, model.flatten, *files):
        with pytest.raises(GraphError, match="uses 'x', which reset_inputs took away; replace_node puts a new input"):
            refused()
    graph.replace_node({old: new})
    graph.lint()
    wanted = np.repeat(MODEL(F.ones((2, 4))).numpy()[:1], 5, axis=0)
    np.testing.assert_allclose(model(wider).numpy(), wanted, rtol=1e-6)
    assert [node.name for node in graph.nodes(recursive=False)][:2] == ["self", "args"] and "x" not in graph.names
    replayed = MODEL.clone()
    model.edit_log.replay(replayed)
    assert str(replayed.graph) == str(graph)
    while graph.undo():
        pass
    assert str(graph) == str(MODEL.graph)


def test_former_inputs_go_when_nothing_uses_them():
    model = MODEL.clone()
    graph, old = model.graph, model.graph.inputs[1]
    (new,) = graph.reset_inputs(tensor(np.ones((2, 4), np.float32)))
    for expr in old.users:
        expr.replace_inputs({old: new})
    graph.compile()
    graph.lint()
    assert "x" not in graph.names


def test_ops_of_a_model_that_is_traced_again_have_their_qualnames():
    class Rows(M.Module):
        def forward(self, x):
            return x.reshape(x.shape[0], -1)

    again = tm.trace_module(tm.trace_module(Rows(), X), X)
    assert "TracedModule.[def_getvarshape]" in [n.qualname for n in again.graph.nodes()]  # as MegEngine 1.13 says
