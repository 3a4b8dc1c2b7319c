"""Calls of whole programs that were moved unchanged: integer types in both modes, biases that broadcast, lengths that
are kept, children in order, parts of data, names and errors. `habits.py` records them.
"""

import numpy as np
from data_habits import habit
from idioms import values


def outcome(call):
    """What a call gives, or that it fails."""
    try:
        return call()
    except Exception as error:
        return isinstance(error, (ValueError, TypeError, RuntimeError, AssertionError))


@habit
def integers_of_any_mode(mge):
    Q, x, found = mge.quantization, mge.tensor(values(3, 5) * 4), []
    for dtype in ("qint8", "quint8", "qint4", "quint4", "qint8_narrow"):
        for mode in Q.QuantMode:
            for zero in (None, 3.0, [3.0]):
                if zero is None and mode is Q.QuantMode.ASYMMERTIC:
                    continue  # MegEngine fails where it rounds
                numbers = mge.tensor(0.5), None if zero is None else mge.tensor(zero)
                qparams = Q.create_qparams(mode, dtype, *numbers)
                manager = mge.autodiff.GradManager().attach(x)
                with manager:
                    y = Q.FakeQuantize(dtype)(x, qparams)
                    manager.backward(y.sum())
                found.append([dtype, mode.name, y, x.grad])
                x.grad = None
    return found


@habit
def learnt_scales_of_unsigned_integers(mge):
    Q, x, found = mge.quantization, mge.tensor(values(3, 5) * 4), []
    for kind in (Q.TQT, Q.LSQ):
        fake = kind("quint8")
        found += [fake(x), fake.get_qparams().scale, fake.get_qparams().dtype_meta.name]
    return found


@habit
def ranges_of_unsigned_integers_in_symmetric_mode(mge):
    Q, found = mge.quantization, []
    for kind in (Q.MinMaxObserver, Q.ExponentialMovingAverageObserver, Q.HistogramObserver):
        for dtype in ("quint8", "quint4"):
            for ends in ((-1.0, 3.0), (-5.0, 2.0), (1.0, 4.0)):
                observer = kind(dtype=dtype)
                observer(mge.tensor(np.linspace(*ends, 9).astype("float32")))
                qparams = observer.get_qparams()
                found.append([dtype, list(ends), qparams.scale, qparams.zero_point is None])
    return found


@habit
def biases_that_broadcast(mge):
    F, found = mge.functional, []
    x, w = mge.tensor(values(2, 2, 3, 4)), mge.tensor(values(4, 2, 1, 1))
    grouped, turned = mge.tensor(values(2, 2, 1, 1, 1)), mge.tensor(values(2, 4, 1, 1))
    mask, moved = mge.tensor(values(2, 1, 3, 4)), mge.tensor(values(2, 2, 3, 4) * 0.3)
    for shape in ((), (1,), (3, 1), (1, 4), (1, 1, 1, 4), (2, 4, 1, 1), (1, 4, 3, 4), (1, 4, 1, 1)):
        bias = mge.tensor(values(*shape) if shape else 0.5)
        for call in (
            lambda b: F.conv2d(x, w, b),
            lambda b: F.conv2d(x, grouped, b, groups=2),
            lambda b: F.conv_transpose2d(x, turned, b),
            lambda b: F.deformable_conv2d(x, w, moved, mask, b),
        ):
            manager = mge.autodiff.GradManager().attach(bias)
            with manager:
                y = call(bias)
                manager.backward((y * y).sum())
            found += [y, bias.grad]
            bias.grad = None
    volume = mge.tensor(values(1, 2, 2, 2, 3)), mge.tensor(values(4, 2, 1, 1, 1))
    rows = mge.tensor(values(1, 2, 5)), mge.tensor(values(4, 2, 1))
    found += [F.conv3d(*volume, mge.tensor(values(*shape))) for shape in ((1,), (3,), (1, 4, 1, 1, 1))]
    found += [F.conv1d(*rows, mge.tensor(values(*shape))) for shape in ((1, 1, 1), (1, 4, 1), (1, 4, 5), (1, 1, 5))]
    wrong = mge.tensor(values(3)), mge.tensor([1.0] * 5)
    return found, outcome(lambda: F.conv2d(x, w, wrong[0])), outcome(lambda: F.conv1d(*rows, wrong[1]))


@habit
def lengths_that_are_kept(mge):
    F, x, v = mge.functional, mge.tensor(values(2, 3, 4)), mge.tensor(values(2))
    shapes = (2, None, 4), (None, 3, 4), (5, None, None, None), (None, None, None), [2, None], [None]
    found = [[outcome(lambda x=x, s=s: F.broadcast_to(x, s)) for s in shapes] for x in (x, x[:1], v)]
    axes = mge.tensor(1), mge.tensor([1]), np.array(1), np.array([-1])
    return found, [F.cumsum(x, axis) for axis in axes], [F.transpose(x, p) for p in ((), [])]


@habit
def children_in_the_order_in_which_they_came(mge):
    M, found = mge.module, []

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.later = M.ReLU(), M.Sigmoid(), M.Identity(), None

        def forward(self, x):
            return x

    net = Net()
    changes = [("a", None), ("a", M.ReLU()), ("b", 3), ("b", M.SiLU()), ("c", M.GELU()), ("later", M.ReLU())]
    changes += [("a", [M.ReLU()]), ("a", M.ReLU()), ("b", mge.tensor(1.0)), ("b", (M.ReLU(),)), ("c", M.Identity())]
    for name, value in changes:
        setattr(net, name, value)
        found.append(repr(net))
    return found


@habit
def parts_of_quantized_layers_in_order(mge):
    Q, M, found = mge.quantization, mge.module, []
    nothing = Q.QConfig(None, None, None, None)
    for first in (Q.tqt_qconfig, Q.calibration_qconfig, Q.min_max_fakequant_qconfig, nothing):
        for second in (Q.tqt_qconfig, Q.calibration_qconfig, Q.ema_fakequant_qconfig, nothing):
            for change in (Q.reset_qconfig, Q.propagate_qconfig):
                net = Q.quantize_qat(M.Sequential(M.Conv2d(2, 2, 1), M.QuantStub()), first)
                change(net, second)
                found.append(repr(net))
    return found


@habit
def parts_of_data_without_a_seed(mge):
    D, data, found = mge.data, list(range(10)), []
    for kind in (D.RandomSampler, D.ReplacementSampler, D.SequentialSampler):
        for size in (2, 3):
            found += [list(kind(data, batch_size=2, world_size=size, rank=rank)) for rank in range(size)]
    for weights in (None, [0.1] * 5 + [0.9] * 5):
        options = {"num_samples": 7, "weights": weights, "world_size": 3, "seed": 3}
        found += [list(D.ReplacementSampler(data, 2, rank=rank, **options)) for rank in range(3)]
    return found


@habit
def transforms_are_shown_by_their_class(mge):
    T = mge.data.transform

    class Own(T.VisionTransform):
        pass

    made = T.ToMode(), T.Resize(3), T.Normalize(), T.Pad(1), T.Compose([T.ToMode()]), T.PseudoTransform(), Own()
    return [repr(transform) for transform in made]


@habit
def names_with_any_one_character(mge):
    class Net(mge.module.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = mge.module.ReLU(), mge.module.ReLU()

        def forward(self, x):
            return self.fc2(self.fc1(x))

    graph = mge.traced_module.trace_module(Net(), mge.tensor(values(2))).graph
    patterns = "Net_fc?", "Net_fc?_out", "Net_f??out", "NET_?", "?et_fc1*"
    return [[node.name for node in graph.get_node_by_name(p).as_list()] for p in patterns]


@habit
def errors_that_programs_catch(mge):
    Q, x = mge.quantization, mge.tensor([1.0])
    calls = [lambda name=name: x.to(name) for name in ("foo9", "cpuz", "", "GPU0")]
    calls += [lambda: Q.QConfig(Q.MinMaxObserver(), None, None, None)]
    calls += [lambda: Q.QConfig(None, act_observer=Q.HistogramObserver(), weight_fake_quant=None, act_fake_quant=None)]
    found = []
    for call in calls:
        try:
            call()
        except ValueError:
            found.append(True)
    return found
