"""What a GradManager holds of the tensors that are attached to it."""

# pyright: reportOptionalMemberAccess=false

import gc
import weakref

import numpy as np

import megengine as mge
import megengine.module as M
from megengine.autodiff import GradManager


def test_inputs_attached_step_after_step_are_forgotten():
    net, gm = M.Linear(3, 1), GradManager()
    gm.attach(net.parameters())
    gone = []
    for step in range(20):
        x = mge.tensor(np.full((2, 3), step, np.float32))
        gone.append(weakref.ref(x))
        gm.attach(x)
        with gm:
            gm.backward(net(x * x).sum())
        assert x.grad is not None
        assert x.grad.shape == (2, 3)
        assert len(gm.attached_tensors()) == 3
    del x
    gc.collect()
    assert not any(reference() is not None for reference in gone)
    assert {id(t) for t in gm.attached_tensors()} == {id(p) for p in net.parameters()}


def test_a_new_tensor_has_no_callbacks_of_a_dead_one_with_its_number():
    gm, heard, numbers = GradManager(), [], set()
    for step in range(50):
        x = mge.tensor([float(step)])
        numbers.add(id(x))
        gm.attach(x, callbacks=[lambda _, grad, step=step: heard.append(step)])
        with gm:
            gm.backward(x * 2)
        del x
    assert len(numbers) < 50  # numbers were used again, else the test says nothing
    assert heard == list(range(50))


def test_callbacks_of_one_tensor_add_up():
    x, gm = mge.tensor([1.0]), GradManager()
    for factor in (2, 3):
        gm.attach([x], callbacks=lambda _, grad, factor=factor: grad * factor)
    with gm:
        gm.backward(x * 5)
    assert x.grad.item() == 30
    assert gm.attached_tensors() == [x]


def test_what_is_recorded_is_held_until_the_gradients_are_there():
    gm, kept = GradManager(), mge.tensor([3.0])
    gm.attach(kept)
    with gm:
        y = kept * mge.tensor([2.0])
        gm.attach(mge.tensor([1.0]))  # dead at once
        gm.backward(y)
    assert kept.grad.item() == 2
    assert gm.attached_tensors() == [kept]
