"""Programs as people publish them, cut down: detection, segmentation, language, adversarial training. `idioms.py`
records them too.
"""

# pyright: reportOperatorIssue=false, reportIndexIssue=false

import numpy as np
from idioms import idiom, values


def filled(net):
    """A network whose parameters are numbers that depend on their place alone."""
    for k, (_, p) in enumerate(sorted(net.named_parameters())):
        p[...] = np.resize(values(*p.shape) * 0.3 + 0.01 * k, p.shape)
    return net


@idiom
def rates_that_are_tensors(mge, F):
    found = []
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta"):
        p = mge.Parameter(values(3))
        rule = getattr(mge.optimizer, name)([p], lr=mge.tensor(0.1))
        for rate in (None, mge.tensor([0.2]), np.float32(0.3)):
            if rate is not None:
                rule.param_groups[0]["lr"] = rate
            p.grad = mge.tensor(values(3) + 1)
            rule.step()
        found.append(p)
    return found


@idiom
def schedules_go_on(mge, F):
    optim = mge.optimizer
    rule = optim.SGD([mge.Parameter(values(3))], 0.1)
    plan = optim.MultiStepLR(rule, [2, 4, 6], gamma=0.5)
    for _ in range(3):
        plan.step()
    stored = plan.state_dict()
    other = optim.MultiStepLR(optim.SGD([mge.Parameter(values(3))], 0.3), [9])
    other.load_state_dict(stored)
    rates = []
    for _ in range(4):
        other.step()
        rates.append([other.get_lr(), other.current_epoch, other.base_lrs])
    return sorted(stored), stored["milestones"], stored["gamma"], stored["current_epoch"], rates


@idiom
def truth_values_choose(mge, F):
    x = mge.tensor(values(2, 3))
    return x[True], x[False].shape, [x.astype(t) for t in ("half", "single", "f2", "i4", "byte", "short", "?", "<f4")]


@idiom
def tensors_in_words(mge, F):
    shown = [values(2, 3), np.float32([1 / 3, 123456.789]), np.float32(1 / 3), np.float16(0.1), np.float32(1e20)]
    shown += [np.float32([1e-6, 1.0]), np.float32([]), np.arange(2000), values(3, 40), np.float32([np.nan, np.inf])]
    return [repr(mge.tensor(x)).split(", device")[0] for x in shown]


@idiom
def costs_of_layers(mge, F):
    from megengine.utils.module_stats import get_activation_stats, get_op_stats, get_param_stats, module_stats

    layer, x = filled(mge.module.Linear(3, 2)), mge.tensor(values(4, 3))
    total, rows = module_stats(layer, inputs=x, cal_params=False, logging_to_stdout=False)
    found = [
        get_param_stats(layer.weight),
        get_activation_stats(x, has_input=True),
        get_op_stats(layer, (x,), layer(x)),
    ]
    return [str(list(row.items())) for row in [*rows.params, *found]], list(total)
