"""Names that MegEngine's modules have beside their functions: each does what it says."""

# pyright: reportOperatorIssue=false, reportOptionalMemberAccess=false

import logging

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import device
from megengine.autodiff.grad_manager import AttachSpec, GradManager, GradManagerGroup
from megengine.core.errors import ArgumentError, DeviceError, GradientError, OptionError, ShapeError
from megengine.dispatch.apply import active_interposers
from megengine.functional import debug_param, external, helpers, tensor_cache
from megengine.kernels import cuda
from megengine.logger import MegBrainLogFormatter, replace_mgb_log_level
from megengine.module import external as external_modules
from megengine.utils.network import set_symbolic_shape


def test_shapes_and_dtypes():
    assert helpers.expand_hw(3) == (3, 3)
    assert helpers.expand_hw((1, 2, 3)) == (1, 2)
    assert helpers.expand_dhw(3) == (3, 3, 3)
    assert helpers.make_shape_tuple(3) == (3,)
    assert helpers.make_shape_tuple(mge.tensor([1, 2])) == helpers.make_shape_tuple([1, 2]) == (1, 2)
    for call in (lambda: helpers.expand_hw((1,)), lambda: helpers.expand_dhw("abc"), lambda: helpers.expand_hw(1.5)):
        with pytest.raises((ShapeError, TypeError)):
            call()
    with pytest.raises(ShapeError, match="make_shape_tuple"):
        helpers.make_shape_tuple([[1]])
    one, half = mge.tensor([1]), mge.tensor([1.0], dtype="float16")
    assert helpers.dtype_promotion([mge.tensor([1.0]), one]) == np.float32
    assert helpers.dtype_promotion((half, 2.0)) == np.float16
    with pytest.raises(OptionError, match="at least one"):
        helpers.dtype_promotion([])
    assert helpers.get_device([1, one]) == "cpu0"
    assert helpers.get_device(1) == mge.get_default_device()


def test_functions_by_other_names():
    x = mge.tensor(np.arange(16, dtype=np.float32).reshape(1, 4, 2, 2))
    same = [
        (F.nn.layerPixelShuffle_traceable(x, 2), F.pixel_shuffle(x, 2)),
        (F.nn.adaptive_pool2d_cpp(x, (1, 1), "max"), F.adaptive_max_pool2d(x, 1)),
        (F.nn.adaptive_pool2d_cpp(x, 1, "AVERAGE"), F.adaptive_avg_pool2d(x, 1)),
        (F.tensor.broadcast_cpp(x, (3, 4, 2, 2)), F.broadcast_to(x, (3, 4, 2, 2))),
        (F.tensor.split_cpp(x, 2, 1)[1], F.split(x, 2, 1)[1]),
        (F.tensor.squeeze_cpp(F.tensor.expand_dims_cpp(x, 0), 0), x),
        (F.elemwise.hswish(x), F.hswish(x)),
        (F.nn.Const(2.5, np.float32, "cpu0"), mge.tensor(2.5)),
        (tensor_cache.get_scalar_zero_point_five("float32"), mge.tensor(0.5)),
        (tensor_cache.get_scalar_two(), mge.tensor(2)),
        (tensor_cache.get_scalar_one("float16") + tensor_cache.get_scalar_zero("float16"), mge.tensor(1, "float16")),
    ]
    for got, expected in same:
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got.numpy(), expected.numpy())
    with pytest.raises(OptionError, match=r"mode is 'maxx'; expected 'max' or 'average'; did you mean 'max'"):
        F.nn.adaptive_pool2d_cpp(x, 1, "maxx")


def test_strategies_are_kept():
    before = debug_param.get_execution_strategy()
    try:
        debug_param.set_execution_strategy("PROFILE_REPRODUCIBLE")
        both = debug_param.Strategy.PROFILE | debug_param.Strategy.REPRODUCIBLE
        assert debug_param.get_conv_execution_strategy() == both
        with pytest.raises(OptionError, match="did you mean 'PROFILE'"):
            debug_param.set_execution_strategy("PROFIL")
        assert debug_param.get_execution_strategy() == both
    finally:
        debug_param.set_execution_strategy(before)


@pytest.mark.parametrize("name", external.__all__)
def test_other_engines_are_refused_with_the_way_out(name):
    arguments = {"inputs": [], "data": b"", "symbol": "", "tensor_dim_mutable": False, "output_shapes": []}
    arguments |= {"dump_name": "", "dump_data": b"", "output_dtypes": None}
    function = getattr(external, name)
    wanted = {k: v for k, v in arguments.items() if k in function.__annotations__}
    with pytest.raises(OptionError, match="convert the original model to ONNX"):
        function(**wanted)


@pytest.mark.parametrize("name", external_modules.__all__)
def test_layers_of_other_engines_are_refused(name):
    cls = getattr(external_modules, name)
    arguments = dict.fromkeys(set(cls.__init__.__annotations__) - {"kwargs", "return"}, b"")
    with pytest.raises(OptionError, match="convert the original model to ONNX"):
        cls(**arguments)


def test_groups_of_managers():
    x = mge.tensor([2.0])
    managers = [GradManager().attach(x) for _ in range(3)]
    group = managers[0] | managers[1] | managers[2]
    assert isinstance(group, GradManagerGroup)
    with group:
        y = x * x
        managers[2].backward(y)
        managers[0].backward(y)
    assert x.grad.item() == 8
    assert active_interposers() == ()  # whichever of them ended first
    with pytest.raises(GradientError, match="nothing was recorded"):
        managers[1].backward(y)
    with managers[2], pytest.raises(GradientError, match="records already"), managers[0] | managers[2]:
        pass
    managers[0].record()  # was not left recording
    managers[0].release()
    with pytest.raises(GradientError, match="got int"):
        managers[0] | 3
    assert (AttachSpec().tensor, AttachSpec().callbacks) == (None, [])


def test_memory_and_versions():
    total, free = mge.get_mem_status_bytes()
    assert 0 < free <= total
    assert mge.get_mem_status_bytes("cpu0")[0] == total
    assert mge.get_cudnn_version() == mge.get_tensorrt_version() == 0
    with pytest.raises(DeviceError, match="unknown device 'tpu'"):
        mge.get_mem_status_bytes("tpu")
    assert [mge.get_device_count(kind) for kind in ("cpu", "xpu", "rocm")] == [1, 1, 0]
    with pytest.raises(OptionError, match=r"device_type is 'cpus'.*did you mean 'cpu'"):
        mge.get_device_count("cpus")
    with pytest.raises(OptionError, match="growth_factor is 0.5; expected 1 or more"):
        mge.set_prealloc_config(growth_factor=0.5)


@pytest.mark.skipif(cuda.available(), reason="there is a CUDA device")
def test_without_cuda():
    assert mge.get_cuda_driver_version() == 0
    for call in (
        mge.get_cuda_version,
        lambda: mge.get_cuda_device_property(0),
        lambda: mge.get_cuda_compute_capability(0),
    ):
        with pytest.raises(DeviceError, match="CuPy|CUDA"):
            call()
    with pytest.raises(DeviceError, match=r"expected DeviceType.CUDA"):
        mge.get_cuda_compute_capability(0, device.DeviceType.ROCM)


def test_levels_and_formatters():
    log = mge.get_logger()
    before = log.level
    with pytest.raises(ValueError, match="x"), replace_mgb_log_level("ERROR"):
        assert log.level == logging.ERROR
        raise ValueError("x")
    assert log.level == before
    record = logging.LogRecord("n", logging.WARNING, "c.py", 12, "hello %s", ("w",), None)
    assert MegBrainLogFormatter(datefmt="%d").format(record).endswith("WARNING hello w")


def test_parameters_are_replaced_all_or_none():
    net = M.Linear(2, 3)
    weight, bias = net.weight, net.bias
    new = mge.Parameter(np.zeros(3, np.float32))
    with pytest.raises(ShapeError, match=r"for weight got a shape of \(3,\); expected \(3, 2\)"):
        net.replace_param({0: new, 1: new}, 0)
    with pytest.raises(ArgumentError, match="for bias got .*; expected a Parameter"):
        net.replace_param({0: 3}, 0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="got params=\\[1\\], start_pos=0; expected parameters by place"):
        net.replace_param([1], 0)  # pyright: ignore[reportArgumentType]
    assert net.weight is weight and net.bias is bias
    holder = M.Sequential(net)
    holder.rows = [net, mge.Parameter([1.0])]
    seen = {id(holder)}
    assert holder.replace_param({2: mge.Parameter([5.0])}, 0, seen) == 3
    assert holder.rows[1].item() == 5 and id(net) in seen


def test_old_methods_do_nothing():
    assert mge.optimizer.SGD(M.Linear(2, 3).parameters(), lr=0.1).bcast_param() is None


@pytest.mark.parametrize("name", ["lite", "xla", "experimental", "optim"])
def test_parts_that_are_not_here_say_so(name):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': \w+"):
        getattr(mge, name)


def test_symbolic_shapes_are_a_setting_without_effect():
    before = set_symbolic_shape(False)
    assert set_symbolic_shape(before) is False
