"""Traced graphs have the nodes and the names that MegEngine 1.13 gives them (listings written by it)."""

import warnings

import numpy as np
import pytest
from megengine_graphs import NETS, check, inputs_of, leaves, listing, nets, traced

import megengine.module as M
from megengine.quantization import ema_fakequant_qconfig, enable_observer, quantize, quantize_qat
from megengine.tensor import tensor
from megengine.traced_module import trace_module


@pytest.mark.parametrize("name", NETS)
def test_traced(name):
    module = traced(name)
    module.graph.lint()
    corrected = {"19", "21"} if name == "multi_io" else set()
    check(module, name, corrected)


@pytest.mark.parametrize("name", NETS)
def test_flattened(name):
    module = traced(name)
    before = listing(module)
    flat = module.flatten()
    flat.graph.lint()
    check(flat, f"{name}_flat", {"18", "20"} if name == "multi_io" else set())
    assert listing(module) == before
    given = [tensor(x) for x in inputs_of(name)]
    for a, b in zip(leaves(module(*given)), leaves(flat(*given)), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("kind", ["qat", "q"])
def test_networks_in_quantization(kind):
    net = nets().ResFused().eval()
    given = [tensor(x) for x in inputs_of("res_fused")]
    qat = quantize_qat(net, qconfig=ema_fakequant_qconfig)
    enable_observer(qat)
    qat.train()
    qat(*given)
    qat.eval()
    module = trace_module(qat if kind == "qat" else quantize(qat), *given)
    module.graph.lint()
    check(module, f"res_fused_{kind}")
    flat = module.flatten()
    check(flat, f"res_fused_{kind}_flat")
    np.testing.assert_array_equal(flat(*given).numpy(), module(*given).numpy())


class Twice(M.Module):
    def forward(self, x):
        return x * 2


class Two(M.Module):
    """Twice, Two and ReLU are parts, as the texts of `FLATTENED` have them."""

    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x):
        return self.b(self.a(x))


class One(M.Module):
    def __init__(self, w):
        super().__init__()
        self.w = w

    def forward(self, x):
        return self.w(x)


class Both(M.Module):
    def forward(self, x):
        return x * 2, x + 1


class Swapped(One):
    def forward(self, x):
        a, b = self.w(x)
        return b, a


class Sum(One):
    def forward(self, x):
        a, b = self.w(x)
        return a + b


class Again(One):
    def forward(self, x):
        return self.w(self.w(x))


# networks -> the values of the flattened graph, as MegEngine 1.13 calls them
FLATTENED = {
    "One(Twice())": "w_out",
    "One(M.ReLU())": "w_out",
    "One(One(M.ReLU()))": "w_out",
    "One(One(Twice()))": "w_out_1",
    "One(One(One(One(Twice()))))": "w_out_1",
    "Two(One(Twice()), One(One(Twice())))": "a_out b_out",
    "Two(Two(Twice(), M.ReLU()), Twice())": "a_a_out a_out b_out",
    "Two(Two(M.ReLU(), Twice()), Twice())": "a_a_out a_out_1 b_out",
    "Two(Two(Twice(), Twice()), Two(Twice(), Twice()))": "a_a_out a_out_1 b_a_out b_out_1",
    "Two(Two(Two(Twice(), Twice()), Twice()), Twice())": "a_a_a_out a_a_out_1 a_out_2 b_out",
    "Two(Two(Two(Two(Twice(), Twice()), Twice()), Twice()), Twice())": (
        "a_a_a_a_out a_a_a_out_1 a_a_out_2 a_out_1 b_out"
    ),
    "Two(One(Two(Twice(), Twice())), Twice())": "a_w_a_out a_out_1 b_out",
    "Sum(Both())": "w_out w_out_1 add_out",
    "Sum(One(Both()))": "w_out_2 w_out_3 add_out",
    "Sum(One(One(Both())))": "w_out_2 w_out_3 add_out",
    "Sum(Swapped(Both()))": "w_out_2 w_out_3 add_out",
    "Again(One(One(Twice())))": "w_1_out w_1_out_1",
    "One(Again(One(Twice())))": "w_w_1_out w_out_1",
    "M.Sequential(M.Sequential(M.Sequential(Twice(), Twice())))": "_0__0__0_out _0_out_1",
}


@pytest.mark.parametrize("network", FLATTENED)
def test_values_that_several_modules_pass_on(network):
    """They are called like the call of the outermost one, with a count where MegEngine counts."""
    module = trace_module(eval(network), tensor(np.ones((2, 3), np.float32)))
    flat = module.flatten()
    flat.graph.lint()
    made = [node.name for expr in flat.graph._exprs for node in expr.outputs if not hasattr(node, "owner")]
    assert made == FLATTENED[network].split()


class Aliases(M.Module):
    """One layer, and one module with a graph, under two names each."""

    def __init__(self):
        super().__init__()
        self.a = self.b = M.ReLU()
        self.one = Twice()
        self.steps = [self.one]

    def forward(self, x):
        return self.steps[0](self.b(self.a(self.one(x))))


def test_a_module_under_two_names():
    """Calls are named by the read that they use, also where another name was read before it: `self.b(self.a(x))`."""
    module = trace_module(Aliases(), tensor(np.ones((2, 3), np.float32)))
    calls = [(e.name, e.outputs[0].qualname) for e in module.graph.get_method_by_type("__call__", recursive=False)]
    assert calls == [
        ("one_out", "Aliases.one.[out]"),
        ("a_out", "Aliases.a.[out]"),
        ("b_out", "Aliases.b.[out]"),
        ("steps_0_out", "Aliases.steps.0.[out]"),
    ]
    made = {e.name: e.outputs[0].qualname for e in module.flatten().graph.get_method_by_type("__mul__")}
    assert made == {"one_out": "Aliases.one.[method_mul]", "steps_0_out": "Aliases.steps.0.[method_mul]"}


@pytest.mark.parametrize(
    ("read", "name"),
    [  # as MegEngine 1.13 names the shape that is used: a truth value counts as a read of one, other values do not
        (lambda x: bool(x.sum() > 0), "getvarshape_out_1"),
        (lambda x: x.shape[0] > 1 or None, "getvarshape_out_2"),
        (lambda x: x.shape[0] == 2 and x.shape[0] != 3, "getvarshape_out_3"),
        (lambda x: float(x.sum()), "getvarshape_out"),
        (lambda x: range(x.shape[0]), "getvarshape_out_1"),
    ],
)
def test_branches_count_for_names(read, name):
    class Net(M.Module):
        def forward(self, x):
            read(x)
            return x * x.shape[0]

    with warnings.catch_warnings(action="ignore"):
        model = trace_module(Net(), tensor([1.0, 2.0]))
    assert [n.name for n in model.graph.nodes() if "shape" in n.name] == [name]


def test_numbers_of_numpy_are_printed_as_megengine_does():
    class Net(M.Module):
        def forward(self, x):
            return x.reshape((np.int64(2),)) + np.float32(3) + np.ones(2, np.float32)

    text = str(trace_module(Net(), tensor([1.0, 2.0])).graph)
    assert "x.reshape((2,), )" in text and "reshape_out.__add__(3.0, )" in text and "add_out.__add__([1. 1.], )" in text
