"""Names of imports, parameters, variables and classes of a generated file do not hide each other."""

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from source_nets import Gain, swish
from written_source import written

import megengine.functional as F
import megengine.module as M
from megengine.tensor import tensor
from megengine.traced_module import trace_module

X = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
Pair = namedtuple("Pair", "low high")


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.part = M.Sequential(Gain(4), M.ReLU())

    def forward(self, x):
        y = F.exp(-F.abs(x))
        return Pair(self.part(swish(y)), OrderedDict(b=y + x, a=y * 2))


def leaves(result):
    if isinstance(result, dict):
        return [leaf for key in sorted(result) for leaf in leaves(result[key])]
    return [leaf for part in result for leaf in leaves(part)] if isinstance(result, tuple) else [result.numpy()]


@pytest.mark.parametrize("name", ["swish", "Pair", "OrderedDict", "Gain", "Net", "load", "F", "weights", "Tensor"])
@pytest.mark.parametrize("node", ["x", "exp_out", "swish_out", "mul_out"])
def test_a_value_has_the_name_of_what_is_imported(node, name, tmp_path):
    traced = trace_module(Net().eval(), tensor(X))
    traced.graph.rename(traced.graph.node(node), name)
    made = written(traced, tmp_path / "net.py")(tensor(X))
    for got, want in zip(leaves(made), leaves(traced(tensor(X))), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_class_has_the_name_of_a_layer_that_is_imported(tmp_path):
    kinds = {}
    exec("class Gain(M.Module):\n    def forward(self, x):\n        return self.inner(x) * 2", {"M": M}, kinds)
    outer = kinds["Gain"]()
    outer.inner = Gain(4)
    traced = trace_module(outer.eval(), tensor(X))
    np.testing.assert_array_equal(written(traced, tmp_path / "net.py")(tensor(X)).numpy(), traced(tensor(X)).numpy())
