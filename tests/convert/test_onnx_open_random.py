"""Random graphs of operators on shapes, with open axes, compared with ONNX Runtime at sizes beside the example."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
from megengine.plan import compile as compile_plan
from tests.helpers.onnx_runtime import session_of

FLOAT = TensorProto.FLOAT
END = 1 << 62


class Random:
    """A graph under construction: every step takes the value and its rank, and gives those of the next one."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.constants = [], []
        self.rank = int(self.rng.integers(2, 4))

    def add(self, kind, *inputs, **attrs):
        name = f"v{len(self.nodes)}"
        names = [self.ints(one) if isinstance(one, (list, int)) else one for one in inputs]
        self.nodes.append(helper.make_node(kind, names, [name], **attrs))
        return name

    def ints(self, values):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, np.int64), name))
        return name

    def sizes(self, x, rank):
        shape = self.add("Shape", x)
        return [self.add("Slice", shape, [axis], [axis + 1]) for axis in range(rank)]

    def formula(self, size):
        kind = self.rng.integers(6)
        if kind < 4:
            halved = self.add("Div", size, [2])
            return [size, self.add("Sub", size, [2]), halved, self.add("Add", halved, [1])][kind]
        return self.add("Min", size, [7]) if kind == 4 else self.add("Max", self.add("Sub", size, [6]), [2])

    def step(self, x, rank):
        kind, axis = int(self.rng.integers(13)), int(self.rng.integers(rank))
        sizes = self.sizes(x, rank)
        before, size, behind = sizes[:axis], sizes[axis], sizes[axis + 1 :]
        if kind == 0:
            return self.add("Slice", x, [0], self.formula(size), [axis]), rank
        if kind == 1:
            first, step = int(self.rng.choice([1, -3, -5])), int(self.rng.integers(1, 3))
            return self.add("Slice", x, [first], [END], [axis], [step]), rank
        if kind == 2:
            return self.add("Slice", x, [-1], [-END], [axis], [-int(self.rng.integers(1, 3))]), rank
        if kind == 3:
            parts = [[0] * rank, [0] * axis, self.add("Mod", size, [3]), [0] * (rank - axis - 1)]
            parts = [self.ints(p) if isinstance(p, list) else p for p in parts if p]
            return self.add("Pad", x, self.add("Concat", *parts, axis=0)), rank
        if kind == 4:
            return self.add("Transpose", x, perm=[int(i) for i in self.rng.permutation(rank)]), rank
        if kind == 5:
            return self.add("Concat", x, x, axis=axis), rank
        if kind == 6 and rank < 4:
            return self.add("Unsqueeze", x, [axis]), rank + 1
        if kind == 7 and rank > 2 and behind:
            joined = [*before, self.add("Mul", size, behind[0]), *behind[1:]]
            return self.add("Reshape", x, self.add("Concat", *joined, axis=0)), rank - 1
        if kind == 8 and rank < 4:
            halves = [*before, self.ints([2]), self.ints([-1]), *behind]
            return self.add(
                "Reshape", self.add("Concat", x, x, axis=axis), self.add("Concat", *halves, axis=0)
            ), rank + 1
        if kind == 9:
            places = self.add("Cast", self.add("Range", 0, self.add("Squeeze", size, [0]), 1), to=FLOAT)
            return self.add("Add", x, self.add("Unsqueeze", places, list(range(1, rank - axis)))), rank
        if kind == 10:
            return self.add("Gather", x, self.add("Sub", size, [1]), axis=axis), rank
        if kind == 11:
            return self.add("Div", self.add("ReduceSum", x, [axis]), self.add("Cast", size, to=FLOAT)), rank
        return self.add("Trilu", x, upper=int(self.rng.integers(2))), rank

    def model(self):
        x, rank = self.add("Identity", "x"), self.rank
        for _ in range(int(self.rng.integers(2, 7))):
            x, rank = self.step(x, rank)
        given = helper.make_tensor_value_info("x", FLOAT, ["a", "b", "c"][: self.rank])
        made = helper.make_tensor_value_info(self.add("Identity", x), FLOAT, None)
        graph = helper.make_graph(self.nodes, "net", [given], [made], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def runtime(proto):
    session = session_of(proto, log_severity_level=4)
    return lambda x: session.run(None, {"x": x})[0]


def check(seed):
    random = Random(seed)
    proto = random.model()
    net, wanted = load(proto), runtime(proto)
    plan, exported = compile_plan(net), runtime(to_model(net))
    for shape in ((7, 9, 8), (12, 16, 10), (20, 5, 6)):
        x = random.rng.normal(0, 1, shape[: random.rank]).astype(np.float32)
        want = wanted(x)
        for run in (lambda x: net(x).numpy(), lambda x: plan(x)[0], exported):
            np.testing.assert_allclose(run(x), want, rtol=1e-4, atol=1e-4, err_msg=f"{seed} {shape}")


@pytest.mark.parametrize("seed", range(8))
def test_a_random_graph_equals_the_runtime(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 300, 20))
def test_random_graphs_equal_the_runtime(first):
    for seed in range(first, first + 20):
        check(seed)
