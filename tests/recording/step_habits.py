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
