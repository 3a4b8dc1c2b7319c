"""Networks of the zoo on the GPU beside the processor: float within rounding, integers bit for bit; plans too."""

import contextlib
import functools
import warnings

import numpy as np
import pytest
from gpu_calls import leaves, move, moved
from zoo import ZOO

import megengine as mge
from megengine.core.errors import MegEngineError
from megengine.core.pytree import flatten
from megengine.plan import compile as compile_plan
from megengine.quantization.pipeline.quantize import quantize_model
from megengine.tensor import Tensor
from megengine.traced_module import interpret, lower, trace_module

UNROLLED = {"seq2seq"}  # loops over the length of its input


def _arguments(name, given):
    kwargs = given[-1] if isinstance(given[-1], dict) and name == "autoencoder" else {}
    return given[: len(given) - bool(kwargs)], kwargs


@functools.cache
def _of_cpu(name):
    net, given = ZOO[name]()
    args, kwargs = _arguments(name, given)
    return net, args, kwargs, leaves(net(*args, **kwargs))


def _close(found, wanted, rtol=1e-4) -> None:
    for have, want in zip(found, wanted, strict=True):
        assert have.shape == want.shape and have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=rtol, atol=rtol * max(float(np.abs(want).max(initial=0)), 1))


@pytest.mark.parametrize("name", ZOO)
def test_float_network(name):
    wanted = _of_cpu(name)[3]
    net, given = ZOO[name]()
    args, kwargs = _arguments(name, given)
    args, kwargs = moved(args, "gpu0"), moved(kwargs, "gpu0")
    mge.set_default_device("gpu0")  # of tensors that a network makes; a fixture sets it back
    out = move(net, "gpu0")(*args, **kwargs)
    _close(leaves(out), wanted)


def _graph(name):
    net, args, kwargs, _ = _of_cpu(name)
    with warnings.catch_warnings() if name in UNROLLED else contextlib.nullcontext():
        if name in UNROLLED:
            warnings.simplefilter("ignore")
        return lower(trace_module(net, *args, **kwargs)).graph, args, kwargs


@pytest.mark.parametrize("name", ZOO)
def test_float_plan(name):
    graph, args, kwargs = _graph(name)
    inputs = [x.numpy() for x in _inputs(args, kwargs)]
    if len(inputs) != len(graph.inputs):
        pytest.skip("arguments that are no tensors")
    plan = compile_plan(graph, device="gpu0")
    wanted = compile_plan(graph)(*inputs)
    for _ in range(3):  # step by step, captured, replayed
        _close([np.asarray(a) for a in plan(*inputs)], wanted)


def _inputs(args, kwargs):
    return [x for x in flatten((args, kwargs))[0] if isinstance(x, Tensor)]


@pytest.mark.parametrize("name", ZOO)
def test_integer_plan(name):
    """Integers are equal to those of the specification, node by node on the processor."""
    graph, args, kwargs = _graph(name)
    inputs = _inputs(args, kwargs)
    data = tuple(x.numpy() for x in inputs)
    try:
        integer = quantize_model(graph, [data if len(data) > 1 else data[0]]).integer_graph
    except MegEngineError as exc:
        pytest.skip(f"not quantized: {exc}")
    wanted = [t.numpy() for t in interpret(integer, inputs)]
    found = compile_plan(integer, device="gpu0")(*data)
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(have), want)
