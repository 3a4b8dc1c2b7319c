"""Values by name, path and qualname; names that submodules share with traced modules themselves."""

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import traced_module as tm
from megengine.core.errors import ArgumentError, GraphError, NameInUseError, OptionError
from megengine.tensor import tensor
from megengine.traced_module.formats.tm_versions import BOOKKEEPING
from megengine.traced_module.ir.names import identifier
from megengine.traced_module.ir.node import ModuleNode
from megengine.traced_module.reserved import state_names
from megengine.traced_module.traced import TracedModule

x = tensor(np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32))


class Inner(M.Module):
    def __init__(self):
        super().__init__()
        self.fc = M.Linear(4, 4)

    def forward(self, x):
        return F.relu(self.fc(x))


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.a = Inner()
        self.b, self.many = self.a, [M.Linear(4, 2), Inner()]

    def forward(self, x):
        y = self.a(x)
        y = self.b(y)
        return {"p": self.many[0](y), "q": [y, self.many[1](y)]}


MODEL = tm.trace_module(Net(), x)


def test_points_are_given_by_name_path_and_qualname():
    model = MODEL.clone()
    inner = model.a.graph.get_function_by_type(F.relu).as_unique().output
    for name in ("a.relu_out", inner.qualname):
        model.set_watch_points(name)
        assert model.watch_points == [inner]
        model.set_end_points([name, "b_out"])
        assert [value.shape for value in model(x)] == [(2, 4), (2, 4)]
    model.clear_end_points()
    out = model(x)
    np.testing.assert_array_equal(model.watch_node_value[inner].numpy(), out["q"][0].numpy())  # of the second call


def test_all_values_of_a_shared_module_are_seen():
    seen = []
    MODEL.run([x], lambda node, value: seen.append(value.numpy()) if node.qualname.startswith("Net.a.[func") else None)
    first = MODEL.a(x).numpy()
    np.testing.assert_array_equal(seen[0], first)
    np.testing.assert_array_equal(seen[1], MODEL.a(tensor(first)).numpy())
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("b_uot", "; did you mean 'b_out'"),
        ("relu_out", "; a submodule has it: 'a.relu_out' and 1 more; give that path, or use get_node_by_name"),
        ("many.1.relu_ot", "; did you mean 'many.1.relu_out'"),
        ("Net.a.[func_relo]", r"; did you mean 'Net.a.\[func_relu\]'"),
        ("nothing like it", "'nothing like it'$"),
    ],
)
def test_names_that_a_graph_does_not_have(name, hint):
    with pytest.raises(GraphError, match=f"graph 'Net' has no node .*{hint}"):
        MODEL.graph.node(name)


WRONG = {
    "a.relu_ot": "Net has no value 'a.relu_ot'; did you mean 'a.relu_out'",
    "b_uot": "Net has no value 'b_uot'; did you mean 'b_out'",
    "b.*": "Net has no value 'b.*'; one name is taken here, and patterns by graph.get_node_by_name",
    "Net.a.[func_rel]": r"did you mean 'Net.a.\[func_relu\]'",
    "relu_out": "2 values are called 'relu_out'; give one by its path: a.relu_out, many.1.relu_out",
}


@pytest.mark.parametrize("name", WRONG)
def test_unknown_names_get_the_nearest(name):
    model = MODEL.clone()
    for set_points in (model.set_watch_points, model.set_end_points):
        with pytest.raises(OptionError, match=WRONG[name]):
            set_points(["a.relu_out", name])
    assert model.watch_points == [] == model.end_points


def test_as_unique_of_an_unknown_name_gives_the_nearest():
    with pytest.raises(GraphError, match=r"found 0 \(nothing\) for 'relu_uot'; did you mean 'relu_out'"):
        MODEL.graph.get_node_by_name("relu_uot").as_unique()
    with pytest.raises(GraphError, match=r"found 0 \(nothing\) for 'zzzz'$"):
        MODEL.graph.nodes().name("zzzz").as_unique()


def test_wrong_calls_name_the_module_and_what_it_takes():
    for call, message in (
        (lambda: MODEL(x, x), r"Net: too many positional arguments; got \(float32\[2, 4\], .*; expected Net\(x\)"),
        (lambda: MODEL(), r"Net: missing a required argument: 'x'; got \(\); expected Net\(x\)"),
        (lambda: MODEL(z=x), r"Net: missing a required argument: 'x'; got \(z=float32"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()
    with pytest.raises(GraphError, match=r"Net was not traced with these arguments \(\[1, 2\]\); it knows \(x\)"):
        MODEL([1, 2])


def named(name: str) -> M.Module:
    """A net whose only layer has this name."""

    class Holder(M.Module):
        def __init__(self):
            super().__init__()
            setattr(self, name, M.Linear(4, 4))

        def forward(self, x):
            return F.relu(getattr(self, name)(x))

    return Holder()


OWN = sorted(n for n in vars(TracedModule) if not n.startswith("_") and not hasattr(M.Module, n))


@pytest.mark.parametrize("name", OWN)
def test_layers_may_be_called_as_methods_of_traced_modules_are(name, tmp_path):
    net = named(name)
    model = tm.trace_module(net, x)
    assert f'getattr(self, "{name}") -> (Linear)' in repr(model)
    assert set(model.state_dict()) == {f"{name}.weight", f"{name}.bias"}
    wanted = net(x).numpy()
    forms = [model, model.flatten(), model.clone(), tm.optimize(model, "all"), tm.lower(model)]
    forms.append(tm.trace_module(model, x))
    for suffix in (".mgt", *([] if name in BOOKKEEPING else [".tm"])):
        mge.save(model, tmp_path / f"net{suffix}")
        forms.append(mge.load(tmp_path / f"net{suffix}"))
    if name in BOOKKEEPING:
        with pytest.raises(GraphError, match=rf"{name}.*give it another name, or write .mgt"):
            mge.save(model, tmp_path / "net.tm")
    for form in forms:
        np.testing.assert_allclose(form(x).numpy(), wanted, rtol=1e-6)
    assert model.summary().parameters == 20 and len(model.graphs) == 1
    node = model.graph.get_module_by_type(M.Linear).as_unique()
    model.graph.replace_module(node, M.Linear(4, 4, bias=False))  # pyright: ignore[reportArgumentType]
    assert set(model.state_dict()) == {f"{name}.weight"}
    assert model.graph.undo() and node.owner is getattr(net, name)


NEEDED = ("_run", "_attributes", "_entries")  # a Module does not work without its own method of that name
MODULES_OWN = sorted(n for n in dir(M.Module) if not n.startswith("__") and n not in NEEDED)


@pytest.mark.parametrize("name", MODULES_OWN)
def test_layers_may_be_called_as_methods_of_modules_are(name, tmp_path):
    """What a traced module does itself does not depend on the names of its submodules."""
    net = named(name)
    wanted = net(x).numpy()
    model = tm.trace_module(net, x)
    forms = [model, model.flatten(), tm.trace_module(model, x)]
    for suffix in (".mgt", ".tm"):
        mge.save(model, tmp_path / f"net{suffix}")
        forms.append(mge.load(tmp_path / f"net{suffix}"))
    for form in forms:
        np.testing.assert_array_equal(form(x).numpy(), wanted)
        assert sorted(form.state_dict()) == [f"{name}.bias", f"{name}.weight"]
        assert not isinstance(getattr(form, name), M.Module)
        assert isinstance(form.graph.get_module_by_type(M.Linear).as_unique().owner, M.Linear)


class Around(M.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = {"a": [inner]}

    def forward(self, x):
        return self.inner["a"][0](x)


HOOKS = {"_forward_hooks", "_forward_pre_hooks"}  # a Module calls what it finds there


@pytest.mark.parametrize("name", sorted(state_names(TracedModule) - HOOKS))
def test_names_of_their_state_are_refused(name):
    """With the attribute and the module: they cannot be had in another way."""
    why = f"a submodule or tensor called '{name}', which is an attribute of every traced module; give it another name"
    with pytest.raises(GraphError, match=f"trace_module: Holder has {why}"):
        tm.trace_module(named(name), x)
    with pytest.raises(GraphError, match=rf"trace_module: inner\.a\.0 \(Holder\) has {why}"):
        tm.trace_module(Around(named(name)), x)


@pytest.mark.parametrize("name", sorted(BOOKKEEPING - state_names(TracedModule)))
def test_names_that_files_of_megengine_use_are_refused_by_them(name, tmp_path):
    model = tm.trace_module(Around(named(name)), x)
    mge.save(model, tmp_path / "net.mgt")
    assert repr(mge.load(tmp_path / "net.mgt")) == repr(model)
    with pytest.raises(GraphError, match=rf"Around\.inner\.a\.0 has .* called '{name}', which MegEngine's files use"):
        mge.save(model, tmp_path / "net.tm")
    assert not (tmp_path / "net.tm").exists()


@pytest.mark.parametrize("name", sorted(n for n in dir(ModuleNode) if not n.startswith("_") and n == identifier(n)))
def test_new_layers_are_not_called_as_attributes_of_nodes(name):
    """They could not be read as `node.name` afterwards."""
    model = tm.trace_module(named("layer"), x)
    node = model.graph.inputs[0]
    before = repr(model)
    with pytest.raises((NameInUseError, GraphError, AttributeError), match=name):
        setattr(node, name, M.Linear(4, 4))
    assert repr(model) == before and not model.graph.undo()


def test_hooks_of_a_copy_are_its_own():
    model = tm.trace_module(Net(), x)
    model.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    copy = model.clone()
    copy.register_forward_hook(lambda module, inputs, outputs: outputs["p"] * 3)
    plain = model(x)["p"].numpy()
    assert plain.any()
    np.testing.assert_array_equal(copy(x).numpy(), plain * 3)
    model._forward_pre_hooks.clear()
    np.testing.assert_array_equal(copy(x).numpy(), plain * 3)
    assert not np.array_equal(model(x)["p"].numpy(), plain)


@pytest.mark.parametrize("suffix", [".mgt", ".tm"])
def test_names_with_underlines_are_names(suffix, tmp_path):
    """Only those that Python gives every object are refused."""

    class Holder(M.Module):
        def __init__(self, name):
            super().__init__()
            self.parts = {name: M.Linear(4, 4)}

        def forward(self, x):
            return next(iter(self.parts.values()))(x)

    net = Holder("__class__!")
    model = tm.trace_module(net, x)
    mge.save(model, tmp_path / f"net{suffix}")
    for form in (model, model.flatten(), mge.load(tmp_path / f"net{suffix}")):
        np.testing.assert_array_equal(form(x).numpy(), net(x).numpy())
        assert sorted(form.state_dict()) == ["parts.__class__!.bias", "parts.__class__!.weight"]
    with pytest.raises(GraphError, match=r"parts \(dict\) has a submodule or tensor called '__class__', which is an"):
        tm.trace_module(Holder("__class__"), x)


def test_filters_are_narrowed_as_in_megengine():
    graph = MODEL.graph
    assert graph.exprs().call_function(F.relu).as_list() == graph.get_function_by_type(F.relu).as_list() != []
    assert [e.outputs[0].name for e in graph.exprs().call_method("__call__").expr_id([3]).as_list()] == ["a_out"]
    assert [n.name for n in graph.nodes(recursive=False).type(M.Linear)] == ["many_0"]
    inner = [n.qualname for n in graph.nodes().type((TracedModule, M.Linear))]
    assert inner == [n.qualname for n in graph.nodes() if isinstance(n, ModuleNode)]
    assert [n.qualname for n in graph.get_module_by_type(TracedModule)] == [
        n.qualname for n in graph.nodes() if isinstance(n, ModuleNode) and isinstance(n.owner, TracedModule)
    ]
    for call in (lambda: graph.exprs().call_function("relu"), lambda: graph.nodes().type("Linear")):
        with pytest.raises(GraphError, match="expected a (function|class)"):
            call()


def test_single_expressions_are_interpreted():
    inner = MODEL.a.graph
    fc, call, relu = (e for e in inner.exprs() if not isinstance(e.outputs[0].expr, tm.expr.Input))
    (layer,) = fc.interpret(MODEL.a)
    assert layer is MODEL.a.fc
    (y,) = call.interpret(layer, x)
    np.testing.assert_array_equal(relu.interpret(y)[0].numpy(), MODEL.a(x).numpy())
    op = tm.lower(MODEL).graph.exprs().as_list()[-1]
    assert len(op.interpret(*(tensor(np.zeros(n.shape, np.float32)) for n in op.inputs))) == 1
    with pytest.raises(GraphError, match=r"interpret: .* takes 1 value, for .*; got 2"):
        relu.interpret(y, y)
    with pytest.raises(GraphError, match="is given, not computed"):
        inner.inputs[1].expr.interpret()


def test_paths_are_those_of_the_copies_in_a_flattened_module():
    model, flat = MODEL.clone(), MODEL.flatten()
    for path in ("many.1.relu_out", "many.1.fc_out", "many.1.fc", "a.fc_out"):
        node = flat.graph.node(path)
        assert node.graph is flat.graph
        if not isinstance(node, ModuleNode):
            for one in (model, flat):
                one.set_end_points(path)  # of a shared part the first value
            np.testing.assert_array_equal(model(x)[0].numpy(), flat(x)[0].numpy())
    flat.clear_end_points()
    flat.graph.add_output_node("many.1.relu_out")
    want = MODEL(x)
    np.testing.assert_array_equal(flat(x)[1].numpy(), want["q"][1].numpy())
