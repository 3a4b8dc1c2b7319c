"""Edits that are impossible: refused where they are made, with the culprit named, and without effect."""

import numpy as np
import pytest
from edited_nets import Net, X, first, module, state

import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, MegEngineError, NameInUseError
from megengine.tensor import tensor
from megengine.traced_module.editing.extracting import extract
from megengine.traced_module.editing.rewiring import set_input, set_inputs
from megengine.traced_module.ir.queries import child_graphs

# each tries something impossible; the message must name what is wrong
WRONG = {
    "rename to a used name": (lambda m: m.graph.rename(first(m, "mul_out"), "stem_out"), "already names"),
    "rename to no identifier": (lambda m: m.graph.rename(first(m, "mul_out"), "a-b"), "is not a name"),
    "rename to a digit first": (lambda m: m.graph.rename(first(m, "mul_out"), "1a"), "is not a name"),
    "rename to nothing": (lambda m: m.graph.rename(first(m, "mul_out"), ""), "is not a name"),
    "rename to a keyword": (lambda m: m.graph.rename(first(m, "mul_out"), "class"), "is not a name"),
    "rename through the node": (lambda m: setattr(first(m, "mul_out"), "name", "stem_out"), "already names"),
    "rename a node of another graph": (lambda m: m.graph.rename(first(module(), "mul_out"), "a"), "does not belong"),
    "replace a node by one of another graph": (
        lambda m: m.graph.replace_node({first(m, "mul_out"): first(module(), "mul_out")}),
        "does not belong",
    ),
    "replace a tensor by a module": (
        lambda m: m.graph.replace_node({first(m, "mul_out"): m.graph.inputs[0]}),
        "a module cannot stand for a tensor",
    ),
    "replace by a tensor": (
        lambda m: m.graph.replace_node({first(m, "mul_out"): tensor(np.zeros((2, 4, 6, 6), np.float32))}),
        r"node Tensor of float32\[2, 4, 6, 6\] does not belong .*; graph\.constant\(tensor\) makes one",
    ),
    "replace a name": (
        lambda m: m.graph.replace_node({"mul_out": first(m, "x")}),
        r"it is a str, .*; graph\.node\(path\) gives one",
    ),
    "erase a name": (lambda m: m.graph.erase("mul_out"), r"it is a str, .*; graph\.node\(path\) gives one"),
    "replace by a number": (lambda m: m.graph.replace_node({first(m, "mul_out"): 3}), "does not belong"),
    "replace by a later value": (
        lambda m: m.graph.replace_node({first(m, "stem_out"): first(m, "fc_out")}),
        "nothing is left that could use",
    ),
    "replace where it is used before": (
        lambda m: m.graph.replace_node({first(m, "reshape_out"): first(m, "x"), first(m, "x"): first(m, "mul_out")}),
        "linear: inp has shape",
    ),
    "replace by another shape that no user takes": (
        lambda m: m.graph.replace_node({first(m, "mul_out"): first(m, "x")}),
        "conv2d: x has 3 channels",
    ),
    "replace what is used before the new value": (lambda m: early_user(m), "uses stem_out' before|before"),
    "replace by an integer": (
        lambda m: m.graph.replace_node({first(m, "fc_out"): m.graph.inputs[0]}),
        "a module cannot stand",
    ),
    "erase what is used": (lambda m: m.graph.erase(first(m, "mul_out").expr), "still used by"),
    "erase an output": (lambda m: m.graph.erase(m.graph.outputs[0].expr), "still used by the graph's outputs"),
    "erase an input": (lambda m: m.graph.erase(m.graph.inputs[1].expr), "'x' is an argument of calls of"),
    "erase an input of a submodule": (
        lambda m: child_graphs(m.graph)[0].erase(child_graphs(m.graph)[0].inputs[1].expr),
        "is an argument of calls of",
    ),
    "erase of another graph": (
        lambda m: m.graph.erase(first(module(), "mul_out").expr),
        "it stands in a graph of another model",
    ),
    "erase in the graph around": (
        lambda m: m.graph.erase(child_graphs(m.graph)[0].outputs[0].expr),
        r"it stands in the graph of Net\.blocks\.0: edit that one, as its \.top_graph gives it",
    ),
    "set outputs of another graph": (lambda m: m.graph.reset_outputs([first(module(), "mul_out")]), "does not belong"),
    "set outputs to a module": (
        lambda m: m.graph.reset_outputs([m.graph.inputs[0]]),
        "got 'self', which is a module; expected tensor nodes, one or more",
    ),
    "set outputs to a number": (
        lambda m: m.graph.reset_outputs([3]),
        "does not belong .* it is a int, expected a part",
    ),
    "set outputs to nothing": (lambda m: m.graph.reset_outputs([]), "got nothing; expected tensor nodes, one or more"),
    "add an output of another graph": (lambda m: m.graph.add_output_node(first(module(), "x")), "does not belong"),
    "extract from a submodule": (
        lambda m: extract(child_graphs(m.graph)[0], [], [child_graphs(m.graph)[0].outputs[0]]),
        "is called by another graph",
    ),
    "reset inputs to a number": (lambda m: m.graph.reset_inputs(3), "expected tensors, got int"),
    "set an input to another graph's": (
        lambda m: set_input(m.graph, first(m, "mul_out").expr, 0, first(module(), "x")),
        "does not belong",
    ),
    "set an input to a later value": (
        lambda m: set_input(m.graph, first(m, "mul_out").expr, 0, first(m, "avg_pool2d_out")),
        "'avg_pool2d_out' is made after %4:\tmul_out = .*; use a value made before it",
    ),
    "set an input of another shape": (
        lambda m: set_input(m.graph, first(m, "mul_out").expr, 0, first(m, "x")),
        "changes its results",
    ),
    "too many inputs": (
        lambda m: set_inputs(first(m, "mul_out").expr, [first(m, "x"), first(m, "x")]),
        "has 1 input, got 2",
    ),
    "replace an input that is not one": (
        lambda m: first(m, "mul_out").expr.replace_inputs({first(m, "x"): first(m, "stem_out")}),
        "does not use x; it uses stem_out",
    ),
    "an unknown argument": (
        lambda m: first(m, "avg_pool2d_out").expr.set_arg("kernal_size", 3),
        "no parameter 'kernal_size'; did you mean 'kernel_size'",
    ),
    "an argument that the call refuses": (
        lambda m: first(m, "avg_pool2d_out").expr.set_arg("kernel_size", 99),
        "pool",
    ),
    "a tensor as an argument": (
        lambda m: first(m, "mul_out").expr.set_args_kwargs(first(m, "stem_out"), tensor(X)),
        "a tensor among the arguments",
    ),
    "too few arguments": (
        lambda m: first(m, "mul_out").expr.set_args_kwargs(),
        r"set_args_kwargs: %4:\tmul_out = .*: missing a required argument: 'self'; expected \(self",
    ),
    "too many arguments": (
        lambda m: first(m, "avg_pool2d_out").expr.set_args_kwargs(first(m, "blocks_1_out"), 6, window=3),
        r"set_args_kwargs: .*avg_pool2d_out = .*unexpected keyword argument 'window'; expected \(inp",
    ),
    "an argument of a layer that is its own": (
        lambda m: first(m, "stem_out").expr.set_arg("stride", 2),
        "has no parameter 'stride'; a Conv2d keeps its own settings: put another one there by replace_module",
    ),
    "an unlike argument": (
        lambda m: first(m, "mul_out").expr.set_arg("factor", 2),
        "has no parameter 'factor'; expected one of self, value",
    ),
    "an argument made later": (
        lambda m: first(m, "mul_out").expr.set_args_kwargs(first(m, "stem_out"), first(m, "avg_pool2d_out")),
        "'avg_pool2d_out' is made after %4:\tmul_out = .*; use a value made before it",
    ),
    "a layer in place of nothing": (
        lambda m: m.graph.replace_module(m.graph.inputs[0], M.ReLU()),
        "does not read a submodule; give the node of a layer",
    ),
    **{
        f"{name} of a node": (
            lambda m, ask=ask: insert(m, lambda: ask(first(m, "stem_out"))),
            f"{name}.* 'stem_out' is part of a graph and has no value; compute with it inside .*node.spec.shape",
        )
        for name, ask in {
            "int": int,
            "float": float,
            "numpy": lambda node: node.numpy(),
            "array": np.asarray,
        }.items()
    },
    "a branch on values": (
        lambda m: insert(m, lambda: 1 if first(m, "stem_out") > 0 else 2),
        "bool.node.: node 'gt_out' is part of a graph and has no value; .*F.where",
    ),
    "a function outside of an insertion": (
        lambda m: F.relu(first(m, "stem_out")),
        "node 'stem_out' is part of a graph and has no value; compute with it inside `with graph.insert_exprs",
    ),
    "a number in place of a layer": (
        lambda m: m.graph.replace_module(first(m, "stem"), 3),
        "expected a Module, got int",
    ),
    "a model in place of a layer": (lambda m: m.graph.replace_module(first(m, "stem"), Net()), "conv2d: x has"),
    "a layer that does not fit": (
        lambda m: m.graph.replace_module(first(m, "stem"), M.Conv2d(7, 4, 1)),
        "conv2d: x has 3 channels",
    ),
    "a layer whose result does not fit": (
        lambda m: m.graph.replace_module(first(m, "stem"), M.Conv2d(3, 9, 1)),
        "conv2d: x has 9 channels",
    ),
    "an attribute that is a method": (
        lambda m: setattr(m.graph.inputs[0], "forward", M.ReLU()),
        "already has an attribute 'forward'",
    ),
    "an attribute that is a number": (
        lambda m: setattr(m.graph.inputs[0], "gain", 3),
        "expected a Module or a tensor, got int",
    ),
    "a value used outside of inserting": (lambda m: first(m, "mul_out") + 1, "inside `with graph.insert_exprs"),
    "a method outside of inserting": (lambda m: first(m, "mul_out").reshape(-1), "inside `with graph.insert_exprs"),
    "a module called outside of inserting": (lambda m: first(m, "stem")(first(m, "x")), "called outside"),
    "inserting behind another graph's": (lambda m: insert(m, lambda: None, first(module(), "x").expr), "not belong"),
    "inserting twice": (lambda m: insert(m, lambda: insert(m, lambda: None)), "already being inserted"),
    "an op that does not fit": (lambda m: insert(m, lambda: F.matmul(first(m, "x"), first(m, "fc_out"))), "matmul"),
    "a node of another graph in a call": (
        lambda m: insert(m, lambda: F.relu(first(module(), "x"))),
        "does not belong",
    ),
    "a value made behind the place": (
        lambda m: insert(m, lambda: F.relu(first(m, "fc_out")), before=first(m, "stem_out")),
        "made after the place",
    ),
    "erase a node": (lambda m: m.graph.erase(first(m, "fc_out")), "'fc_out' is a node; expected .* node.expr"),
    "an input of no shape": (lambda m: m.graph.add_input_node("ab"), "shape is 'ab'; expected lengths, 0 or more each"),
    "an input of a negative length": (
        lambda m: m.graph.add_input_node((2, -1)),
        r"shape is \(2, -1\); expected lengths",
    ),
    "an input of half a length": (lambda m: m.graph.add_input_node((2.5,)), r"shape is \(2.5,\); expected lengths"),
    "a submodule that is not there": (
        lambda m: insert(m, lambda: m.graph.inputs[0].steam(first(m, "x"))),
        "no attribute 'steam'; did you mean 'stem'",
    ),
}


def early_user(m):
    with m.graph.insert_exprs(first(m, "stem_out").expr):
        F.exp(first(m, "stem_out"))
    with m.graph.insert_exprs(first(m, "avg_pool2d_out").expr):
        made = F.neg(first(m, "stem_out"))
    m.graph.undo(), m.graph.undo()
    with m.graph.transaction():
        with m.graph.insert_exprs(first(m, "stem_out").expr):
            F.exp(first(m, "stem_out"))
        with m.graph.insert_exprs(first(m, "avg_pool2d_out").expr):
            made = F.neg(first(m, "stem_out"))
        m.graph.replace_node({first(m, "stem_out"): made})


def insert(m, body, before=None):
    with m.graph.insert_exprs() if before is None else m.graph.inserting_before(before):
        return body()


@pytest.mark.parametrize("name", WRONG)
def test_wrong_edits_are_refused_and_change_nothing(name):
    m = module()
    edit, message = WRONG[name]
    before = state(m)
    with pytest.raises((MegEngineError, AttributeError, TypeError, ValueError), match=message):
        edit(m)
    assert state(m) == before
    m.graph.lint()
    assert m.graph._inserting is None


NAMES = {  # every call that is given a name, or something else, where a node or an expression is expected
    "insert_exprs": lambda g, name: g.insert_exprs(name),
    "inserting_after": lambda g, name: g.inserting_after(name),
    "inserting_before": lambda g, name: g.inserting_before(name),
    "erase": lambda g, name: g.erase(name),
    "rename": lambda g, name: g.rename(name, "y"),
    "replace_node": lambda g, name: g.replace_node({name: g.node("x")}),
    "replace_node by": lambda g, name: g.replace_node({g.node("x"): name}),
    "replace_all_uses_with": lambda g, name: g.node("x").replace_all_uses_with(name),
    "replace_module": lambda g, name: g.replace_module(name, M.ReLU()),
    "get_dep_exprs": lambda g, name: g.get_dep_exprs(name),
    "get_dep_exprs of several": lambda g, name: g.get_dep_exprs([name]),
    "constant": lambda g, name: g.constant(np.ones(3), before=name),
    "apply": lambda g, name: g.apply("relu", name),
    "apply behind": lambda g, name: g.apply("relu", g.node("mul_out"), after=name),
    "add_output_node": lambda g, name: g.add_output_node(name),
    "reset_outputs": lambda g, name: g.reset_outputs([name]),
    "value_of": lambda g, name: g.value_of(name),
    "extract": lambda g, name: extract(g, name, "fc_out"),
    "extract to": lambda g, name: extract(g, ["mul_out"], [name]),
    "node": lambda g, name: g.node(name),
    "get_node_by_name": lambda g, name: g.get_node_by_name(name).as_unique(),
    "set_watch_points": lambda g, name: g.owner.set_watch_points(name),
    "set_end_points": lambda g, name: g.owner.set_end_points([name]),
    "set_input": lambda g, name: set_input(g, g.node("mul_out").expr, 0, name),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_mistyped_get_the_nearest_one_at_the_call(name):
    m = module()
    before = state(m)
    with pytest.raises(MegEngineError, match=r"'avg_pool_out'.*; did you mean 'avg_pool2d_out'\?"):
        NAMES[name](m.graph, "avg_pool_out")
    assert state(m) == before


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda g: g.insert_exprs("fc_out"), r"it is a str, .*; graph\.node\(path\) gives one$"),
        (lambda g: g.insert_exprs(first(module(), "fc_out").expr), "it stands in a graph of another model"),
        (lambda g: g.rename(g.node("fc_out").expr, "y"), "fc_out = .* is an expression; expected a node: expr.output"),
        (lambda g: g.node(g.outputs[0]), "got fc_out, a TensorNode; expected the name of a node"),
        (lambda g: g.value_of("blocks.0.relu_out", through="blocks.0"), "through is 'blocks.0'; expected the call"),
        (lambda g: g.owner.set_watch_points(g.outputs[0].expr), "is not a tensor node .*; its outputs are nodes"),
        (lambda g: g.get_expr_by_id("fc_out"), "got 'fc_out'; expected ids, which are integers"),
        (lambda g: g.get_function_by_type(F.relu6).as_unique(), "found 0 .* for 'relu6'; did you mean 'relu'"),
        (lambda g: g.get_method_by_type("reshap").as_unique(), "'reshap'; did you mean 'reshape'.; there are __"),
        (lambda g: g.get_module_by_type(M.Conv3d).as_unique(), "'Conv3d'; did you mean 'Conv2d'.; there are "),
    ],
)
def test_what_is_no_part_or_not_there_is_told_with_what_is_expected(ask, message):
    with pytest.raises(MegEngineError, match=message):
        ask(module().graph)


def test_wrong_edits_are_many_and_have_types_that_users_catch():
    assert len(WRONG) >= 50
    m = module()
    with pytest.raises(NameInUseError):
        m.graph.rename(first(m, "mul_out"), "stem_out")
    with pytest.raises(AssertionError):
        m.graph.rename(first(m, "mul_out"), "stem_out")
    with pytest.raises(GraphError, match="has no node 'mul_ou'; did you mean 'mul_out'"):
        m.graph.node("mul_ou")
    with pytest.raises(AssertionError, match="expected exactly one item, found 0"):
        m.graph.get_node_by_name("nothing").as_unique()


@pytest.mark.parametrize("step", ["undo", "redo"])
@pytest.mark.parametrize("body", ["transaction", "insertion"])
def test_the_history_stands_still_while_a_body_is_open(body, step):
    m = module()
    graph = m.graph
    with graph.insert_exprs():
        made = F.relu(graph.outputs[0])
    if step == "redo":
        graph.rename(made, "result")
        graph.undo()
    before = state(m)
    opened = graph.transaction("mine") if body == "transaction" else graph.insert_exprs()
    with pytest.raises(GraphError, match=rf"{step}: '(mine|insert_exprs)' is open; leave its `with` body"), opened:
        graph.reset_outputs([made])  # needs what undo would take away
        getattr(graph, step)()
    assert state(m) == before
    graph.lint()
