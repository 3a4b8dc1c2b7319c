"""Logs of edits that compute from weights, on a copy with other weights: computed again there, or refused by name."""

import numpy as np
import pytest
from saved_content import content
from zoo import ZOO

import megengine.functional as F
import megengine.module as M
from megengine import models
from megengine.core.errors import FileFormatError, GraphError
from megengine.tensor import Parameter, Tensor, tensor
from megengine.traced_module import EditLog, TracedModule, lower, trace_module
from megengine.traced_module._passes.pass_base import BackwardPass
from megengine.traced_module.editing.computed import FUNCTIONS
from megengine.traced_module.passes import Pass, PassManager, fold_batch_norm, optimize, registered_passes, run_passes
from megengine.traced_module.passes.rewriting import Rule, rewrite
from megengine.traced_module.patterns import any_, call

RNG = np.random.default_rng(0)


class Net(M.Module):
    """What every pass finds something in: norms before and behind layers, two in a row, scales, constants, shapes."""

    def __init__(self):
        super().__init__()
        self.first = M.BatchNorm2d(3)
        self.conv, self.norm, self.again = M.Conv2d(3, 6, 1, bias=False), M.BatchNorm2d(6), M.BatchNorm2d(6)
        self.up, self.up_norm = M.ConvTranspose2d(6, 4, 3, groups=2), M.BatchNorm2d(4)
        self.deep = M.Sequential(M.Conv2d(4, 4, 3, groups=2, padding=1), M.BatchNorm2d(4), M.ReLU(), M.Identity())
        self.table, self.fc = Parameter(np.ones((1, 4, 1, 1), np.float32)), M.Linear(4, 5)

    def forward(self, x):
        x = self.again(self.norm(self.conv(self.first(x))))
        x = F.relu(self.up_norm(self.up(x)) * 2 * 3)
        x = self.deep(x) * F.exp(self.table * 2.0)
        x = x.mean(axis=(2, 3)).reshape(x.shape[0], -1)
        return self.fc(x) * 0.25 + F.relu(self.fc.weight).sum()


X = tensor(RNG.standard_normal((2, 3, 8, 8)).astype(np.float32))


def trained(model: TracedModule, seed: int = 1) -> TracedModule:
    """A copy with other weights."""
    made, rng = model.clone(), np.random.default_rng(seed)
    for name, value in made.named_tensors():
        factor = tensor(np.asarray(rng.uniform(0.5, 2.0, value.shape), np.float32))
        value[...] = factor if "var" in name else value * factor + (0.1 if value.ndim > 1 else 0.05)
    return made


NET = trained(trace_module(Net().eval(), X), 7)
RESNET = trained(trace_module(models.resnet18().eval(), tensor(np.zeros((1, 3, 32, 32), np.float32))), 7)
CALL_PASSES = [one.name for one in registered_passes("calls")]
OP_PASSES = [one.name for one in registered_passes("ops")]


def replayed(log: EditLog, model: TracedModule, folder) -> TracedModule:
    log.save(folder / "log")
    made = model.clone()
    EditLog.load(folder / "log").replay(made)
    return made


@pytest.mark.parametrize("name", [*CALL_PASSES, "all"])
def test_a_pass_is_replayed_as_if_it_had_run_on_the_other_weights(name, tmp_path):
    done, other = optimize(NET, name), trained(NET)
    assert content(replayed(done.edit_log, NET, tmp_path)) == content(done)
    want = optimize(other, name)
    made = replayed(done.edit_log, other, tmp_path)
    assert content(made) == content(want)
    np.testing.assert_array_equal(made(X).numpy(), want(X).numpy())
    while made.graph.undo():
        pass
    assert content(made) == content(other)


@pytest.mark.parametrize("name", [*OP_PASSES, "all"])
def test_passes_of_ops_too(name, tmp_path):
    other = lower(trained(NET))
    done = lower(NET)
    done.graph.keep_edits()
    run_passes(done.graph, [one for one in registered_passes("ops") if name in (one.name, "all")])
    made = replayed(done.edit_log, other, tmp_path)
    run_passes(other.graph, [one for one in registered_passes("ops") if name in (one.name, "all")])
    assert str(made.graph) == str(other.graph)
    np.testing.assert_array_equal(made(X).numpy(), other(X).numpy())


def test_a_real_network(tmp_path):
    done, other = optimize(RESNET, "all"), trained(RESNET)
    made = replayed(done.edit_log, other, tmp_path)
    assert content(made) == content(optimize(other, "all"))
    assert (tmp_path / "log").stat().st_size < 200_000  # no weights in it: they are computed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::megengine.traced_module.tracing.specialization.SpecializationWarning")
@pytest.mark.parametrize("name", ZOO)
def test_nets_of_every_kind(name, tmp_path):
    net, args = ZOO[name]()
    kwargs = args[-1] if name == "autoencoder" else {}
    model = trained(trace_module(net, *args[: len(args) - bool(kwargs)], **kwargs), 7)
    done, other = optimize(model, "all"), trained(model)
    assert content(replayed(done.edit_log, other, tmp_path)) == content(optimize(other, "all"))


def test_edits_after_the_pass_use_what_was_computed(tmp_path):
    """The folded layer of the first step is folded again, put elsewhere, and read."""
    other = trained(NET)

    def session(model: TracedModule) -> TracedModule:
        made = optimize(model, "FuseConvBn")
        graph = made.graph
        with graph.transaction("mine"):
            PassManager([Pass("FuseBnConv", _pass("FuseBnConv"))]).run(graph)
            PassManager([Pass("BackwardFoldScale", _pass("BackwardFoldScale"))]).run(graph)
        with graph.insert_exprs():
            graph.inputs[0].also = made.conv
            extra = graph.inputs[0].also(graph.inputs[1])
            graph.replace_node({graph.outputs[0]: graph.outputs[0] + extra.sum()})
        return made

    done = session(NET)
    made = replayed(done.edit_log, other, tmp_path)
    assert content(made) == content(session(other))
    assert made.also is made.conv


def _pass(name: str):
    return next(one.run for one in registered_passes("calls") if one.name == name)


def test_a_function_of_passes_called_alone(tmp_path):
    ops, other = lower(NET), lower(trained(NET))
    ops.graph.keep_edits()
    assert fold_batch_norm(ops.graph)
    made = replayed(ops.edit_log, other, tmp_path)
    fold_batch_norm(other.graph)
    np.testing.assert_array_equal(made(X).numpy(), other(X).numpy())


# ---------------------------------------------------------------- what the user computes


def doubled(graph) -> bool:
    node = next(n for n in graph.get_module_by_type(M.Linear))
    layer = M.Linear(4, 5)
    layer.weight[...] = node.owner.weight * 2
    layer.bias[...] = node.owner.bias * 2
    graph.replace_module(node, layer)
    return True


def largest(m):
    weights = next(n for n in m.root.graph.get_module_by_type(M.Linear)).owner.weight
    return F.relu(m[x1]) / tensor(np.abs(weights.numpy()).max())


x1 = any_()


class Scaled(BackwardPass):
    """In MegEngine's style."""

    name = "Scaled"
    run_once = True

    def run_transform(self, expr):
        if expr.kind == "CallMethod" and isinstance(expr.inputs[0].owner, M.Linear):
            doubled(expr.top_graph)
        return expr


WAYS = {
    "Doubled": lambda m: PassManager([Pass("Doubled", doubled)]).run(m.graph),
    "Largest": lambda m: rewrite(m.graph, [Rule("Largest", call(F.relu, x1), largest)]),
    "Mixed": lambda m: PassManager([Pass.of_rules("Mixed", Rule("Mixed", call(F.relu, x1), _once))]).run(m.graph),
}


def _once(m):
    return None if m[x1].graph.get_node_by_name("*const*").as_list() else largest(m)


@pytest.mark.parametrize("name", WAYS)
def test_what_a_pass_of_the_users_computes_is_refused_on_other_weights(name, tmp_path):
    done, other = NET.clone(), trained(NET)
    WAYS[name](done)
    assert content(replayed(done.edit_log, NET, tmp_path)) == content(done)
    before = content(other)
    with pytest.raises(GraphError, match=f"{name}' put in values that it computed from the weights .* run it on this"):
        replayed(done.edit_log, other, tmp_path)
    assert content(other) == before


def test_layers_that_the_user_gives_are_installed_as_they_are(tmp_path):
    done, other = NET.clone(), trained(NET)
    head = M.Linear(4, 5)
    done.graph.replace_module(next(iter(done.graph.get_module_by_type(M.Linear))), head)
    made = replayed(done.edit_log, other, tmp_path)
    np.testing.assert_array_equal(made.fc.weight.numpy(), head.weight.numpy())
    np.testing.assert_array_equal(made.conv.weight.numpy(), other.conv.weight.numpy())


def test_functions_of_a_log_are_looked_up_and_get_what_they_take(tmp_path):
    done = optimize(NET, "FuseConvBn")
    for name, told in (("system", "'system', which is not known here"), ("scaled_layer", "scaled_layer: .*argument")):
        log = EditLog(tuple(done.edit_log.steps))
        for layer in log.steps[0].layers:
            if "computed" in layer:
                layer["computed"] = name
        with pytest.raises((GraphError, FileFormatError), match=told):
            log.replay(NET.clone())
    assert set(FUNCTIONS) >= {"scaled_layer", "folded_layer", "folded_behind", "constant_of", "folded_constants"}
    assert isinstance(FUNCTIONS["constant_of"](NET.graph.get_node_by_name("table").as_list()[0]), Tensor)
