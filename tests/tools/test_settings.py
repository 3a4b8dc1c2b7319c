"""Settings without effect say so: once each, by name, at the line that set them."""

import warnings

import numpy as np
import pytest

import megengine as mge
import megengine.module as M
from megengine import amp, config, dtr, jit
from megengine.core import effectless
from megengine.core.effectless import NoEffectWarning
from megengine.data import DataLoader
from megengine.data.dataset import ArrayDataset
from megengine.functional import debug_param
from megengine.utils.network import set_symbolic_shape
from megengine.utils.profiler import Profiler


def settings(module) -> list[str]:
    return [n for n, v in vars(module).items() if n[0] != "_" and isinstance(v, (bool, int, float, str))]


DATA = ArrayDataset(np.zeros(4))
SETTINGS = {
    **{
        f"megengine.{part}.{name}": lambda module=module, name=name: setattr(module, name, getattr(module, name))
        for part, module in (("config", config), ("dtr", dtr))
        for name in settings(module)
    },
    "megengine.dtr.enable()": dtr.enable,
    "megengine.amp.convert_module_format": lambda: amp.convert_module_format(M.Linear(2, 2)),
    "megengine.amp.convert_tensor_format": lambda: amp.convert_tensor_format(mge.tensor(1.0)),
    "megengine.jit.SublinearMemoryConfig": jit.SublinearMemoryConfig,
    "megengine.jit.DTRConfig": jit.DTRConfig,
    "megengine.jit.GraphOptimizationConfig": jit.GraphOptimizationConfig,
    "megengine.jit.trace(symbolic=...)": lambda: jit.trace(len, symbolic=True),
    "megengine.jit.trace(opt_level=...)": lambda: jit.trace(opt_level=3)(len),
    "megengine.set_prealloc_config": mge.set_prealloc_config,
    "megengine.utils.network.set_symbolic_shape": lambda: set_symbolic_shape(True),
    "execution strategy PROFILE": lambda: debug_param.set_execution_strategy("PROFILE"),
    "device 'multithread4'": lambda: mge.set_default_device("multithread4"),
    "tensor(format=...)": lambda: mge.Tensor([1.0], format="nhwc"),
    "DataLoader(timeout=...)": lambda: DataLoader(DATA, timeout=2),
    "DataLoader(parallel_stream=...)": lambda: DataLoader(DATA, parallel_stream=True),
    "Profiler(with_backtrace=...)": lambda: Profiler(with_backtrace=True),
    "Profiler(sample_rate=...)": lambda: Profiler(sample_rate=3),
    "LSTM(proj_size=...)": lambda: M.LSTM(2, 2, proj_size=1),
}
WITH_EFFECT = [
    lambda: amp.autocast(),
    lambda: amp.autocast(enabled=False),
    lambda: jit.trace(len, symbolic=False, sublinear_memory_config=None),
    lambda: DataLoader(DATA),
    lambda: DataLoader(DATA, num_workers=2, timeout=2, preload=True, parallel_stream=True),
    lambda: debug_param.set_execution_strategy("HEURISTIC"),
    lambda: mge.set_default_device("xpux"),
    lambda: mge.Tensor([1.0], format="default"),
    lambda: Profiler("profile"),
    dtr.disable,
]


@pytest.fixture(autouse=True)
def as_at_the_beginning(monkeypatch):
    monkeypatch.setattr(effectless, "_warned", set())
    yield
    mge.set_default_device()
    debug_param.set_execution_strategy("HEURISTIC")


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_without_effect_says_so_once_where_it_is_set(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            SETTINGS[name]()
    (warning,) = caught
    assert warning.category is NoEffectWarning and warning.filename == __file__
    assert str(warning.message).startswith(f"{name} has no effect: ")


def test_settings_of_all_modules_were_found():
    assert {"megengine.config.async_level", "megengine.dtr.eviction_threshold"} < set(SETTINGS)


def test_values_that_ask_for_nothing_are_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in WITH_EFFECT:
            call()


def test_an_options_object_is_named_once():
    with pytest.warns(NoEffectWarning, match="SublinearMemoryConfig") as caught:
        jit.trace(len, sublinear_memory_config=jit.SublinearMemoryConfig(genetic_nr_iter=3))
    assert len(caught) == 1


def test_settings_can_be_read_back_and_wrong_names_are_refused():
    before = config.async_level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoEffectWarning)
        config.async_level = 0
    assert config.async_level == 0
    config.async_level = before
    with pytest.raises(
        AttributeError, match=r"megengine.config has no option 'async_levle'; did you mean 'async_level'"
    ):
        config.async_levle = 1
    with pytest.raises(AttributeError, match=r"megengine.dtr has no option 'eviction_treshold'; did you mean"):
        dtr.eviction_treshold = 1


def test_sizes_of_memory_are_numbers_of_bytes(monkeypatch):
    """The numbers are those of MegEngine 1.13."""
    monkeypatch.setattr(warnings, "warn", lambda *_, **__: None)
    sizes = {"1GB": 2**30, "512MB": 2**29, "2kb": 2048, "1.5GB": 3 << 29, "3 GB": 3 << 30, "7b": 7, " 1 mb ": 2**20}
    for name in ("eviction_threshold", "evictee_minimum_size"):
        before = getattr(dtr, name)
        for text, number in sizes.items():
            setattr(dtr, name, text)
            assert getattr(dtr, name) == number
        for wrong, kind in (
            ("1TB", ValueError),
            ("1024", ValueError),
            ("", ValueError),
            (-1, TypeError),
            (2.5, TypeError),
        ):
            with pytest.raises(kind, match=f"megengine.dtr.{name} is .*; expected"):
                setattr(dtr, name, wrong)
        setattr(dtr, name, before)


def test_options_of_a_body_are_restored(monkeypatch):
    monkeypatch.setattr(warnings, "warn", lambda *_, **__: None)
    seen = ("async_level", "_compute_mode", "deterministic_kernel", "benchmark_kernel", "_auto_format_convert")
    before = [getattr(config, name) for name in seen]
    with pytest.raises(KeyError), config._override(compute_mode="float32", async_level=1, deterministic_kernel=True):
        assert [getattr(config, name) for name in seen] == [1, "float32", True, *before[3:]]
        raise KeyError
    assert [getattr(config, name) for name in seen] == before
    with pytest.raises(TypeError, match="nonsense"):
        config._override(nonsense=1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(AssertionError, match="async_level is 3; expected 0, 1 or 2"):
        config.async_level = 3
