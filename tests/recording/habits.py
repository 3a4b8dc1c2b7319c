"""Record what the real MegEngine gives to calls that programs rely on, though another engine might refuse them:
`python habits.py OUT.json`, with megengine 1.13.0 installed.

Each habit takes the engine and returns tensors, arrays, numbers or strings, nested.
"""

import itertools
import json
import sys
from contextlib import ExitStack

import data_habits
import end_habits
import graph_habits
import line_habits  # noqa: F401  (enters its own)
import odd_habits  # noqa: F401
import moved_habits  # noqa: F401
import numpy as np
import precision_habits
import quantized_habits
import step_habits
from idioms import plain, values

HABITS = {
    **quantized_habits.HABITS,
    **data_habits.HABITS,
    **precision_habits.HABITS,
    **graph_habits.HABITS,
    **end_habits.HABITS,
    **step_habits.HABITS,
}


def habit(function):
    """Keep a function under its name."""
    HABITS[function.__name__] = function
    return function


@habit
def an_embedding_of_given_rows(mge):
    rows = mge.tensor(values(4, 3))
    layers = mge.module.Embedding(4, 3, initial_weight=rows), mge.module.Embedding.from_pretrained(rows)
    return [[layer(mge.tensor([1, 3])), type(layer.weight).__name__, sorted(layer.state_dict())] for layer in layers]


@habit
def a_tensor_without_axes_takes_any_value(mge):
    found = []
    for old in (1.0, 1):
        for new in (mge.tensor([1.5, 2.0]), mge.tensor([[3, 4]]), mge.tensor(2.5), np.array([1.5, 2.0]), [5, 6], 2.5):
            x = mge.tensor(old)
            x[...] = new
            found.append(x)
    parameter = mge.Parameter(1.0)
    parameter[...] = mge.tensor([1.0, 2.0])
    return [*found, parameter, type(parameter).__name__]


@habit
def a_sum_takes_the_value_of_another_tensor(mge):
    x, y = mge.tensor(1.0), mge.tensor([1.0, 2.0])
    manager = mge.autodiff.GradManager().attach([x, y])
    with manager:
        z = x * 2
        z[...] = y
        manager.backward((z * z).sum())
    return x.grad is None, y.grad


@habit
def batch_norm_of_nothing(mge):
    M, found = mge.module, []
    for kind, shape in (("1d", (0, 3)), ("1d", (0, 3, 4)), ("2d", (0, 3, 4, 4)), ("2d", (2, 3, 0, 4))):
        for training in (True, False):
            layer = getattr(M, "BatchNorm" + kind)(3)
            layer.train(training)
            y = layer(mge.tensor(np.ones(shape, np.float32)))
            found.append([list(map(int, y.shape)), layer.running_mean, layer.running_var])
    empty = mge.tensor(np.ones((0, 3, 2, 2), np.float32))
    return found, mge.functional.batch_norm(empty, training=True)


@habit
def statistics_that_are_not_tracked_any_more(mge):
    found, x = [], mge.tensor(values(2, 3, 4, 4) * 3 + 1)
    for settings in ({}, {"freeze": True}, {"affine": False}):
        for freeze in (True, False):
            layer = mge.module.BatchNorm2d(3, **settings)
            layer.track_running_stats, layer.freeze = False, freeze
            found += [layer(x), layer.running_mean, layer.running_var]
    layer = mge.module.BatchNorm2d(3)
    layer.track_running_stats = False
    layer(x)
    layer.track_running_stats = True
    layer(x)
    return [*found, layer.running_mean]


@habit
def gradients_of_gradients(mge):
    """Which manager sees the backward of which: nested and joined, all orders."""
    found = []
    for shape in ("a,b", "a|b", "b|a", "a,b,c", "a|b|c", "a,b|c", "a|b,c"):
        names = sorted(set(shape) & set("abc"))
        for order, again in itertools.product(itertools.permutations(names), (True, False)):
            found.append([shape, "".join(order), again, _backwards(mge, shape, order, again)])
    return found


def _backwards(mge, shape, order, again):
    """Gradients of x**4 by each manager in turn; with `again`, of what the one before found."""
    x = mge.Parameter([2.0])
    managers = {name: mge.autodiff.GradManager().attach(x) for name in "abc"}
    found, y = [], None
    with ExitStack() as recording:
        for part in shape.split(","):
            first, *others = (managers[name] for name in part.split("|"))
            for other in others:
                first = first | other
            recording.enter_context(first)
        y = x * x * x * x
        for name in order:
            managers[name].backward(y)
            found.append(x.grad)
            y = x.grad if again and x.grad is not None else y
            x.grad = None
    return found


@habit
def managers_that_record_one_after_another(mge):
    x, found = mge.Parameter([2.0]), []
    for released, order in itertools.product((False, True), ("ab", "ba", "bc", "cb")):
        managers = {name: mge.autodiff.GradManager().attach(x) for name in "abc"}
        for name in "abc":
            managers[name].record()
        if released:
            managers["a"].release()
            managers["a"].record()
        y = x * x * x * x
        for name in order:
            managers[name].backward(y)
            found.append(x.grad)
            y, x.grad = y if x.grad is None else x.grad, None
        for manager in managers.values():
            manager.release()
    return found


@habit
def callbacks_are_seen_as_the_gradient_is(mge):
    found = []
    for shape in ("a,b", "b,a", "a|b"):
        x, w = mge.Parameter([2.0]), mge.Parameter([3.0])
        a = mge.autodiff.GradManager().attach(x, callbacks=lambda t, grad, w=w: grad * w)
        b = mge.autodiff.GradManager().attach([x, w])
        with ExitStack() as recording:
            for one in {"a,b": (a, b), "b,a": (b, a), "a|b": (a | b,)}[shape]:
                recording.enter_context(one)
            a.backward(x * x * x)
            first, x.grad = x.grad, None
            b.backward(first)
        found.append([first, x.grad, w.grad])
    return found


@habit
def gradients_are_set_when_all_callbacks_ran(mge):
    x, y, found = mge.Parameter([2.0]), mge.Parameter([3.0]), []
    manager = mge.autodiff.GradManager()
    manager.attach([x, y], callbacks=lambda t, grad: found.append([x.grad is None, y.grad is None]))
    with manager:
        manager.backward(x * y)
    return found


ELEMWISE = {
    1: "ERFINV ERFCINV FAST_TANH GELU HSIGMOID H_SWISH LOGSIGMOID SILU SOFTPLUS RELU6",
    2: "ABS_GRAD ACOSH_GRAD ASINH_GRAD ATANH_GRAD FAST_TANH_GRAD GELU_GRAD HSIGMOID_GRAD H_SWISH_GRAD RELU6_GRAD "
    "SIGMOID_GRAD SILU_GRAD SOFTPLUS_GRAD TANH_GRAD",
    3: "PRELU_GRAD",
}


@habit
def elementwise_modes(mge):
    x = np.array([-4, -3, -1, -0.9, -0.2, 0, 0.3, 0.999, 1, 1.5, 2.9, 3, 4, 6, 7], np.float32)
    operands = [mge.tensor(v.astype(np.float32)) for v in (x, np.linspace(-1, 2, 15), np.linspace(0.1, 0.9, 15))]
    found = [
        [mode, np.nan_to_num(mge.module.Elemwise(mode)(*operands[:arity]).numpy(), nan=-99, posinf=99, neginf=-98)]
        for arity, modes in ELEMWISE.items()
        for mode in modes.split()
    ]
    whole = [2**30, -(2**30), 123456789, -123456789, -(2**31), 3], [2**30, 3, 987654321, 987654321, -(2**31), 2**30]
    products = mge.module.Elemwise("RMULH")(*(mge.tensor(np.array(v, np.int32)) for v in whole))
    return found, products


@habit
def labels_that_do_not_fit_into_the_frames(mge):
    found = []
    for frames, labels in (
        (4, (1, 1, 2, 2)),
        (3, (1, 2, 3, 4)),
        (3, (1, 1, 2)),
        (4, (1, 2, 3, 4)),
        (1, (1, 1)),
        (5, (1, 1, 1)),
    ):
        p = np.abs(values(frames, 1, 5)) + 0.1
        p = mge.tensor(p / p.sum(-1, keepdims=True))
        manager = mge.autodiff.GradManager().attach(p)
        lengths = (mge.tensor(np.array([n], np.int32)) for n in (frames, len(labels)))
        with manager:
            steps, size = lengths
            loss = mge.functional.nn.ctc_loss(p, steps, mge.tensor(np.array([labels], np.int32)), size)
            manager.backward(loss)
        found.append([loss, p.grad])
    return found


@habit
def fans_of_grouped_convolutions(mge):
    M = mge.module
    layers = M.Conv1d(4, 8, 3, groups=2), M.Conv2d(4, 8, 3, groups=2), M.Conv3d(4, 8, 3, groups=2), M.Conv3d(4, 8, 3)
    layers += M.ConvTranspose2d(4, 8, 3, groups=2), M.LocalConv2d(4, 8, 5, 5, 3, groups=2), M.Linear(3, 5)
    return [list(map(int, M.init.calculate_fan_in_and_fan_out(layer.weight))) for layer in layers]


@habit
def lengths_that_are_tensors(mge):
    F, n = mge.functional, mge.tensor(2)
    x, one = mge.tensor(values(3)), mge.tensor(np.array([3], np.int32))
    return (
        F.broadcast_to(x, (n, 3)),
        F.broadcast_to(x, [n, one]),
        F.zeros((n, one)),
        F.broadcast_to(x, mge.tensor([2, 3])),
    )


@habit
def offsets_of_all_classes(mge):
    x, offsets = mge.tensor(values(1, 8, 8, 8)), mge.tensor(values(2, 2, 2, 2))
    rois = mge.tensor(np.array([[0, 1, 1, 6, 6], [0, 2, 2, 5, 5]], np.float32))
    return mge.functional.nn.deformable_psroi_pooling(x, rois, offsets, False, 2, 2, 2, 2, 0.5, 0.5)


@habit
def a_sampler_without_end(mge):
    sampler = mge.data.sampler
    inner = sampler.RandomSampler(mge.data.dataset.ArrayDataset(np.arange(10)), 3, drop_last=True)
    endless = sampler.Infinite(inner)
    return endless.batch_size, endless.drop_last, endless.num_samples, endless.world_size, str(len(endless))


@habit
def parts_of_modules_by_path(mge):
    from megengine.traced_module.utils import get_subattr

    net = mge.module.Sequential(mge.module.Linear(2, 3))
    return (
        get_subattr(net, "") is net,
        type(get_subattr(net, "0")).__name__,
        type(get_subattr(net, "0.weight")).__name__,
    )


@habit
def what_is_kept_out_of_a_trace(mge):
    from megengine.jit import exclude_from_trace

    class Net(mge.module.Module):
        def forward(self, x):
            with exclude_from_trace():
                x + 1
            return x * 2

    traced = mge.traced_module.trace_module(Net(), mge.tensor([1.0]))
    with exclude_from_trace():
        outside = mge.tensor([1.0]) + 1
    return len(traced.graph.exprs().as_list()), outside


def quantized_net(mge, padding_mode="zeros"):
    M = mge.module

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.quant, self.dequant = M.QuantStub(), M.DequantStub()
            self.conv = M.Conv2d(3, 4, 3, padding=1, padding_mode=padding_mode)

        def forward(self, x):
            return self.dequant(self.conv(self.quant(x)))

    net = Net()
    weight = (np.arange(4 * 27).reshape(4, 3, 3, 3) % 7 - 3).astype(np.float32) / 7
    net.conv.weight[...] = mge.tensor(weight)
    return net


@habit
def borders_of_quantized_convolutions(mge):
    Q, x, found = mge.quantization, mge.tensor(values(1, 3, 4, 4)), []
    for mode in ("zeros", "replicate", "reflect"):
        net = Q.quantize_qat(quantized_net(mge, mode), Q.min_max_fakequant_qconfig)
        net.train()
        net(x)
        Q.disable_observer(net)
        net.eval()
        found.append(net(x))
        net = Q.quantize(net)
        net.eval()
        found.append(net(x))
    return found


@habit
def observers_that_saw_nothing(mge):
    Q, x = mge.quantization, mge.tensor(values(1, 3, 4, 4))
    net = Q.quantize_qat(quantized_net(mge), Q.min_max_fakequant_qconfig)
    net.eval()
    found = [sorted(net.state_dict()), len(mge.traced_module.trace_module(net, x).graph.exprs().as_list()), net(x)]
    net = Q.quantize(net)
    net.eval()
    return [*found, len(repr(net)) > 0, net(x)]


@habit
def nodes_by_the_name_of_their_graph(mge):
    M = mge.module
    net = M.Sequential(M.Conv2d(1, 1, 1), M.Sequential(M.ReLU()))
    traced = mge.traced_module.trace_module(net, mge.tensor(np.ones((1, 1, 2, 2), np.float32)))
    graph, found = traced.graph, []
    for name in ("Sequential", "Top"):
        graph.name = name
        patterns = name + "__0_out", name + "*_out", "*_0_out", "Sequential__1__0_out", "nobody_0_out"
        found += [[n.name for n in graph.get_node_by_name(pattern).as_list()] for pattern in patterns]
    return graph.name, found


@habit
def layers_of_ones_own_in_passes(mge):
    M, tm = mge.module, mge.traced_module

    class OwnNorm(M.BatchNorm2d):
        pass

    class OwnConv(M.Conv2d):
        pass

    for kind in (OwnNorm, OwnConv):
        tm.register_as_builtin(kind)

    class Net(M.Module):
        def __init__(self, conv, norm):
            super().__init__()
            self.conv, self.norm, self.scale = conv(3, 4, 1), norm(4), mge.Parameter([2.0, 3.0])

        def forward(self, x):
            return self.norm(self.conv(x)) if fuse else self.conv(x) * self.scale[0] * 2

    x, found = mge.tensor(values(1, 3, 4, 4)), []
    for fuse, conv, norm in itertools.product((True, False), (M.Conv2d, OwnConv), (M.BatchNorm2d, OwnNorm)):
        net = Net(conv, norm)
        net.eval()
        traced = tm.trace_module(net, x)
        before = traced(x).numpy()
        traced = tm.optimize(traced, ["FuseConvBn" if fuse else "BackwardFoldScale"])
        found.append([len(traced.graph.exprs().as_list()), float(abs(traced(x).numpy() - before).max()) < 1e-5])
    return found


def main():
    """Ask the engine that is installed."""
    import megengine
    import megengine.amp
    import megengine.autodiff
    import megengine.data
    import megengine.functional
    import megengine.jit
    import megengine.module
    import megengine.quantization
    import megengine.traced_module
    import megengine.utils.module_stats

    megengine.config.async_level = 0
    answers = {name: plain(function(megengine)) for name, function in HABITS.items()}
    with open(sys.argv[1], "w") as file:
        json.dump(answers, file, indent=0)


if __name__ == "__main__":
    main()
