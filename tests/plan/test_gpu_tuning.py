"""Tiles of integer convolutions on a GPU are chosen by measuring, and the winners kept in the file of the GPU."""

import json

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from recording_gpu import RecordingGpu

import megengine.module as M
from megengine import plan, tensor
from megengine.kernels.cuda import int_layers
from megengine.kernels.cuda.runtime import installed
from megengine.plan import gpu_tuning
from megengine.quantization import quantize_model
from megengine.traced_module import interpret, trace_module

RNG = np.random.default_rng(0)
TILES = (int_layers.RULED[-1], next(tile for tile in int_layers.TILES if tile.warp_channels == 64))


@pytest.fixture(autouse=True, params=[EmulatedGpu, RecordingGpu], ids=["steps", "recorded"])
def gpu(request, monkeypatch, tmp_path):
    monkeypatch.setenv("MEGENGINE_CACHE", str(tmp_path))
    monkeypatch.delenv("MEGENGINE_TUNE_CACHE")
    monkeypatch.setattr(int_layers, "TILES", TILES)
    monkeypatch.setattr(gpu_tuning, "_ROUNDS", 1)
    monkeypatch.setattr(gpu_tuning, "_LAUNCHES", 2)
    with installed(request.param()) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def net():
    """Of three channels, of 16, and with a depthwise window, which has no tiles."""
    layers = (M.Conv2d(3, 16, 3), M.ReLU(), M.Conv2d(16, 16, 1), M.ReLU(), M.Conv2d(16, 16, 3, groups=16))
    x = RNG.standard_normal((1, 3, 6, 6)).astype(np.float32)
    return quantize_model(trace_module(M.Sequential(*layers), tensor(x)), [(x,)]).integer_graph, x


def layers_of(made):
    return [s.kernel for s in made.steps if s.op == "qconv2d"]


def test_winners_are_kept_and_taken(gpu, net, tmp_path):
    graph, x = net
    names = [tile.name for tile in TILES]
    first = plan.compile(graph, device="gpu0", tune=True)
    measured = len(gpu.launched)
    assert layers_of(first)[2] == "cuda_qconv2d_last"
    (file,) = tmp_path.glob("tuning-*.json")
    winners = json.loads(file.read_text())["winners"]
    assert len(winners) == 2
    assert set(winners.values()) <= set(names)
    want = interpret(graph, [tensor(x)])[0].numpy()
    for key in winners:
        usable = json.loads(key)[-1]
        assert usable == [tile.name for tile in TILES if tile.name in usable]
    for name in names:
        file.write_text(json.dumps({"winners": dict.fromkeys(winners, name)}))
        made, before = plan.compile(graph, device="gpu0", tune=True), len(gpu.launched)
        assert layers_of(made)[1] == f"cuda_qconv2d_last {name}"
        np.testing.assert_array_equal(made(x)[0], want)
        if name == names[0]:  # known for both layers: nothing is measured, only constants are moved
            assert before - measured < 10
        measured = len(gpu.launched)


def test_other_plans_take_the_tile_of_the_rule(net):
    graph, _ = net
    assert set(layers_of(plan.compile(graph, device="gpu0"))) == {"cuda_qconv2d_last"}


def test_tiles_of_narrow_copies_leave_wide_warps_out():
    assert int_layers.tiles_of(16) == TILES
    assert int_layers.tiles_of(4) == TILES[:1]
