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
