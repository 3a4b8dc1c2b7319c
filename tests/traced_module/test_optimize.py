"""`optimize`: which passes it takes, of calls and of ops, and what it compares."""

from typing import Any

import numpy as np
import pytest
from megengine_graphs import inputs_of, listing, traced

import megengine.module as M
from megengine.core.errors import GraphError, OptionError
from megengine.tensor import tensor
from megengine.traced_module import lower, trace_module
from megengine.traced_module._passes.pass_base import ForwardPass
from megengine.traced_module.ir.queries import applied
from megengine.traced_module.passes import Pass, get_registered_pass, optimize

FOLD = get_registered_pass("FoldConstants")
OP_PASS = get_registered_pass("fold_batch_norm")


def test_passes_are_given_by_name_as_objects_or_written_for_megengine():
    module = traced("res_plain")

    class Halved(ForwardPass):
        name = "Halved"

        def run_transform(self, expr):
            return expr

    expected = listing(optimize(module, ["FuseConvBn"]))
    fuse = get_registered_pass("FuseConvBn")
    for given in ("FuseConvBn", ["FuseConvBn"], ("FuseConvBn",), fuse, [fuse, Halved], [Halved(), "FuseConvBn"], None):
        assert listing(optimize(module, passes=given)) == expected
        assert listing(optimize(module, given)) == expected
    assert listing(optimize(module, passes=[])) == listing(module)
    assert listing(optimize(module, passes="all")) == listing(optimize(module, "all"))


WRONG_PASSES: dict[str, tuple[dict[str, Any], str]] = {
    "one of two names": ({"enabled_pass": ["FuseConvBn"], "passes": []}, "two names of one argument"),
    "a typing error": ({"passes": ["FuseConvBm"]}, "unknown pass 'FuseConvBm'; did you mean 'FuseConvBn'"),
    "a number": ({"passes": [FOLD, 3]}, r"passes\[1\] is 3; expected the name of a pass, or a Pass$"),
    "a function": ({"passes": lambda graph: True}, r"make it one by Pass\(name, function\)"),
    "another level": (
        {"passes": "fold_batch_norm"},
        "'fold_batch_norm' works on graphs of ops; known for .* calls: Drop",
    ),
    "another level, as an object": ({"passes": OP_PASS}, "'fold_batch_norm' works on graphs of ops; this module holds"),
}


@pytest.mark.parametrize("case", WRONG_PASSES)
def test_wrong_passes_are_named(case):
    arguments, message = WRONG_PASSES[case]
    with pytest.raises(OptionError, match=message):
        optimize(traced("res_plain"), **arguments)


def test_only_traced_modules_are_optimized():
    with pytest.raises(GraphError, match="got InternalGraph; expected a TracedModule"):
        optimize(traced("res_plain").graph)  # pyright: ignore[reportArgumentType]


def test_graphs_of_ops_are_optimized_by_the_passes_for_ops():
    module = traced("res_plain")
    given = [tensor(x) for x in inputs_of("res_plain")]
    ops = lower(module)
    made = optimize(ops, "all", check_with=given)
    assert applied(made.graph, "batch_norm").as_list() == []
    assert applied(optimize(ops).graph, "batch_norm").as_list() == []
    assert applied(ops.graph, "batch_norm").as_list()
    with pytest.raises(OptionError, match="'FuseConvBn' works on graphs of calls; known for graphs of ops: drop_id"):
        optimize(ops, passes=["FuseConvBn"])


class TwoWays(M.Module):
    def __init__(self):
        super().__init__()
        self.inner = Once()

    def forward(self, x):
        return self.inner(x) + self.inner(x, x)


class Once(M.Module):
    def forward(self, x, y=None):
        return x * 1 if y is None else x + y


def test_outputs_are_compared_in_the_graph_that_the_arguments_enter():
    x = tensor(np.ones((2, 3), np.float32))
    module = trace_module(TwoWays(), x).inner
    assert len(module.graphs) == 2
    for given in (x, [x], (x.numpy(),), x.numpy(), [x, x]):
        assert len(optimize(module, "DropIdentities", check_with=given).graphs) == 2
    spoil = Pass("spoil", lambda g: bool([e.set_args_kwargs(*e.inputs, 2) for e in g.get_method_by_type("__mul__")]))
    with pytest.raises(GraphError, match="pass 'spoil' changes the result"):
        optimize(module, spoil, check_with=x)
    optimize(module, spoil, check_with=[x, x])
