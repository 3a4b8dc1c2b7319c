"""What bench/gpu.py measures: calls of ResNet-50, ours and torch's, prepared for one process each."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
from gpu_workers import Call, Subject

part = functools.partial
TF32 = {"MEGENGINE_CUDA_TF32": "1"}
TUNED = {"MEGENGINE_CUDA_TUNE": "4"}  # convolutions are chosen by their times, as by torch's cudnn.benchmark
PLAIN = {"MEGENGINE_CUDA_TUNE": "0"}  # cuDNN's first choice


def pictures(batch: int) -> np.ndarray:
    """Random pictures [batch, 3, 224, 224]."""
    return np.random.default_rng(0).standard_normal((batch, 3, 224, 224)).astype(np.float32)


# ---------------------------------------------------------------- ours


def our_network() -> Any:
    """ResNet-50 on the processor, in evaluation mode."""
    import megengine as mge
    from megengine import models

    mge.random.seed(0)
    return models.resnet50().eval()


@functools.cache
def _traced(batch: int, dtype: str) -> Any:
    from megengine import tensor
    from megengine.traced_module import trace_module

    net = our_network()
    if dtype != "float32":
        for t in (*net.parameters(), *net.buffers()):
            t._reset(t.astype(dtype))
    return trace_module(net, tensor(pictures(batch)).astype(dtype))


def our_plan(batch: int, dtype: str) -> Call:
    """A plan of the float network, fed with what lies on the GPU."""
    from megengine import tensor
    from megengine.plan import compile as compile_plan

    plan = compile_plan(_traced(batch, dtype), device="gpu0")
    x = tensor(pictures(batch)).astype(dtype).to("gpu0")
    return lambda: plan(x)


def our_int8(batch: int) -> Call:
    """A plan of the integer network, with the tiles that are fastest here."""
    from megengine import tensor
    from megengine.plan import compile as compile_plan
    from megengine.quantization.pipeline.quantize import quantize_model
    from megengine.traced_module import open_batch

    x = pictures(batch)
    integer = quantize_model(open_batch(_traced(4, "float32")), [x[:4]]).integer_graph
    plan, given = compile_plan(integer, device="gpu0", tune=True), tensor(x, device="gpu0")
    return lambda: plan(given)


def our_eager(batch: int, dtype: str) -> Call:
    """The network called op by op."""
    from megengine import tensor

    net = our_network()
    for t in (*net.parameters(), *net.buffers()):
        t._reset(t.astype(dtype).to("gpu0"))
    x = tensor(pictures(batch)).astype(dtype).to("gpu0")
    return lambda: net(x)


def our_step(batch: int, amp: str | None, *, replay: bool = False) -> Call:
    """A training step, as it is written or replayed; `amp` names the dtype of mixed precision."""
    import megengine.functional as F
    from megengine import jit, optimizer, tensor
    from megengine.amp import autocast
    from megengine.autodiff import GradManager

    net = our_network().train()
    for t in (*net.parameters(), *net.buffers()):
        t._reset(t.to("gpu0"))
    gm = GradManager().attach(net.parameters())
    sgd = optimizer.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    x = tensor(pictures(batch), device="gpu0")
    y = tensor(np.arange(batch, dtype=np.int32), device="gpu0")

    def step(x: Any, y: Any) -> Any:
        with gm:
            if amp is None:
                loss = F.nn.cross_entropy(net(x), y)
            else:
                with autocast(low_prec_dtype=amp):
                    loss = F.nn.cross_entropy(net(x), y)
            gm.backward(loss)
        sgd.step().clear_grad()
        return loss

    return functools.partial(jit.trace(step, replay=True) if replay else step, x, y)


STEPS = {
    "before: canonical graph": ("quantize", "prepared"),
    "before: annotations": ("quantize", "observe_all"),
    "before: rows tried": ("calibrate", "Data.of"),
    "behind: last run counted": ("calibrate", "DeviceCounter.finish"),
    "behind: freeze": ("quantize", "freeze"),
    "behind: bias correction": ("refine", "bias_corrected"),
    "behind: graphs": ("refine", "integer_graphs"),
    "behind: judges": ("judging", "Judges.noise"),
    "behind: report": ("quantize", "report_of"),
}
"""Functions of the pipeline, by module, whose time is told: none calls another of them."""


@contextlib.contextmanager
def timed(took: dict[str, float]) -> Iterator[None]:
    """Add seconds of every step that runs."""
    with contextlib.ExitStack() as stack:
        for name, (module, path) in STEPS.items():
            owner = importlib.import_module(f"megengine.quantization.pipeline.{module}")
            for one in path.split(".")[:-1]:
                owner = getattr(owner, one)
            stack.enter_context(mock.patch.object(owner, path.split(".")[-1], _timer(owner, path, name, took)))
        yield


def _timer(owner: Any, path: str, name: str, took: dict[str, float]) -> Call:
    real = getattr(owner, path.split(".")[-1])

    @functools.wraps(real)
    def call(*args: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return real(*args, **options)
        finally:
            took[name] = took.get(name, 0.0) + time.perf_counter() - begin

    return staticmethod(call) if inspect.ismethod(real) else call


def our_quantization(count: int, device: str = "gpu0") -> Call:
    """Seconds of `quantize_model` with random pictures in batches of 32, by parts, and of steps before and behind."""
    from megengine.quantization.pipeline.quantize import quantize_model
    from megengine.traced_module import open_batch

    network, x = open_batch(_traced(1, "float32")), pictures(count)
    batches = [x[at : at + 32] for at in range(0, count, 32)]

    def call() -> dict[str, float]:
        marks, steps, begin = [], {}, time.perf_counter()
        with timed(steps):
            quantize_model(network, batches, device=device, progress=lambda *_: marks.append(time.perf_counter()))
        end, first, last = time.perf_counter(), marks[0], marks[len(batches) - 1]
        parts = {"all": end - begin, "to the end of the first batch": first - begin, "other batches": last - first}
        return {**parts, "passes behind": end - last, **steps}

    return call


def our_add(count: int) -> Call:
    """An eager add of small tensors."""
    from megengine import tensor

    a, b = (tensor(np.ones(count, np.float32), device="gpu0") for _ in range(2))
    return lambda: a + b


# ---------------------------------------------------------------- torch


def _torch_resnet50() -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, cin: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(cin, width, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
            self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
            plain = cin == 4 * width and stride == 1
            short = [nn.Conv2d(cin, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)]
            self.short = nn.Identity() if plain else nn.Sequential(*short)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))
            return torch.relu(self.bn3(self.conv3(y)) + self.short(x))

    layers: list[Any] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    cin = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(depth):
            layers.append(Block(cin, width, stride if i == 0 else 1))
            cin = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def _set_up_torch(*, tf32: bool) -> None:
    """Settings of the process that decide what is computed, and how convolutions are chosen."""
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True


def torch_network(batch: int, dtype: str, mode: str | None, *, tf32: bool = False) -> Call:
    """Inference with channels last, eager or compiled."""
    import torch

    _set_up_torch(tf32=tf32)
    last, kind = torch.channels_last, getattr(torch, dtype)
    net = _torch_resnet50().eval().to("cuda", kind).to(memory_format=last)
    x = torch.from_numpy(pictures(batch)).to("cuda", kind).to(memory_format=last)
    run = net if mode is None else torch.compile(net, mode=mode)

    def call() -> object:
        with torch.inference_mode():
            return run(x)

    return call


def torch_step(batch: int, amp: str | None, mode: str | None, *, tf32: bool = False) -> Call:
    """A training step with channels last, eager or compiled."""
    import torch

    _set_up_torch(tf32=tf32)
    last = torch.channels_last
    net = _torch_resnet50().train().to("cuda").to(memory_format=last)
    x = torch.from_numpy(pictures(batch)).to("cuda").to(memory_format=last)
    y = torch.arange(batch, device="cuda")
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    run = net if mode is None else torch.compile(net, mode=mode)
    kind = torch.float32 if amp is None else getattr(torch, amp)

    def step() -> None:
        sgd.zero_grad()
        with torch.autocast("cuda", kind, enabled=amp is not None):
            loss = torch.nn.functional.cross_entropy(run(x), y)
        loss.backward()
        sgd.step()

    return step


def torch_add(count: int) -> Call:
    """An eager add of small tensors."""
    import torch

    a, b = (torch.ones(count, device="cuda") for _ in range(2))
    return lambda: a + b


# ---------------------------------------------------------------- sections


def sections(batch: int, mode: str, count: int) -> dict[str, list[Subject]]:
    """The subjects of each section; the second word of a label is what is computed in."""
    return {
        "eager": [
            Subject("ours float32", part(our_add, 1024), "host"),
            Subject("torch float32", part(torch_add, 1024), "host"),
        ],
        "inference": _tuned_last([*_our_plans(batch), *_torch_networks(batch, mode)]),
        "training": _tuned_last([*_our_steps(batch), *_torch_steps(batch, mode)]),
        "quantize": [Subject("ours float32", part(our_quantization, count), "parts")],
    }


def _tuned_last(subjects: list[Subject]) -> list[Subject]:
    """Those whose ways are all timed take longest to prepare."""
    return sorted(subjects, key=lambda one: one.environment.get("MEGENGINE_CUDA_TUNE", "0") != "0")


def _our_plans(batch: int) -> list[Subject]:
    return [
        Subject("ours float32", part(our_plan, batch, "float32")),
        Subject("ours float32 tuned", part(our_plan, batch, "float32"), environment=TUNED),
        Subject("ours tf32", part(our_plan, batch, "float32"), environment=TF32),
        Subject("ours tf32 tuned", part(our_plan, batch, "float32"), environment={**TF32, **TUNED}),
        Subject("ours float16", part(our_plan, batch, "float16")),
        Subject("ours float16 tuned", part(our_plan, batch, "float16"), environment=TUNED),
        Subject("ours bfloat16", part(our_plan, batch, "bfloat16")),
        Subject("ours int8", part(our_int8, batch)),
        Subject("ours float16 eager", part(our_eager, batch, "float16")),
    ]


def _torch_networks(batch: int, mode: str) -> list[Subject]:
    kinds = {"float32": ("float32", False), "tf32": ("float32", True), "float16": ("float16", False)}
    kinds["bfloat16"] = ("bfloat16", False)
    return [
        Subject(f"torch {kind} {how or 'eager'}", part(torch_network, batch, dtype, how, tf32=tf32))
        for how in (None, mode)
        for kind, (dtype, tf32) in kinds.items()
    ]


def _our_steps(batch: int) -> list[Subject]:
    replayed = part(our_step, batch, replay=True)
    return [
        Subject("ours float32 replayed", part(replayed, None)),
        Subject("ours float32 replayed plain", part(replayed, None), environment=PLAIN),
        Subject("ours tf32 replayed", part(replayed, None), environment=TF32),
        Subject("ours tf32 replayed tuned", part(replayed, None), environment={**TF32, **TUNED}),
        Subject("ours float16 replayed", part(replayed, "float16")),
        Subject("ours float16 replayed tuned", part(replayed, "float16"), environment=TUNED),
        Subject("ours bfloat16 replayed", part(replayed, "bfloat16")),
        Subject("ours float32", part(our_step, batch, None)),
        Subject("ours float16", part(our_step, batch, "float16")),
    ]


def _torch_steps(batch: int, mode: str) -> list[Subject]:
    kinds = {"float32": (None, False), "tf32": (None, True), "float16": ("float16", False)}
    kinds["bfloat16"] = ("bfloat16", False)
    return [
        Subject(f"torch {kind} {how or 'eager'}", part(torch_step, batch, amp, how, tf32=tf32))
        for how in (None, mode)
        for kind, (amp, tf32) in kinds.items()
    ]
