"""Habits of programs that change the inputs, results and names of graphs (see habits.py)."""

import numpy as np
from graph_habits import block

HABITS = {}


def habit(function):
    """Keep a function under its name."""
    HABITS[function.__name__] = function
    return function


def ones(mge, *shape):
    """A tensor of that shape."""
    return mge.tensor(np.ones(shape, np.float32))


@habit
def new_inputs_take_the_place_of_former_ones(mge):
    net = block(mge)
    graph, former = net.graph, net.graph.inputs[1:]
    new = graph.reset_inputs(ones(mge, 4, 3), ones(mge, 4, 3))
    waiting = str(graph)
    with graph.insert_exprs():
        first = new[0] * 2
        second = new[1] + first
    graph.replace_node({former[0]: first, former[1]: second})
    graph.compile()
    names = [node._name for node in graph.inputs]
    return [
        type(new).__name__,
        waiting.count("(x"),
        str(graph).count("(x"),
        names,
        net(ones(mge, 4, 3), ones(mge, 4, 3)),
    ]


@habit
def inputs_are_reset_twice(mge):
    net, found = block(mge), []
    graph = net.graph
    for given, named in (([ones(mge, 2, 3)], {}), ([[ones(mge, 2, 3)] * 2], {"k": ones(mge, 1)})):
        found.append([node._name for node in graph.reset_inputs(*given, **named)])
        found.append([node._name for node in graph.inputs])
    return found


@habit
def ends_of_graphs_are_lists(mge):
    net = block(mge)
    graph = net.graph
    ends, results = graph.inputs, graph.outputs
    names = [[node._name for node in some] for some in (ends[1:], ends + results, results + [ends[0]], ends[::-1])]
    tests = [isinstance(ends, list), isinstance(results, list), ends is graph.inputs, results == [results[0]]]
    tests += [ends[1] in ends, ends != results, ends.copy() == ends, sorted(ends, key=str)[0] is ends[0]]
    graph.reset_outputs(results)
    kind = type(net(ones(mge, 2, 3), ones(mge, 2, 3))).__name__
    return [*names, *tests, ends.index(ends[2]), ends.count(ends[1]), kind, len([0] + ends + [1])]


@habit
def operands_results_and_users_are_lists(mge):
    net = block(mge)
    graph = net.graph
    (call,) = [expr for expr in graph.exprs(recursive=False) if expr.outputs[0]._name == "mul_out"]
    parts = call.inputs, call.outputs, graph.inputs[2].users
    kinds = [isinstance(part, list) for part in parts] + [part == [part[0]] for part in parts]
    shown = [str(part) for part in parts[:2]]
    return kinds, shown, graph.inputs[2].users == [call]


@habit
def texts_as_names(mge):
    net = block(mge)
    node, found = net.graph.outputs[0], []
    for text in ("a.b c-d", "3a", "class", "é_1", "conv1.0/weight:0", "list", "None", "..", "a__b", "x", 3, None):
        try:
            node.name = text
        except AssertionError:
            found.append("refused")
        found.append([node.name, str(node)])
    return found, str(net.graph).count("a__b")
