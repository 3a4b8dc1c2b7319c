"""Modules from functions, and the check that a trace gives what the module gives in every form of the graph."""

import numpy as np
from megengine_graphs import leaves

import megengine as mge
import megengine.module as M
from megengine.tensor import tensor
from megengine.traced_module import (
    TracedModule,
    trace_module,
)


def array(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def picture(*shape):
    return tensor(array(*shape))


def module_of(function, **attributes) -> M.Module:
    """A module with these attributes and that forward (its first parameter is the module)."""

    class Net(M.Module):
        forward = function

        def __init__(self):
            super().__init__()
            for name, value in attributes.items():
                setattr(self, name, value)

    return Net()


def same(net, *args, traced=None, **kwargs) -> TracedModule:
    """Trace a module; the graph gives what it gives, on other values too, in every form of the graph."""
    traced = trace_module(net, *args, **kwargs) if traced is None else traced
    traced.graph.lint()
    rng = np.random.default_rng(9)

    def fresh(value):
        if isinstance(value, mge.Tensor):
            return tensor(rng.standard_normal(value.shape).astype(np.float32))
        if isinstance(value, dict):
            return {k: fresh(v) for k, v in value.items()}
        return type(value)(map(fresh, value)) if isinstance(value, (list, tuple)) else value

    for given in ((args, kwargs), (fresh(args), fresh(kwargs))):
        want = net(*given[0], **given[1])
        again = trace_module(traced, *given[0], **given[1])
        for form in (traced, traced.flatten(), traced.clone(), again):
            got = form(*given[0], **given[1])
            assert shape_of(got) == shape_of(want)
            for a, b in zip(leaves(got), leaves(want), strict=True):
                if isinstance(b, mge.Tensor):
                    np.testing.assert_array_equal(a.numpy(), b.numpy())
                else:
                    assert a == b
    return traced


def shape_of(value):
    if isinstance(value, dict):
        return [(k, shape_of(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value)(map(shape_of, value))
    return getattr(value, "shape", type(value))
