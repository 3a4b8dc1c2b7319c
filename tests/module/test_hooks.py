"""Hooks: they run in the order of registration, each removal takes its own away, and what they return counts."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import megengine as mge
import megengine.module as M

# a step of a script: register a hook of a kind, remove the handle of that number (again), or call
STEPS = st.lists(
    st.one_of(st.sampled_from(["pre", "post", "call"]), st.tuples(st.just("remove"), st.integers(0, 9))), max_size=25
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_what_runs_is_what_stands(steps):
    layer, x = M.Identity(), mge.tensor([1.0])
    heard, handles, standing = [], [], {"pre": [], "post": []}
    for step in steps:
        if step == "call":
            heard.clear()
            layer(x)
            assert heard == standing["pre"] + standing["post"]
        elif isinstance(step, tuple):
            if step[1] < len(handles):
                kind, number, handle = handles[step[1]]
                handle.remove()
                if number in standing[kind]:
                    standing[kind].remove(number)
        else:
            number = len(handles)
            register = layer.register_forward_pre_hook if step == "pre" else layer.register_forward_hook
            handles.append((step, number, register(lambda *_, number=number: heard.append(number))))
            standing[step].append(number)


def test_a_handle_used_twice_leaves_the_hooks_of_others():
    layer, heard = M.Identity(), []
    first = layer.register_forward_hook(lambda *_: heard.append("first"))
    first.remove()
    layer.register_forward_hook(lambda *_: heard.append("second"))  # it may get the number of the first
    first.remove()
    layer(mge.tensor([1.0]))
    assert heard == ["second"]


@pytest.mark.parametrize("kind", ["register_forward_pre_hook", "register_forward_hook"])
def test_hooks_come_and_go_during_a_call(kind):
    layer, heard, x = M.Identity(), [], mge.tensor([1.0])
    register = getattr(layer, kind)

    def once(*_):
        heard.append("once")
        handle.remove()
        register(lambda *_: heard.append("new"))

    handle = register(once)
    register(lambda *_: heard.append("always"))
    layer(x)
    assert heard == ["once", "always"]
    heard.clear()
    layer(x)
    assert heard == ["always", "new"]


def test_what_hooks_return_counts():
    layer, x = M.Identity(), mge.tensor([1.0])
    layer.register_forward_pre_hook(lambda _, inputs: inputs[0] + 1)  # one value stands for the inputs
    layer.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 3,))
    layer.register_forward_hook(lambda _, inputs, outputs: outputs + inputs[0])
    layer.register_forward_hook(lambda *_: None)  # keeps what there is
    assert layer(x).item() == 12


def test_a_hook_that_raises_leaves_all_as_it_was():
    layer, heard, x = M.Identity(), [], mge.tensor([1.0])

    def refuse(*_):
        raise KeyError("refused")

    handle = layer.register_forward_hook(refuse)
    layer.register_forward_hook(lambda *_: heard.append(1))
    with pytest.raises(KeyError, match="refused"):
        layer(x)
    handle.remove()
    layer(x)
    assert heard == [1]


def test_copies_have_hooks_of_their_own():
    layer, heard, x = M.Identity(), [], mge.tensor([1.0])
    handle = layer.register_forward_hook(lambda module, *_: heard.append(module))
    copied = copy.deepcopy(layer)
    handle.remove()
    layer(x)
    copied(x)
    assert heard == [copied]
