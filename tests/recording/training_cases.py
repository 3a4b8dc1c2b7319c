"""Cases of optimizers, learning rates over epochs, gradient clipping and fixed initial values."""

import numpy as np
from cases import case, f

OPTIMIZERS = {}  # name of a case -> the call that makes its optimizer
_SHAPES = ((3, 4), (5,))


def _parameters(megengine, dtype="float32"):
    return [megengine.Parameter(f(*s), dtype=dtype) for s in _SHAPES]


def _give(megengine, parameters, step):
    for p in parameters:
        p.grad = megengine.tensor(f(*p.shape, seed=10 + step), dtype=p.dtype)


def steps(make, dtype):
    """The parameters after each of some steps; the learning rate changes on the way."""
    import megengine
    import megengine.optimizer

    parameters, found = _parameters(megengine, dtype), []
    rule = make(megengine.optimizer, parameters)
    for step in range(5):
        if step == 3:
            rule.param_groups[0]["lr"] *= 0.5
        _give(megengine, parameters, step)
        rule.step()
        rule.clear_grad()
        found += [np.array(p.numpy()) for p in parameters]
    return found


def optimizer(make, dtype="float32"):
    """Enter a case of an optimizer; `p` in the text of its call are the parameters."""
    name = "optimizer " + make + ("" if dtype == "float32" else ", " + dtype)
    OPTIMIZERS[name] = make
    made = eval("lambda O, p: O." + make)
    case(name, lambda F: steps(made, dtype), grad=False)


for _make in (
    "SGD(p, 0.1)", "SGD(p, 0.1, 0.9)", "SGD(p, 0.1, 0.9, nesterov=True)", "SGD(p, 0.1, 0.9, True, 0.01)", "SGD(p, 0.1, weight_decay=0.01)", "SGD(p, 0.0)",
    "Adam(p, 0.01)", "Adam(p, 0.01, (0.8, 0.99), 1e-4, 0.1)", "AdamW(p, 0.01)", "AdamW(p, 0.01, (0.8, 0.99), 1e-4, 0.3)", "AdamW(p, 0.01, weight_decay=0.0)",
    "Adagrad(p)", "Adagrad(p, 0.1, 0.1, 1e-4, 0.01)", "Adadelta(p)", "Adadelta(p, 0.5, 0.8, 1e-4, 0.01)",
    "LAMB(p, 0.01)", "LAMB(p, 0.01, (0.8, 0.99), 1e-4, False, 0.1)", "LAMB(p, 0.01, weight_decay=0.1)", "LAMB(p, 0.01, always_adapt=True)",
    "SGD([{'params': p[:1], 'lr': 0.3, 'weight_decay': 0.1}, {'params': p[1:]}], 0.1, 0.5)",
):  # fmt: skip
    optimizer(_make)
for _make in ("LAMBFp16(p, 0.01)", "LAMBFp16(p, 0.01, (0.8, 0.99), 1e-4, False, 0.1, True)", "SGD(p, 0.1, 0.9)"):
    optimizer(_make, "float16")


def rates(make):
    """The learning rates of two groups, epoch after epoch."""
    import megengine
    import megengine.optimizer

    parameters = _parameters(megengine)
    rule = megengine.optimizer.SGD([{"params": parameters[:1], "lr": 0.3}, {"params": parameters[1:]}], 0.1)
    for group in rule.param_groups:
        group.setdefault("initial_lr", group["lr"])
    plan, found = make(megengine.optimizer, rule), []
    for _ in range(7):
        found.append([group["lr"] for group in rule.param_groups])
        plan.step()
    return np.float64(found)


for _make in (
    "MultiStepLR(rule, [2, 4])",
    "MultiStepLR(rule, [2, 2, 5], 0.5)",
    "MultiStepLR(rule, [3], gamma=2.0)",
    "MultiStepLR(rule, (1, 3), 0.5, 2)",
):
    OPTIMIZERS["optimizer " + _make] = _make
    case("optimizer " + _make, lambda F, m=eval("lambda O, rule: O." + _make): rates(m), grad=False)


def clipped(call):
    """What a call returns, and the gradients after it."""
    import megengine
    import megengine.optimizer

    from megengine.autodiff import GradManager

    parameters = _parameters(megengine)
    with GradManager().attach(parameters) as manager:
        manager.backward(sum((p * megengine.tensor(f(*p.shape, seed=10))).sum() for p in parameters))
    found = call(megengine.optimizer, parameters)
    found = [] if found is None else [np.float32(getattr(found, "numpy", lambda: found)()).reshape(())]
    return found + [np.array(p.grad.numpy()) for p in parameters]


for _call in (
    "clip_grad_norm(p, 1.0)", "clip_grad_norm(p, 100.0)", "clip_grad_norm(p, 1.0, 1.0)", "clip_grad_norm(p, 1.0, 3.0)", "clip_grad_norm(p[0], 1.0)",
    "clip_grad_value(p, -0.5, 0.3)", "clip_grad_value(p[1], 0.1, 0.3)",
):  # fmt: skip
    OPTIMIZERS["optimizer " + _call] = _call
    case("optimizer " + _call, lambda F, c=eval("lambda O, p: O." + _call): clipped(c), grad=False)


def initialised(call):
    """A tensor after a call that gives it values, or what the call returns."""
    import megengine
    import megengine.module

    t = megengine.tensor(np.zeros((6, 4, 3, 2), np.float32))
    found = call(megengine.module.init, t)
    return [t.numpy()] if found is None else np.float64(found)


for _call in (
    "zeros_(t)", "ones_(t)", "fill_(t, 1.5)", "calculate_gain('linear')", "calculate_gain('conv2d')", "calculate_gain('sigmoid')", "calculate_gain('tanh')",
    "calculate_gain('relu')", "calculate_gain('leaky_relu')", "calculate_gain('leaky_relu', 0.3)", "calculate_gain('conv_transpose2d')", "calculate_fan_in_and_fan_out(t)",
    "calculate_fan_in_and_fan_out(t[0, :, :, 0])", "calculate_correct_fan(t, 'fan_in')", "calculate_correct_fan(t, 'fan_out')", "calculate_correct_fan(t, 'FAN_OUT')",
):  # fmt: skip
    case("init " + _call, lambda F, c=eval("lambda I, t: I." + _call): initialised(c), grad=False)
