"""Habits of training loops and of calibration: limits on gradients, shares, scales (see habits.py)."""

import numpy as np
from idioms import values

HABITS = {}


def habit(function):
    """Keep a function under its name."""
    HABITS[function.__name__] = function
    return function


@habit
def gradients_are_limited_in_place(mge):
    from megengine.optimizer import clip_grad_norm, clip_grad_value

    found = []
    for clip in (
        lambda p: clip_grad_norm(p, 1.0),
        lambda p: clip_grad_norm(p[0], 0.5, ord=1.0),
        lambda p: clip_grad_norm(p, 2, ord=np.inf),
        lambda p: clip_grad_norm(p, 100.0),
        lambda p: clip_grad_value(p, -0.2, 0.1),
        lambda p: clip_grad_value(p[0], lower=-0.2, upper=0.1),
    ):
        parameters = [mge.Parameter(values(2, 3)), mge.Parameter(values(4)), mge.Parameter(values(2))]
        kept = parameters[0].grad = mge.tensor(values(2, 3))
        parameters[1].grad = mge.tensor(values(4))
        found += [clip(parameters), kept, kept is parameters[0].grad, parameters[1].grad, parameters[2].grad]
    return found


@habit
def shares_of_rows_are_counted(mge):
    scores, labels = mge.tensor(values(6, 5)), mge.tensor(np.array([0, 1, 2, 3, 4, 0], np.int32))
    rate = mge.functional.metric.topk_accuracy
    return [rate(scores, labels, k) for k in (1, 3, (2,), [3], (1, 2), [1, 3, 5])]


@habit
def histograms_choose_ranges(mge):
    from megengine.quantization.observer import HistogramObserver

    def drawn(seed):
        random = np.random.RandomState(seed)
        x = random.randn(400)
        kinds = (x, abs(x) * 3, x**3, x * (seed + 1) + seed, random.uniform(-1, 5, 900), random.exponential(2, 300) - 1)
        return [kind.astype(np.float32) for kind in kinds]

    found = []
    for settings in ({}, {"bins": 64, "upsample_rate": 16}):
        for batches in zip(*[drawn(seed) for seed in range(3)]):
            observer = HistogramObserver(**settings)
            for batch in batches:
                observer(mge.tensor(batch))
                ends = observer.min_val, observer.max_val
                found += [observer.get_qparams().scale, *[float(end.numpy()) for end in ends]]
            found.append(float(observer.histogram.numpy().sum()))
    constant = HistogramObserver()
    constant(mge.tensor([2.0, 2.0]))
    return [*found, constant.get_qparams().scale]


@habit
def scales_are_searched(mge):
    import megengine.quantization as Q
    from megengine.quantization.quantize import apply_easy_quant, quantize_qat

    M, found = mge.module, []

    class Net(M.Module):
        def __init__(self, parts):
            super().__init__()
            self.parts = parts

        def forward(self, x):
            for part in self.parts:
                x = part(x, x) if isinstance(part, M.Elemwise) else part(x)
            return x

    nets = {
        "two layers": (lambda: [M.Linear(6, 5), M.Linear(5, 4)], (4, 6)),
        "a picture": (lambda: [M.Conv2d(2, 3, 3)], (3, 2, 5, 5)),
        "ends": (lambda: [M.QuantStub(), M.Linear(6, 5), M.DequantStub()], (4, 6)),
        "a sum": (lambda: [M.Linear(6, 5), M.Elemwise("add")], (4, 6)),
    }
    for parts, shape in nets.values():
        for seed in range(2):
            random, net = np.random.RandomState(seed), Net(parts())
            for _, p in sorted(net.named_parameters()):
                p[...] = mge.tensor((random.randn(*p.shape) * 0.4).astype(np.float32))
            net = quantize_qat(net, qconfig=Q.easyquant_qconfig)
            parts_of = [
                m for _, m in net.named_modules() if getattr(m, "act_observer", None) or hasattr(m, "with_weight")
            ]
            observers = [getattr(m, n, None) for m in parts_of for n in ("weight_observer", "act_observer")]
            observers = [one for one in observers if one is not None]
            for one in observers:
                scale = mge.tensor(0.007 if one.dtype.qmin == -127 else 0.05)
                one.set_qparams(Q.create_qparams(Q.QuantMode.SYMMERTIC, one.dtype, scale))
            apply_easy_quant(net, mge.tensor(random.randn(*shape).astype(np.float32)), 0.5, 1.5, 11)
            found.append([float(one.get_qparams().scale.numpy()) for one in observers])
    return found
