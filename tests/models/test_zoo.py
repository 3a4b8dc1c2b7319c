"""The zoo through every stage: traced, flattened, optimised, saved and loaded, written as Python, edited, lowered."""

import contextlib
import functools
import importlib.util

import numpy as np
import pytest
from zoo import ZOO

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.pytree import flatten
from megengine.quantization.pipeline.quantize import quantize_model
from megengine.tensor import Tensor
from megengine.traced_module import SpecializationWarning, interpret, lower, trace_module
from megengine.traced_module.passes import optimize
from megengine.traced_module.source import save_source

WEIGHTED = (M.Conv1d, M.Conv2d, M.Conv3d, M.ConvTranspose2d, M.Linear)
UNROLLED = {"seq2seq"}  # loops over the length of its input


class Traced:
    """A network of the zoo, its result, and its graph."""

    def __init__(self, name):
        self.net, given = ZOO[name]()
        self.kwargs = given[-1] if isinstance(given[-1], dict) and name == "autoencoder" else {}
        self.args = given[: len(given) - bool(self.kwargs)]
        self.want = self.net(*self.args, **self.kwargs)
        with pytest.warns(SpecializationWarning) if name in UNROLLED else contextlib.nullcontext():
            self.graph = trace_module(self.net, *self.args, **self.kwargs)

    def check(self, module, *, exact=True, want=None):
        """The module gives what the network gives, and its graphs have no fault."""
        module.graph.lint()
        self.compare(module(*self.args, **self.kwargs), exact=exact, want=want)

    def compare(self, got, *, exact=True, want=None):
        for a, b in zip(leaves(got), leaves(self.want if want is None else want), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            if exact:
                np.testing.assert_array_equal(a, b)
            else:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(np.abs(b).max(initial=0), 1))


def leaves(value):
    """Arrays of a nested result, dicts by sorted keys."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value.numpy()]


@functools.cache
def traced(name):
    return Traced(name)


@pytest.mark.parametrize("name", ZOO)
def test_traced_and_flattened(name):
    model = traced(name)
    assert all(np.isfinite(a).all() and (a.size == 1 or np.ptp(a) > 0) for a in leaves(model.want))
    model.check(model.graph)
    model.check(model.graph.flatten())
    assert len({id(p) for p in model.graph.parameters()}) <= len(list(model.net.parameters()))


@pytest.mark.parametrize("name", ZOO)
def test_optimised(name):
    model = traced(name)
    for module in (model.graph, model.graph.flatten()):
        before = repr(module)
        made = optimize(module, "all")
        model.check(made, exact=False)
        assert repr(optimize(made, "all")) == repr(made)
        assert repr(module) == before
    model.check(optimize(model.graph), exact=False)


@pytest.mark.parametrize("name", ZOO)
def test_saved_and_loaded(name, tmp_path):
    model = traced(name)
    for file in ("net.tm", "net.mgt"):
        mge.save(model.graph, tmp_path / file)
        model.check(mge.load(tmp_path / file))


@pytest.mark.parametrize("name", ZOO)
def test_written_as_python(name, tmp_path):
    model = traced(name)
    for i, module in enumerate((model.graph, optimize(model.graph))):
        path = tmp_path / f"net{i}.py"
        save_source(module, path)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        generated = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(generated)
        got = generated.load()(*model.args, **model.kwargs)
        model.compare(got, want=module(*model.args, **model.kwargs))


def doubled(_, __, result):
    return F.relu(result) * 2 + result


@pytest.mark.parametrize("name", ZOO)
def test_edited(name):
    """An op behind every weighted layer is what a hook on that layer does."""
    model = traced(name)
    inner = {
        id(m)
        for layer in model.net.modules()
        if isinstance(layer, (M.LinearBnRelu1d, M.LSTM, M.RNN))
        for m in layer.modules()
    }
    hooked = [m for m in model.net.modules() if type(m) in WEIGHTED and id(m) not in inner]
    hooks = [m.register_forward_hook(doubled) for m in hooked]
    want = model.net(*model.args, **model.kwargs)
    for hook in hooks:
        hook.remove()
    for module in (model.graph.clone(), model.graph.flatten()):
        calls = [e for e in module.graph.exprs() if e.kind == "CallMethod" and e.method == "__call__"]
        calls = [e for e in calls if type(e.inputs[0].owner) in WEIGHTED]
        with module.graph.transaction():
            for expr in calls:
                with expr.top_graph.insert_exprs():
                    expr.top_graph.replace_node({expr.output: doubled(None, None, expr.output)})
        model.check(module, want=want)
        assert bool(calls) == module.graph.undo() == bool(hooked)
        model.compare(module(*model.args, **model.kwargs))


@pytest.mark.parametrize("name", ZOO)
def test_lowered(name):
    model = traced(name)
    ops = lower(model.graph)
    ops.graph.lint()
    given = [t for t in flatten((model.args, model.kwargs))[0] if isinstance(t, Tensor)]
    model.compare(ops(*given), exact=False)


@pytest.mark.parametrize("name", ["convnext", "swin", "vit", "googlenet", "yolox_head"])
def test_integers_follow_the_simulation(name):
    """Linear layers over 2, 3 and 4 axes among them: the integer graph gives what QDQ gives, up to single steps."""
    model = traced(name)
    made = quantize_model(lower(model.graph).graph, [model.args[0].numpy()])
    simulated, integers = (interpret(g, model.args) for g in (made.qdq_graph, made.integer_graph))
    for a, b in zip(simulated, integers, strict=True):
        a, b = a.numpy(), b.numpy()
        assert np.abs(a - b).max() <= 0.02 * np.abs(a).max()
