"""einsum beside NumPy's, in values and gradients, on equations of every kind and random ones."""

import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import megengine.functional as F
from megengine.autodiff import GradManager
from megengine.core.errors import MegEngineError
from megengine.tensor import tensor


def numbers(*shape):
    return np.random.default_rng(list(shape)).standard_normal(shape)


CASES = [
    ("i->", [(3,)]),
    ("ij->ji", [(3, 4)]),
    ("ij", [(3, 4)]),
    ("ba", [(3, 4)]),
    ("ii->i", [(3, 3)]),
    ("ii", [(3, 3)]),
    ("iji->j", [(3, 4, 3)]),
    ("iii->i", [(2, 2, 2)]),
    ("i,i->", [(3,), (3,)]),
    ("i,j->ij", [(3,), (4,)]),
    ("ij,jk", [(3, 4), (4, 5)]),
    ("ij,jk->ki", [(3, 4), (4, 5)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    ("bij,bkj->bik", [(2, 3, 4), (2, 5, 4)]),
    ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
    ("ij,ij->ij", [(3, 4), (3, 4)]),
    ("ij,kl->", [(3, 4), (2, 5)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("i,ij,j->", [(3,), (3, 4), (4,)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
    ("...i->...", [(2, 3, 4)]),
    ("...ij->...ji", [(3, 4)]),
    ("i...,i...->...", [(3, 2), (3, 4, 2)]),
    ("i...j", [(2, 3, 4)]),
    ("ij,j->i", [(3, 1), (4,)]),
    ("ij , jk -> ik", [(0, 4), (4, 5)]),
    ("ij,jk->ik", [(3, 0), (0, 5)]),
    (",i->i", [(), (3,)]),
    ("->", [()]),
    ("ii,i->i", [(3, 3), (3,)]),
]


@pytest.mark.parametrize(("equation", "shapes"), CASES)
def test_values_and_gradients_are_numpys(equation, shapes):
    arrays = [numbers(*s, 1)[..., 0] for s in shapes]
    want = np.einsum(equation, *arrays)
    inputs = [tensor(a, dtype="float64") for a in arrays]
    with GradManager().attach(inputs) as manager:
        found = F.einsum(equation, *inputs)
        ct = tensor(numbers(*want.shape, 2)[..., 0], dtype="float64")
        manager.backward((found * ct).sum())
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-12, atol=1e-12)
    assert found.shape == want.shape
    for k, t in enumerate(inputs):  # linear in every tensor
        direction = numbers(*t.shape, 3)[..., 0]
        changed = np.einsum(equation, *[direction if i == k else a for i, a in enumerate(arrays)])
        assert (t.grad.numpy() * direction).sum() == pytest.approx((changed * ct.numpy()).sum(), rel=1e-9, abs=1e-9)


@st.composite
def equations(draw):
    letters = string.ascii_lowercase[:5]
    lengths = {c: draw(st.integers(0, 3)) for c in letters}
    terms = draw(st.lists(st.text(letters, max_size=4), min_size=1, max_size=3))
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations(used)))[: draw(st.integers(0, len(used)))]
    return f"{','.join(terms)}->{output}", [tuple(lengths[c] for c in term) for term in terms]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(equations())
def test_random_equations(case):
    equation, shapes = case
    arrays = [numbers(*s, 1)[..., 0] for s in shapes]
    want = np.einsum(equation, *arrays)
    found = F.einsum(equation, *[tensor(a, dtype="float64") for a in arrays])
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-9, atol=1e-9)
    assert found.shape == want.shape


def test_dtypes():
    assert F.einsum("ij,jk", F.ones((2, 3)), F.ones((3, 2))).dtype == np.float32
    assert F.einsum("i,i->", tensor([1, 2, 3]), tensor([4, 5, 6])).item() == 32


@pytest.mark.parametrize(
    ("equation", "shapes", "match"),
    [
        ("ij,jk->ik", [(2, 3)], "names 2 tensors; got 1"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "'j' stands for axes of length 3 and 4"),
        ("ii->i", [(2, 3)], "'i' stands for axes of length 2 and 3"),
        ("ij->i", [(2,)], "names 2 axes; got a tensor of 1"),
        ("i->i", [(2, 3)], "names 1 axis; got a tensor of 2"),
        ("ij->ik", [(2, 3)], "'ik'; expected letters of the terms"),
        ("ij->ii", [(2, 3)], "'ii'; expected letters of the terms"),
        ("i1->i", [(2, 3)], "expected letters, and '...' at most once"),
        ("i......->i", [(2, 3)], "at most once"),
        ("->", [], "got no tensors"),
        (3, [(2,)], "equation is 3; expected a text"),
    ],
)
def test_wrong_equations(equation, shapes, match):
    with pytest.raises(MegEngineError, match=match):
        F.einsum(equation, *[F.ones(s) for s in shapes])
