"""Winners of tuning are kept in a file of the machine, which plans and processes share."""

import json
import threading
import warnings

import numpy as np
import pytest

import megengine.module as M
from megengine import plan, tensor
from megengine.quantization import quantize_model
from megengine.traced_module import trace_module

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def integers(channels):
    """An integer network whose second convolution has several kernels on every processor: a depthwise one."""
    layers = (M.Conv2d(3, channels, 1), M.ReLU(), M.Conv2d(channels, channels, 3, groups=channels), M.ReLU())
    traced = trace_module(M.Sequential(*layers), tensor(draw(1, 3, 6, 6)))
    return quantize_model(traced, [(draw(1, 3, 6, 6),)]).traced()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MEGENGINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MEGENGINE_TUNE_CACHE")
    return tmp_path / "cache"


def tuned(net, **options):
    """The kernel of the second convolution."""
    return [s.kernel for s in plan.compile(net, tune=True, **options).steps if s.op == "qconv2d"][1]


def the_file(folder):
    (file,) = folder.glob("tuning-*.json")
    return file


def winners(folder):
    return json.loads(the_file(folder).read_text())["winners"]


def test_a_later_plan_takes_the_winner_of_the_file(folder):
    net = integers(8)
    assert tuned(net) in winners(folder).values()
    (names,) = [json.loads(key)[-1] for key in winners(folder)]
    for name in names:
        the_file(folder).write_text(json.dumps({"winners": dict.fromkeys(winners(folder), name)}))
        assert tuned(net) == name


def test_scales_do_not_matter_but_shapes_and_threads_do(folder):
    tuned(integers(8))
    one = winners(folder)
    tuned(integers(8))  # of other data
    assert winners(folder) == one
    tuned(integers(24))
    tuned(integers(8), threads=2)
    assert len(winners(folder)) == 3 * len(one)


@pytest.mark.parametrize("text", ["{", "[]", '{"winners": [1]}', '{"winners": {"a": 1}}', "[" * 100_000, "\0"])
def test_a_damaged_file_is_one_warning_and_is_replaced(folder, text):
    net = integers(8)
    tuned(net)
    the_file(folder).write_text(text)
    with pytest.warns(RuntimeWarning, match="is damaged and not used; kernels are measured again") as seen:
        tuned(net)
    assert len(seen) == 1
    assert winners(folder)


def test_a_folder_that_cannot_be_written_is_a_warning_with_the_remedy(folder):
    folder.write_text("a file")
    with pytest.warns(RuntimeWarning, match="tuned kernels are not kept: .*; set MEGENGINE_CACHE to a folder"):
        tuned(integers(8))


@pytest.mark.parametrize("word", ["off", "0", "OFF"])
def test_the_file_can_be_switched_off(folder, monkeypatch, word):
    monkeypatch.setenv("MEGENGINE_TUNE_CACHE", word)
    tuned(integers(8))
    assert not folder.exists()


def test_winners_of_plans_that_are_compiled_at_once_are_all_kept(folder):
    nets = [integers(c) for c in (8, 12, 16, 20)]
    threads = [threading.Thread(target=tuned, args=(net,)) for net in nets]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    expected = len(winners(folder))
    the_file(folder).unlink()
    tuned(nets[0])
    assert expected == 4 * len(winners(folder))
