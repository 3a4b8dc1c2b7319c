"""A GPU beside torch: ResNet-50 inference and training steps of one batch, and the time of a small eager call.

Times are medians of rounds in which all subjects take turns, by CUDA events (eager calls: by the clock of the host,
with one wait at the end). torch is measured eager with channels last, and compiled with CUDA graphs. A subject that
cannot run here is listed with the reason.
Run: python bench/gpu.py [SECTION ...] [--batch 32] [--rounds 20] [--json FILE]; sections: eager, inference, training
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], object]
INNER = 5  # calls between two events


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
    """A plan of the integer network."""
    from megengine import tensor
    from megengine.plan import compile as compile_plan
    from megengine.quantization.pipeline.quantize import quantize_model
    from megengine.traced_module import open_batch

    x = pictures(batch)
    integer = quantize_model(open_batch(_traced(4, "float32")), [x[:4]]).integer_graph
    plan, given = compile_plan(integer, device="gpu0"), tensor(x, device="gpu0")
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


def torch_network(batch: int, dtype: str, mode: str | None, *, tf32: bool = False) -> Call:
    """Inference with channels last, eager or compiled."""
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    last, kind = torch.channels_last, getattr(torch, dtype)
    net = _torch_resnet50().eval().to("cuda", kind).to(memory_format=last)
    x = torch.from_numpy(pictures(batch)).to("cuda", kind).to(memory_format=last)
    run = net if mode is None else torch.compile(net, mode=mode)

    def call() -> object:
        with torch.inference_mode():
            return run(x)

    return call


def torch_step(batch: int, amp: str | None, mode: str | None) -> Call:
    """A training step with channels last, eager or compiled."""
    import torch

    torch.backends.cudnn.benchmark = True
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


# ---------------------------------------------------------------- measuring


def sections(batch: int, mode: str) -> dict[str, dict[str, Callable[[], Call]]]:
    """The subjects of each section, made when they are measured."""
    part = functools.partial
    return {
        "eager": {"ours": part(our_add, 1024), "torch": part(torch_add, 1024)},
        "inference": {
            "ours float32": part(our_plan, batch, "float32"),
            "ours float16": part(our_plan, batch, "float16"),
            "ours int8": part(our_int8, batch),
            "ours float16 eager": part(our_eager, batch, "float16"),
            "torch float32 eager": part(torch_network, batch, "float32", None),
            "torch float16 eager": part(torch_network, batch, "float16", None),
            f"torch float16 {mode}": part(torch_network, batch, "float16", mode),
        },
        "training": {
            "ours float32 replayed": part(our_step, batch, None, replay=True),
            "ours float16 replayed": part(our_step, batch, "float16", replay=True),
            "ours float32": part(our_step, batch, None),
            "ours float16": part(our_step, batch, "float16"),
            "torch float32 eager": part(torch_step, batch, None, None),
            "torch float16 eager": part(torch_step, batch, "float16", None),
            f"torch float16 {mode}": part(torch_step, batch, "float16", mode),
        },
    }


def synchronize() -> None:
    """Wait for the GPU."""
    import cupy

    cupy.cuda.runtime.deviceSynchronize()


def by_events(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a call of each, in turns, by events of the stream that all use."""
    import cupy

    times: dict[str, list[float]] = {label: [] for label in calls}
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    for _ in range(rounds):
        for label, call in calls.items():
            begin.record()
            for _ in range(INNER):
                call()
            end.record()
            end.synchronize()
            times[label].append(cupy.cuda.get_elapsed_time(begin, end) / INNER)
    return times


def by_clock(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Milliseconds that the host takes for a call of each, in turns of a thousand."""
    times: dict[str, list[float]] = {label: [] for label in calls}
    for _ in range(rounds):
        for label, call in calls.items():
            synchronize()
            begin = time.perf_counter()
            for _ in range(1000):
                call()
            synchronize()
            times[label].append(time.perf_counter() - begin)
    return times


def measure(name: str, makers: dict[str, Callable[[], Call]], rounds: int, patience: float) -> dict[str, Any]:
    """Medians of a section in milliseconds, and why subjects are missing."""
    calls: dict[str, Call] = {}
    missing: dict[str, str] = {}
    begin = time.perf_counter()
    for label, make in makers.items():
        if time.perf_counter() - begin > patience:
            missing[label] = "no time left"
            continue
        try:
            made = make()
            for _ in range(6):  # compiles, records, and fills pools
                made()
            synchronize()
            calls[label] = made
        except Exception as exc:  # a subject that does not run is a result
            missing[label] = f"{type(exc).__name__}: {exc}"[:300]
            traceback.print_exc()
    times = (by_clock if name == "eager" else by_events)(calls, rounds)
    return {"ms": {label: round(statistics.median(t), 4) for label, t in times.items()}, "missing": missing}


def main() -> int:
    """Print a table; write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", help="eager, inference, training; all without a name")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile; max-autotune takes minutes")
    parser.add_argument("--patience", type=float, default=240, help="seconds of preparing, of a section")
    parser.add_argument("--only", default="", help="subjects whose name holds this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from megengine.kernels import cuda

    if (reason := cuda.unavailable_reason()) is not None:
        print(f"nothing is measured: {reason}")
        return 0
    found: dict[str, Any] = {}
    for name, makers in sections(options.batch, options.mode).items():
        if options.sections and name not in options.sections:
            continue
        chosen = {label: make for label, make in makers.items() if options.only in label}
        found[name] = measure(name, chosen, options.rounds, options.patience)
        base = next((ms for label, ms in reversed(found[name]["ms"].items()) if label.startswith("torch")), None)
        for label, ms in found[name]["ms"].items():
            print(f"{name:10} {label:28} {ms:9.4f} ms" + (f"  {ms / base:6.2f} of torch" if base else ""))
        for label, why in found[name]["missing"].items():
            print(f"{name:10} {label:28} missing: {why}")
        sys.stdout.flush()
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
