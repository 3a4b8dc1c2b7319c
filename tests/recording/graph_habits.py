"""Habits of programs that look at graphs and change them, and of dtypes that meet (see habits.py)."""

import numpy as np

HABITS = {}


def habit(function):
    """Keep a function under its name."""
    HABITS[function.__name__] = function
    return function


def block(mge):
    """A network of a block and a layer, and its traced form."""

    class Block(mge.module.Module):
        def __init__(self):
            super().__init__()
            self.fc = mge.module.Linear(3, 3)

        def forward(self, x):
            return mge.functional.relu(self.fc(x)) + x

    class Net(mge.module.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Block(), mge.module.Linear(3, 2)
            for p in self.parameters():
                p[...] = mge.tensor(np.resize(np.arange(7, dtype=np.float32) / 7 - 0.4, p.shape))

        def forward(self, x, y):
            y = self.a(x) * y
            return self.b(y)

    x = np.ones((2, 3), np.float32)
    return mge.traced_module.trace_module(Net(), mge.tensor(x), mge.tensor(x))


@habit
def what_nodes_depend_on(mge):
    net, found = block(mge), []
    for graph in (net.graph, net.flatten().graph):
        nodes = [node for node in graph.nodes(recursive=False) if "Tensor" in type(node).__name__]
        pairs = [nodes[k : k + 2][::step] for k in range(len(nodes) - 1) for step in (1, -1)]
        several = [*nodes, *pairs, graph.outputs]
        found += [[expr.outputs[0]._name for expr in graph.get_dep_exprs(some)] for some in several]
    return found


@habit
def a_traced_module_is_printed_as_a_module(mge):
    net = block(mge)
    return [str(net), str(net.a), str(net.flatten())]


@habit
def a_traced_module_is_inserted(mge):
    net, x = block(mge), mge.tensor(np.ones((2, 3), np.float32))
    net.act = mge.traced_module.trace_module(mge.module.Sequential(mge.module.Sigmoid()), x)
    graph = net.graph
    (call,) = [expr for expr in graph.exprs(recursive=False) if expr.outputs[0]._name == "a_out"]
    with graph.insert_exprs(call):
        put = graph.inputs[0].act(call.outputs[0])
    graph.replace_node({call.outputs[0]: put})
    graph.compile()
    y = mge.tensor(np.ones((2, 3), np.float32))
    return [net(x, y), net.flatten()(x, y), len(graph.exprs(recursive=False).as_list())]


@habit
def dtypes_that_meet_where_values_are_chosen(mge):
    mask, found = mge.tensor([True, False]), []
    kinds = ("float32", "float16", "bool", "uint8", "int8", "int16", "int32")
    for one in kinds:
        for other in kinds:
            if one != other or one != "bool":
                pair = [mge.tensor([1, 0]).astype(kind) for kind in (one, other)]
                if {one, other} not in ({"uint8", "int8"}, {"uint8", "int16"}, {"uint8", "int32"}):
                    found.append(str(np.dtype(mge.functional.where(mask, *pair).dtype)))
    return found


@habit
def numbers_are_stacked(mge):
    F, one, two = mge.functional, mge.tensor(1.0), mge.tensor(2.0)
    total = mge.tensor([1.0, 2.0]).sum()
    return [F.stack([one, two]), F.stack([one, two], axis=1), F.stack([total, one]).mean(), F.stack([total])]
