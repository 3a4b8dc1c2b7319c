"""Optimizers, limits of gradients and loss scaling on the emulated GPU, beside the processor's."""

import numpy as np
import pytest
from emulated_gpu import ORDERS, EmulatedGpu

import megengine as mge
from megengine import amp, optimizer
from megengine.kernels.cuda import updates
from megengine.kernels.cuda.runtime import installed
from megengine.optimizer import SGD, Adadelta, Adagrad, Adam, AdamW
from megengine.optimizer.lamb import LAMB, LAMBFp16

SHAPES = ((), (1,), (3,), (4, 5), (0, 2), (130, 129))  # the last has two chunks and a rest


@pytest.fixture
def gpu():
    with installed(EmulatedGpu()) as runtime:
        yield runtime


def numbers(seed, dtype=np.float32):
    return [np.random.default_rng([seed, k]).standard_normal(s).astype(dtype) for k, s in enumerate(SHAPES)]


def trained(make, device, dtype=np.float32, steps=3, late=True):
    """Values and states after some steps; one parameter has its first gradient in the second."""
    parameters = [mge.Parameter(x, device=device) for x in numbers(0, dtype)]
    rule = make(parameters)
    for step in range(steps):
        for k, (p, g) in enumerate(zip(parameters, numbers(step + 1, dtype), strict=True)):
            p.grad = None if late and k == 2 and not step else mge.Tensor(g, device=device)
        rule.step()
    return [p.numpy() for p in parameters], rule.state_dict()["state"]


RULES = {
    "sgd": lambda p: SGD(p, 0.1),
    "decayed": lambda p: SGD(p, 0.1, weight_decay=0.01),
    "momentum": lambda p: SGD(p, 0.1, 0.9, weight_decay=0.01),
    "nesterov": lambda p: SGD(p, 0.1, 0.9, nesterov=True),
    "adam": lambda p: Adam(p, 0.01, weight_decay=0.1),
    "adamw": lambda p: AdamW(p, 0.01),
    "adagrad": lambda p: Adagrad(p, 0.1, lr_decay=0.1),
    "adadelta": lambda p: Adadelta(p, 0.5),
}


def same_states(found, wanted, **tolerances):
    assert found.keys() == wanted.keys()
    for k, state in wanted.items():
        assert found[k].keys() == state.keys()
        for name, value in state.items():
            np.testing.assert_allclose(found[k][name], value, **tolerances)


@pytest.mark.parametrize("name", RULES)
def test_rules_have_the_bits_of_the_processor(name, gpu):
    wanted, found = trained(RULES[name], "cpu0"), trained(RULES[name], "gpu0")
    for a, b in zip(found[0], wanted[0], strict=True):
        np.testing.assert_array_equal(a, b)
    same_states(found[1], wanted[1], rtol=0)
    assert {kernel for _, kernel in gpu.launched} == {"cuda_update"}


def test_a_step_is_one_launch_for_all_parameters(gpu):
    trained(RULES["adam"], "gpu0", steps=4, late=False)
    assert len(gpu.launched) == 4


@pytest.mark.parametrize("adapts", [False, True])
@pytest.mark.parametrize("make", [LAMB, LAMBFp16])
def test_lamb(make, adapts, gpu):
    dtype = np.float16 if make is LAMBFp16 else np.float32
    rule = lambda p: make(p, 0.1, weight_decay=0.02 * adapts)  # noqa: E731
    wanted, found = trained(rule, "cpu0", dtype), trained(rule, "gpu0", dtype)
    for a, b in zip(found[0], wanted[0], strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-3 if dtype == np.float16 else 1e-5, atol=1e-6)
    same_states(found[1], wanted[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_updated_in_float32(dtype, gpu):
    dtype = mge.Tensor(0.0, dtype=dtype).numpy().dtype
    wanted, found = (trained(RULES["momentum"], device, dtype)[0] for device in ("cpu0", "gpu0"))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a.astype(np.float32), b.astype(np.float32))


def test_a_rule_without_a_kernel_runs_on_the_processor(gpu):
    class Halving(optimizer.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 1.0})

        def _update(self, w, g, state, group):
            return w * np.float32(0.5)

    p = mge.Parameter(np.ones(3, np.float32), device="gpu0")
    p.grad = p.detach()
    Halving([p]).step()
    assert p.device == "gpu0"
    np.testing.assert_array_equal(p.numpy(), [0.5, 0.5, 0.5])


def test_values_that_others_hold_stay(gpu):
    p = mge.Parameter(np.ones(3, np.float32), device="gpu0")
    rule = SGD([p], 1.0)
    places = []
    for _ in range(3):
        p.grad = mge.Tensor(np.ones(3, np.float32), device="gpu0")
        rule.step()
        places.append(p._storage().address)
    assert places[0] == places[1] == places[2]  # our own memory is written again
    kept, view = p.detach(), p.reshape(3, 1)
    for k, other in enumerate((kept, view)):
        p.grad = mge.Tensor(np.ones(3, np.float32), device="gpu0")
        rule.step()
        np.testing.assert_array_equal(other.numpy().ravel(), [-2, -2, -2])
        np.testing.assert_array_equal(p.numpy(), [-3 - k] * 3)


def test_states_travel_between_devices(gpu):
    make = RULES["adam"]
    parameters = [mge.Parameter(x, device="gpu0") for x in numbers(0)]
    rule = make(parameters)
    for p, g in zip(parameters, numbers(1), strict=True):
        p.grad = mge.Tensor(g, device="gpu0")
    rule.step()
    saved = rule.state_dict()
    others = [mge.Parameter(p.numpy()) for p in parameters]
    second = make(others)
    second.load_state_dict(saved)
    for one, chosen in ((rule, parameters), (second, others)):
        for p, g in zip(chosen, numbers(2), strict=True):
            p.grad = mge.Tensor(g, device=p.device)
        one.step()
    for a, b in zip(parameters, others, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("order", [2.0, 1.0, 3.0, np.inf])
@pytest.mark.parametrize("most", [1.0, 1e6])
def test_clip_grad_norm(order, most, gpu):
    results = []
    for device in ("cpu0", "gpu0"):
        parameters = [mge.Parameter(x, device=device) for x in numbers(0)]
        halves = [mge.Parameter(np.ones(3, np.float16), device=device)]
        for p, g in zip(parameters + halves, [*numbers(1), np.ones(3, np.float16)], strict=True):
            p.grad = mge.Tensor(g, device=device)
        norm = optimizer.clip_grad_norm(parameters + halves, most, order)
        assert norm.shape == () and norm.dtype == np.float32
        results.append((norm.numpy(), [p.grad.numpy() for p in parameters + halves]))
    (wanted_norm, wanted), (norm, found) = results
    np.testing.assert_allclose(norm, wanted_norm, rtol=1e-6)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3 if a.dtype == np.float16 else 1e-6)


def test_clip_grad_value(gpu):
    p = mge.Parameter(np.zeros(4, np.float32), device="gpu0")
    p.grad = mge.Tensor(np.array([-3, -0.5, 0.5, 3], np.float32), device="gpu0")
    optimizer.clip_grad_value(p, -1, 2)
    np.testing.assert_array_equal(p.grad.numpy(), [-1, -0.5, 0.5, 2])


@pytest.mark.parametrize("bad", [None, np.nan, np.inf, -np.inf])
def test_unscale(bad, gpu):
    arrays = [*numbers(1), np.ones(3, np.float16)]
    if bad is not None:
        arrays[-2][-1, -1] = bad
    parameters = [mge.Parameter(x, device="gpu0") for x in arrays]
    for p, g in zip(parameters, arrays, strict=True):
        p.grad = mge.Tensor(g, device="gpu0")
    scaler = amp.GradScaler(init_scale=2.0**3)
    scaler.unscale(parameters)
    if bad is None:
        for p, g in zip(parameters, arrays, strict=True):
            np.testing.assert_array_equal(p.grad.numpy(), g / 8)
    else:
        assert all(p.grad is None for p in parameters)
    assert len(gpu.launched) == 2  # one for each dtype
    scaler.update()
    assert scaler.scale_factor == (8.0 if bad is None else 4.0)


@pytest.mark.parametrize("order", ORDERS)
def test_norms_in_any_order_of_threads(order):
    with installed(EmulatedGpu(order=order)) as gpu:
        x = np.random.default_rng(0).standard_normal(40000).astype(np.float32)
        array = gpu.upload(x)
        (scaled,), norm = updates.limited([array], [array], 1.0, 2.0)
        np.testing.assert_allclose(norm.numpy(), np.linalg.norm(x.astype(np.float64)), rtol=1e-7)
        np.testing.assert_allclose(np.linalg.norm(scaled.numpy().astype(np.float64)), 1.0, rtol=1e-5)
