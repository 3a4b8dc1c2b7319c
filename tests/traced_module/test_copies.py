"""A copy is a copy: whatever is done to what `clone`, `flatten`, `optimize` and `lower` give, the original stays."""

import copy
import threading
from collections import OrderedDict

import numpy as np
import pytest
from saved_content import content
from zoo import ZOO

import megengine.functional as F
import megengine.module as M
from megengine import models
from megengine.autodiff import GradManager
from megengine.core.spec import TensorSpec
from megengine.module import Module
from megengine.optimizer import SGD, Adam
from megengine.tensor import Parameter, Tensor, tensor
from megengine.traced_module import TracedModule, lower, register_as_builtin, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.passes import optimize

X = tensor(np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32))
RESNET = trace_module(models.resnet18().eval(), X)


class Small(M.Module):
    """Layers in submodules, a list and a dict, one of them twice."""

    def __init__(self):
        super().__init__()
        self.stem = M.ConvBnRelu2d(3, 8, 3, stride=2)
        self.blocks = [M.Sequential(M.Conv2d(8, 8, 3, padding=1), M.BatchNorm2d(8), M.ReLU()) for _ in range(2)]
        self.heads = {"a": M.Conv2d(8, 4, 1), "b": M.Dropout(0.5)}
        self.fc = M.Linear(4, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in (*self.blocks, self.blocks[0]):
            x = x + block(x)
        return self.fc(self.heads["b"](self.heads["a"](x)).mean((2, 3)))


SMALL = trace_module(Small().eval(), X)
NETS = pytest.mark.parametrize("net", [SMALL, pytest.param(RESNET, marks=pytest.mark.slow)], ids=["small", "resnet18"])
COPIES = {
    "clone": lambda m: m.clone(),
    "clone of a clone": lambda m: m.clone().clone(),
    "flatten": lambda m: m.flatten(),
    "optimize": lambda m: optimize(m, "FuseConvBn"),
    "all passes": lambda m: optimize(m, "all"),
    "no pass": lambda m: optimize(m, []),
    "deepcopy": copy.deepcopy,
    "lower": lower,
}


def parts(model: TracedModule) -> dict[int, object]:
    """Modules, tensors and containers that a model holds, constants of its graphs among them."""
    found: dict[int, object] = {}
    todo: list[object] = [model, *(e.value for g in model.graphs for e in g.exprs() if e.kind == "Constant")]
    while todo:
        at = todo.pop()
        if id(at) in found or not isinstance(at, (Module, Tensor, list, dict)):
            continue
        found[id(at)] = at
        inside = vars(at).values() if isinstance(at, Module) else at.values() if isinstance(at, dict) else at
        todo += [] if isinstance(at, Tensor) else inside
    return {key: value for key, value in found.items() if not (isinstance(value, dict) and not value)}


def spoil(model: TracedModule) -> None:
    """Change everything in place."""
    for part in list(parts(model).values()):
        if isinstance(part, Tensor) and part.size:
            part[...] = 1
        elif isinstance(part, Module):
            part.training = not part.training
            part.quantize_disabled = not part.quantize_disabled
            part.register_forward_hook(lambda *_: None)
            for name in [n for n in ("eps", "momentum", "drop_prob", "negative_slope") if n in vars(part)]:
                setattr(part, name, 0.125)


@NETS
@pytest.mark.parametrize("how", COPIES)
def test_nothing_done_to_a_copy_shows_in_the_original(how, net):
    model = net.clone()
    before = content(model)
    made = COPIES[how](model)
    assert not parts(model).keys() & parts(made).keys()
    spoil(made)
    made.train()
    assert content(model) == before
    assert not any(m._forward_hooks for m in model.modules())


@NETS
@pytest.mark.parametrize("how", COPIES)
def test_nothing_done_to_the_original_shows_in_a_copy(how, net):
    model = net.clone()
    made = COPIES[how](model)
    before = content(made)
    spoil(model)
    assert content(made) == before


@pytest.mark.filterwarnings("ignore::megengine.traced_module.tracing.specialization.SpecializationWarning")
@pytest.mark.parametrize("name", ZOO)
def test_copies_of_nets_of_every_kind(name):
    net, args = ZOO[name]()
    kwargs = args[-1] if name == "autoencoder" else {}
    model = trace_module(net, *args[: len(args) - bool(kwargs)], **kwargs)
    before = content(model)
    made = model.clone()
    assert content(made) == before  # what is shared in one is shared in the other
    assert not parts(model).keys() & parts(made).keys()
    spoil(made)
    assert content(model) == before


@NETS
@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_a_copy_that_is_trained_leaves_the_original(optimizer, net):
    model = net.clone()
    before = content(model)
    made = model.clone()
    manager = GradManager().attach(made.parameters())
    steps = optimizer(made.parameters(), lr=0.1)
    made.train()
    for _ in range(2):
        with manager:
            manager.backward(made(X).sum())
        steps.step().clear_grad()
    assert content(model) == before
    assert np.abs(made.fc.bias.numpy() - model.fc.bias.numpy()).max() > 0


def test_weights_share_memory_until_they_are_written():
    made = RESNET.clone()
    assert np.shares_memory(made.fc.weight.numpy(), RESNET.fc.weight.numpy())
    made.fc.weight[...] = 0
    assert not np.shares_memory(made.fc.weight.numpy(), RESNET.fc.weight.numpy())


def test_what_is_shared_inside_of_a_model_is_shared_inside_of_its_copy():
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = M.Linear(3, 3), M.Linear(3, 3)
            self.b.weight = self.a.weight
            self.again, self.listed = self.a, [self.a, M.ReLU()]

        def forward(self, x):
            return self.again(self.b(self.a(x))) + self.listed[0](x)

    made = trace_module(Net().eval(), tensor(np.ones((2, 3), np.float32))).clone()
    assert made.a is made.again is getattr(made.listed, "0")
    assert made.a.weight is made.b.weight and made.a.bias is not made.b.bias


def test_constants_of_a_graph_of_ops_belong_to_it():
    graph = InternalGraph("ops")
    x = add_input(graph, "x", TensorSpec((2,), np.dtype(np.float32)))
    set_outputs(graph, [graph.apply("add", x, graph.constant(np.ones(2, np.float32), "one"))])
    made = graph.clone()
    made.node("one").expr.value[...] = 5
    assert graph.node("one").expr.value.numpy().tolist() == [1, 1]
    model = TracedModule.from_graph(graph)
    again = model.clone()
    dict(again.named_tensors())["one"][...] = 0
    assert graph.node("one").expr.value.numpy().tolist() == [1, 1]


@register_as_builtin
class Odd(M.Module):
    """A layer of the user's that holds all sorts of things."""

    def __init__(self):
        super().__init__()
        self.table, self.seen, self.array = {"w": Parameter(np.ones(2, np.float32))}, [], np.ones(3)
        self.nested, self.lock = (M.Linear(2, 2), [M.ReLU()]), threading.Lock()
        self.order = OrderedDict(a=[1])
        self.marked = Parameter(np.ones(1, np.float32), name="marked")
        self.marked.note = ["mine"]

    def forward(self, x):
        return F.relu(x) * self.marked


def test_layers_of_the_user_are_copied_with_all_that_they_hold():
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.odd = Odd()

        def forward(self, x):
            return self.odd(x)

    model = trace_module(Net(), tensor(np.ones((1, 2), np.float32)))
    heard = []
    model.odd.register_forward_hook(lambda *_: heard.append(1))
    made = model.clone()
    ours, theirs = made.odd, model.odd
    ours.seen.append(1)
    ours.array[:] = 0
    ours.order["a"].append(2)
    ours.marked.note.append("yours")
    ours.table["w"][...] = 0
    assert (theirs.seen, theirs.array.tolist(), theirs.order["a"], theirs.marked.note) == ([], [1] * 3, [1], ["mine"])
    assert theirs.table["w"].numpy().tolist() == [1, 1]
    assert ours.nested[0] is not theirs.nested[0] and ours.nested[1][0] is not theirs.nested[1][0]
    assert ours.marked.name == "marked" and ours.lock is theirs.lock
    made(tensor(np.ones((1, 2), np.float32)))
    assert heard == [1]  # the hook is a function of the caller's: both call it
    ours._forward_hooks.clear()
    assert theirs._forward_hooks
