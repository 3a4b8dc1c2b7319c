"""What public training and conversion code imports from inside MegEngine: it works, or says what to use instead."""

import importlib
import subprocess
import sys

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import MegEngineError, MissingImportError, MissingModuleError
from megengine.traced_module import trace_module

# lines as programs have them: YOLOX, BaseCls, detection and conversion tools, models of several years
WORKING = """
from megengine import _full_sync
from megengine.core import _config, _imperative_rt, _trace_option, get_option, ops, set_option
from megengine.core._config import set_option, get_option
from megengine.core._imperative_rt import CompNode, ComputingGraph, DeviceType, OpDef, OperatorNodeConfig, VarNode
from megengine.core._imperative_rt import GraphInference, GraphProfiler, SerializationMetadata, common, imperative
from megengine.core._imperative_rt.common import CompNode, bfloat16, pyintb1
from megengine.core._imperative_rt.core2 import Tensor, apply, full_sync, pop_scope, push_scope, sync
from megengine.core._imperative_rt.core2 import Tensor as RawTensor
from megengine.core._imperative_rt.core2 import add_backward_callback, getitem_cpp, make_shape_tuple, setitem_cpp
from megengine.core._imperative_rt.imperative import make_backward_graph
from megengine.core._imperative_rt.ops import CollectiveComm, Elemwise, GetVarShape, SubgraphBuilder, new_rng_handle
from megengine.core._imperative_rt.utils import PersistentCache, _try_coalesce_all_free_memory
from megengine.core._trace_option import set_symbolic_shape, use_symbolic_shape
from megengine.core.autodiff.grad import Function, Grad
from megengine.core.ops import builtin
from megengine.core.ops.builtin import BatchNorm, Copy, FakeQuant, IndexingMultiAxisVec, Reduce, Subtensor
from megengine.core.ops.special import Const
from megengine.core.tensor import amp, array_method, dtype, megbrain_graph, raw_tensor, utils
from megengine.core.tensor.array_method import ArrayMethodMixin, _normalize_axis
from megengine.core.tensor.dtype import QuantDtypeMeta, _builtin_quant_dtypes, get_scale, intb1, intb2, intb4
from megengine.core.tensor.dtype import convert_from_qint8, convert_to_qint8, is_differentible_dtype
from megengine.core.tensor.megbrain_graph import Graph, InputNode, OutputNode, ValueOutputNode, load_graph
from megengine.core.tensor.raw_tensor import RawTensor, as_raw_tensor
from megengine.core.tensor.utils import astensor1d, convert_inputs, isscalar, make_shape_tuple, subgraph, subgraph_fn
from megengine.core.tensor_factory import ones, zeros
from megengine.device import CompNode, DeviceType
from megengine.functional.inplace import _inplace_add_
from megengine.functional.utils import _assert_equal, _sync
from megengine.jit.tracing import exclude_from_trace, is_tracing, trace
from megengine.module.module import _access_structure, _expand_structure
from megengine.quantization.modules.conversion import _get_quantable_module_names
from megengine.traced_module.fake_quant import FakeQuantize
from megengine.traced_module.module_tracer import active_module_tracer, module_tracer
from megengine.traced_module.serialization import _ModuleState
from megengine.utils.persistent_cache import PersistentCacheOnServer
from megengine.utils.tuple_function import _pair, _pair_nonzero, _quadruple, _single, _triple, get_ndtuple
""".strip().splitlines()


@pytest.mark.parametrize("line", WORKING, ids=lambda line: line.removeprefix("from megengine")[:60])
def test_lines_of_programs_are_imported(line):
    exec(line, {})


EXPLAINED = {
    "from megengine.core import Tensor": "it is megengine.Tensor",
    "from megengine.core import Buffer": "one of its buffers",
    "from megengine.core._imperative_rt.core2 import config_async_level": "set megengine.config.async_level",
    "from megengine.core._imperative_rt.core2 import TensorWeakRef": "use weakref.ref",
    "from megengine.core._imperative_rt.utils import Logger": "use megengine.logger",
    "from megengine.core._imperative_rt.utils import _set_defrag": "processes and memory",
    "from megengine.core._wrap import Device": "megengine.device.CompNode",
    "from megengine.core.device import set_default_device": "it is megengine.device",
    "from megengine.core.graph import Graph": "megengine.traced_module holds graphs",
    "from megengine.core.serialization import load": "it is megengine.serialization",
    "from megengine.core.tensor.core import apply": "megengine.core._imperative_rt.core2",
    "from megengine.core.tensor.function import Function": "Function is in megengine.autodiff",
    "from megengine.core.tensor.indexing import getitem": r"write x\[key\]",
    "from megengine.core.tensor.tensor import Tensor": "it is megengine.Tensor",
    "from megengine.core.tensor.tensor_wrapper import TensorWrapper": "it is megengine.Tensor",
    "from megengine.core.tensor.utils import setscalar": r"use x.reshape",
    "from megengine.core.tensor_nn import Parameter": "Parameter is in megengine",
    "import megengine._internal": "of MegEngine 0.x",
}


@pytest.mark.parametrize(("line", "why"), EXPLAINED.items(), ids=[line[5:65] for line in EXPLAINED])
def test_lines_that_fail_name_the_replacement(line, why):
    with pytest.raises((MissingImportError, MissingModuleError), match=why):
        exec(line, {})


@pytest.mark.parametrize(
    ("home", "name", "why"),
    [
        ("megengine.core._imperative_rt", "ComputingGraph", "graphs of version 1 are not here; trace a module"),
        ("megengine.core.tensor.megbrain_graph", "load_graph", r"read .tm files .*megengine.convert.mge.load"),
        ("megengine.core._imperative_rt.graph", "dump_graph", "megengine.save"),
        ("megengine.core._imperative_rt.utils", "create_mm_server", "training runs in one process"),
        ("megengine.core._imperative_rt.core2", "start_profile", "megengine.utils.profiler.Profiler"),
        ("megengine.core._imperative_rt.utils", "PersistentCache", "without a cache of measurements"),
        ("megengine.core._imperative_rt.core2", "Trace", "megengine.traced_module captures modules"),
    ],
)
def test_what_can_only_be_imported_says_at_the_call_what_to_use(home, name, why):
    kind = getattr(importlib.import_module(home), name)
    assert isinstance(kind, type)
    assert not isinstance(3, kind)
    with pytest.raises(MegEngineError, match=f"{name}: .*{why}"):
        kind("a", b=1)


def test_inside_names_cost_nothing_until_they_are_named():
    code = (
        "import sys, megengine as mge\n"
        "assert not [m for m in sys.modules if m.startswith(('megengine.compat', 'megengine.core._imp'))]\n"
        "assert mge.core._imperative_rt.ops.Elemwise is mge.core.ops.builtin.Elemwise\n"
        "assert 'megengine.compat.builtin' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.filterwarnings("ignore:.* has no effect")
def test_options_of_the_interpreter():
    """They are kept; a name that does not exist is an IndexError, as there."""
    from megengine.core import _config, get_option, set_option

    assert get_option("dtr_evictee_minimum_size") == 1048576
    before = get_option("enable_drop")
    set_option("enable_drop", 1)
    assert get_option("enable_drop") == 1
    set_option("enable_drop", before)
    with pytest.raises(IndexError, match="set_option: no option 'enable_drp'; .*did you mean 'enable_drop'"):
        set_option("enable_drp", 1)
    with pytest.raises(MegEngineError, match="enable_drop is 'a'; expected an integer"):
        set_option("enable_drop", "a")
    assert (_config.get_option, _config.async_level) == (get_option, mge.config.async_level)
    with _config._override(deterministic_kernel=True, compute_mode="float32"):
        assert mge.config.deterministic_kernel is _config._deterministic_kernel is True
    assert _config.deterministic_kernel is False
    _config.benchmark_kernel = False
    with pytest.raises(AttributeError, match="no attribute 'benchmark_kernl'; did you mean 'benchmark_kernel'"):
        _config.benchmark_kernl  # type: ignore[attr-defined]


def test_scopes_end_in_the_order_of_their_beginning():
    from megengine.core._imperative_rt.core2 import pop_scope, push_scope, sync

    push_scope("a")
    with pytest.raises(RuntimeError, match="pop_scope: got 'b'; the scope that began last is 'a'"):
        pop_scope("b")
    pop_scope("a")
    assert (sync(), mge._full_sync()) == (None, None)


def test_sums_in_place():
    from megengine.functional.inplace import _inplace_add_

    x = mge.Parameter([1.0, 2.0])
    assert _inplace_add_(x, mge.tensor([1.0, 1.0]), alpha=mge.tensor(2.0), beta=mge.tensor(3.0)) is x
    assert (x.tolist(), type(x)) == ([5.0, 7.0], mge.Parameter)
    with pytest.raises(TypeError, match=r"_inplace_add_: dest is \[1.0\]; expected a tensor"):
        _inplace_add_([1.0], x, 1, 1)


def test_paths_below_a_module():
    from megengine.module.module import _access_structure, _expand_structure

    net = M.Sequential(M.Linear(2, 3))
    net.parts = [M.Linear(2, 3), {"k": M.Linear(3, 2)}]
    assert _access_structure(net, "parts.1.k") is net.parts[1]["k"]
    assert _access_structure(net, "parts.0.weight") is net.parts[0].weight
    seen = _access_structure(net, "parts.0", lambda *found: found)
    assert seen == (net.parts, 0, net.parts[0])
    with pytest.raises(AttributeError, match=r"nothing at 'parts.2': '2' is missing in a list"):
        _access_structure(net, "parts.2")
    assert [name for name, _ in _expand_structure("p", net.parts)] == ["p.0", "p.1.k"]
    assert _expand_structure("p", 3) == []


def test_shapes_of_biases_and_tensors():
    for layer, shape in (
        (M.Conv2d(2, 4, 3), (1, 4, 1, 1)),
        (M.Conv1d(2, 4, 3), (1, 4, 1)),
        (M.Conv3d(2, 4, 1), (1, 4, 1, 1, 1)),
    ):
        assert layer._infer_bias_shape() == shape
    assert mge.tensor(np.zeros((2, 3)))._tuple_shape == (2, 3)


def test_devices_by_their_class():
    from megengine.device import CompNode, DeviceType

    device = CompNode("xpux")
    assert device == "cpu0" == mge.tensor(1.0, device=device).device
    assert (device.logical_name, device.physical_name) == ("xpux:0", "cpu0:0")
    assert device.physical_locator == ("cpu", 0, 0)
    assert device.get_mem_status_bytes[0] > device.get_used_memory >= 0
    assert CompNode._get_device_count(DeviceType.CPU) == 1
    assert CompNode._get_default_device() == mge.get_default_device()
    assert CompNode._sync_all() is None
    with pytest.raises(RuntimeError, match="unknown device 'foo'"):
        CompNode("foo")


def test_caches_keep_what_they_are_given():
    from megengine.utils.persistent_cache import PersistentCacheOnServer

    cache = PersistentCacheOnServer()
    cache.reg()
    cache.put("a", 1, b"x")
    assert (cache.get("a", 1), cache.get("b", 1)) == (b"x", None)
    with cache.lock_cache_file(cache.get_cache_dir()):
        cache.clean()
    assert cache.get("a", 1) is None
    assert cache.get_cache_file("d").startswith("d")


def test_tracing_is_never_on():
    from megengine.jit import tracing

    assert not tracing.is_tracing() and not tracing.is_profiling() and tracing.active_trace is None
    assert tracing.trace(lambda x: x + 1)(1) == 2
    assert tracing.array_comparator(np.ones(2), np.ones(2))
    with pytest.raises(ImportError, match="get_marked_tensr"):
        exec("from megengine.jit.tracing import get_marked_tensr")


def test_states_of_layers():
    from megengine.traced_module.serialization import _convert_kwargs_to_args, _ModuleState

    layer = M.Linear(2, 3)
    state = _ModuleState.get_module_state(layer)
    assert state.module == ("megengine.module.linear", "Linear")
    assert state.to_module() is layer
    made = _ModuleState(state.module, state.state, state.version).to_module()
    np.testing.assert_array_equal(made.weight.numpy(), layer.weight.numpy())
    with pytest.raises(MegEngineError, match="os.system"):
        _ModuleState(("os", "system"), {}, "1.13.0").to_module()

    assert _convert_kwargs_to_args(lambda a, b=2, *, c=3: None, (1,), {"c": 4}) == ((1, 2), {"c": 4})
    assert _convert_kwargs_to_args(lambda a, b=2, c=3: None, (1,), {"c": 4}) == ((1, 2, 4), {})
    assert _convert_kwargs_to_args(lambda self, a, b=2: None, (1,), {}, is_bounded=True) == ((1, 2), {})
    with pytest.raises(TypeError, match="missing required positional argument: b"):
        _convert_kwargs_to_args(lambda a, b: None, (1,), {})


class Called(M.Module):
    def __init__(self):
        super().__init__()
        self.fc = M.Linear(3, 3)

    def forward(self, x):
        x = self.fc(x)
        return F.softmax(x, axis=1), x.sum(axis=1), F.concat([x, x], axis=1)


def test_arguments_of_recorded_calls_are_replaced():
    """As MegEngine 1.13.0 writes the calls: defaults are filled in, and arguments stand by position."""
    from megengine.traced_module.serialization import _replace_args_kwargs

    x = mge.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    traced = trace_module(Called(), x)
    softmax, total, concat = (node.expr for node in traced.graph.outputs)
    fc = softmax.inputs[0].expr
    assert _replace_args_kwargs(softmax, (softmax.inputs[0],), {"axis": 0}) is None
    assert (softmax.args, softmax.kwargs) == ((fc.outputs[0], 0), {})
    _replace_args_kwargs(total, total.inputs, {"axis": 0, "keepdims": True})
    assert (total.args, total.kwargs) == ((fc.outputs[0], 0, True), {})
    _replace_args_kwargs(concat, ([traced.graph.inputs[1]],), {})
    assert concat.args == ([traced.graph.inputs[1]], 0, None)
    _replace_args_kwargs(fc, fc.inputs, {})
    y = traced.fc(x).numpy()
    for found, expected in zip(traced(x), (F.softmax(mge.tensor(y), 0), y.sum(0, keepdims=True), x), strict=True):
        np.testing.assert_allclose(found.numpy(), np.asarray(expected), rtol=1e-6)
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        _replace_args_kwargs(softmax, softmax.args, {"foo": 1})
    with pytest.raises(TypeError, match="missing a required argument"):
        _replace_args_kwargs(softmax, (), {})


def test_layers_that_are_one_call():
    from megengine.quantization.modules.conversion import _get_quantable_module_names
    from megengine.traced_module import module_tracer as tracer

    assert tracer.active_module_tracer() is None
    assert tracer.module_tracer.is_builtin(M.Conv2d(1, 1, 1)) and not tracer.module_tracer.is_builtin(M.Module())
    assert {"__add__", "numpy"} <= set(tracer.get_tensor_wrapable_method())
    assert {"Conv2d", "Linear", "ConvBnRelu2d", "QuantStub"} <= set(_get_quantable_module_names())
