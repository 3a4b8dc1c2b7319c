"""Native update rules at every instruction set: the float64 formula, the same bits everywhere, nothing past the end."""

import numpy as np
import pytest

from megengine.kernels import _core, isa, updates

MOMENTS = (0.9, 0.1, 0.99, 0.01, 1.3, 1e-3, 0.02)
SCALARS = {
    "sgd": (0.1,),
    "momentum": (0.1, 0.9),
    "nesterov": (0.1, 0.9),
    "adam": (*MOMENTS, 0.97),
    "moments": (*MOMENTS, 0.05),
    "adagrad": (0.1, 1e-3),
    "adadelta": (0.5, 0.9, 0.1, 1e-3),
}
STATES = {"sgd": 0, "momentum": 1, "nesterov": 1, "adagrad": 1}
MARGIN = 16


def formula(rule, w, g, a, b, k):
    """New value and state, in the precision of the arguments."""
    if rule == "sgd":
        return w - k[0] * g, a, b
    if rule in ("momentum", "nesterov"):
        a = a * k[1] + g
        return w - k[0] * (g + k[1] * a if rule == "nesterov" else a), a, b
    if rule in ("adam", "moments"):
        a, b = a * k[0] + k[1] * g, b * k[2] + g * g * k[3]
        ratio = a / (np.sqrt(b) * k[4] + k[5]) * k[6]
        return (w * k[7] - ratio if rule == "adam" else ratio + k[7] * w), a, b
    if rule == "adagrad":
        a = a + g * g
        return w - k[0] * g / np.sqrt(a + k[1]), a, b
    a = a * k[1] + k[2] * g * g
    delta = np.sqrt(b + k[3]) / np.sqrt(a + k[3]) * g
    return w - k[0] * delta, a, b * k[1] + k[2] * delta * delta


def guarded(array):
    """The array between margins, and the whole."""
    whole = np.full(array.size + 2 * MARGIN, 77, np.float32)
    inner = whole[MARGIN : MARGIN + array.size]
    inner[:] = array
    return inner, whole


def run(rule, arrays, decay, *, in_place):
    made = [guarded(a) for a in arrays]
    w, g, *states = (inner for inner, _ in made)
    states = states[: STATES.get(rule, 2)]
    out, whole = (w, made[0][1]) if in_place else guarded(np.zeros_like(w))
    _core.update(updates.RULES.index(rule), [w], [g], states, [out], decay, SCALARS[rule])
    for _, margins in (*made, (out, whole)):
        assert (margins[:MARGIN] == 77).all() and (margins[margins.size - MARGIN :] == 77).all()
    np.testing.assert_array_equal(g, arrays[1])
    return np.stack([out, *states])


@pytest.mark.parametrize("decay", [0.0, 0.25])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 15, 16, 17, 33, 1000])
@pytest.mark.parametrize("rule", SCALARS)
def test_every_level_gives_the_formula_and_the_same_bits(rule, size, decay):
    rng = np.random.default_rng(size)
    arrays = [rng.standard_normal(size).astype(np.float32) for _ in range(4)]
    arrays[2:] = [abs(a) for a in arrays[2:]]
    w, g, a, b = (x.astype(np.float64) for x in arrays)
    want = formula(rule, w, g + decay * w, a, b, SCALARS[rule])[: 1 + STATES.get(rule, 2)]
    found = []
    for level in isa.available():
        with isa.capped(level):
            found += [run(rule, arrays, decay, in_place=where) for where in (False, True)]
    np.testing.assert_allclose(found[0], np.stack(want), rtol=1e-5, atol=1e-6)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_every_native_rule_is_listed_and_wrong_calls_are_refused():
    assert tuple(SCALARS) == updates.RULES
    x, short = np.zeros(4, np.float32), np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="no such rule"):
        _core.update(len(SCALARS), [x], [x], [], [x], 0.0, (1.0,))
    with pytest.raises(ValueError, match="another number of arrays or scalars"):
        _core.update(0, [x], [x], [x], [x], 0.0, (1.0,))
    with pytest.raises(ValueError, match="another number of arrays or scalars"):
        _core.update(0, [x], [x], [], [x], 0.0, (1.0, 2.0))
    with pytest.raises(ValueError, match="arrays of one size"):
        _core.update(1, [x], [x], [short], [x], 0.0, (1.0, 2.0))
    with pytest.raises(TypeError):  # no hidden copy: its results would be lost
        _core.update(0, [x], [x], [], [np.zeros((4, 2), np.float32)[:, 0]], 0.0, (1.0,))
    assert (x == 0).all()
