"""One training step of ResNet-18 (forward, cross entropy, backward, SGD with momentum), beside torch, on one core.

CPU time; rounds are interleaved in one process; printed are medians, the ratio to torch's channels-last, and the peak
memory of each side in a process of its own. `quantized` is quantization-aware training (`prepare_qat`). `--ops` lists
what our time goes to. Needs `pip install torch==2.13.0`.
Run: python bench/training.py [--batch 16] [--size 224] [--rounds 5] [--ops]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from turns import cpu_milliseconds, pin_to_one_core

SIDES = ("ours", "ours, quantized", "torch", "torch channels-last")


def data(batch: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Random pictures and labels."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((batch, 3, size, size)).astype(np.float32), rng.integers(0, 1000, batch)


def ours(batch: int, size: int, *, quantized: bool = False) -> Callable[[], float]:
    """A step that returns the loss; `quantized` computes with the integer network (quantization-aware training)."""
    import megengine.functional as F
    from megengine import models, optimizer, tensor
    from megengine.autodiff import GradManager
    from megengine.quantization import prepare_qat

    net = models.resnet18()
    if quantized:
        net = prepare_qat(net, tensor(data(batch, size)[0]), calibration=[data(batch, size)[0]])
    net.train()
    gm = GradManager().attach(net.parameters())
    sgd = optimizer.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    x, y = (tensor(a) for a in data(batch, size))

    def step() -> float:
        with gm:
            loss = F.nn.cross_entropy(net(x), y)
            gm.backward(loss)
        sgd.step().clear_grad()
        return float(loss.item())

    return step


def torchs(batch: int, size: int, *, last: bool) -> Callable[[], float]:
    """The same with torch."""
    import torch

    torch.set_num_threads(1)
    form = torch.channels_last if last else torch.contiguous_format
    net = _torch_resnet18(torch).to(memory_format=form)
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    x, y = data(batch, size)
    images, labels = torch.from_numpy(x).to(memory_format=form), torch.from_numpy(y)

    def step() -> float:
        sgd.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        sgd.step()
        return loss.item()

    return step


def _torch_resnet18(torch: Any) -> Any:
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
            short = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
            self.short = nn.Sequential(*short) if stride > 1 else nn.Identity()

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.bn1(self.conv1(x)))
            return torch.relu(self.bn2(self.conv2(y)) + self.short(x))

    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*stem, *(Block(*w) for w in widths), *head)


def make(side: str, batch: int, size: int) -> Callable[[], float]:
    """The step of one side."""
    if side in SIDES[:2]:
        return ours(batch, size, quantized=side == SIDES[1])
    return torchs(batch, size, last=side != "torch")


def peak_megabytes(side: str, arguments: argparse.Namespace) -> float:
    """Peak memory of a process that takes three steps."""
    command = [sys.executable, __file__, "--only", side, "--batch", str(arguments.batch), "--size", str(arguments.size)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def peak_of_this_process() -> float:
    """Largest resident memory so far, in MB. (getrusage starts with the parent's.)"""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))


def print_ops(step: Callable[[], float]) -> None:
    """CPU milliseconds by op of one step of ours, those of the backward pass included."""
    from megengine.dispatch.apply import Interposer, interpose

    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])

    class Clock(Interposer):
        looks_inside = first = True

        def apply(self, op: Any, tensors: Any, attrs: Any, proceed: Any) -> Any:
            begin = time.process_time()
            try:
                return proceed()
            finally:
                spent[op.name][0] += time.process_time() - begin
                spent[op.name][1] += 1

    begin = time.process_time()
    with interpose(Clock()):
        step()
    total = time.process_time() - begin
    for name, (seconds, count) in sorted(spent.items(), key=lambda item: -item[1][0]):
        print(f"  {name:28} {seconds * 1e3:9.2f} ms {count:5} calls")
    print(f"  {'outside ops':28} {(total - sum(s for s, _ in spent.values())) * 1e3:9.2f} ms")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ops", action="store_true", help="list our ops by time")
    parser.add_argument("--only", choices=SIDES, help="three steps of one side; prints the peak memory in MB")
    arguments = parser.parse_args()
    pin_to_one_core()
    if arguments.only:
        step = make(arguments.only, arguments.batch, arguments.size)
        [step() for _ in range(3)]
        print(peak_of_this_process())
        return
    steps = {side: make(side, arguments.batch, arguments.size) for side in SIDES}
    times = cpu_milliseconds(steps, arguments.rounds, unmeasured=1)
    base = statistics.median(times[SIDES[-1]])
    for side in SIDES:
        ms = statistics.median(times[side])
        print(f"{side:22} {ms:9.1f} ms   {ms / base:5.2f}   peak {peak_megabytes(side, arguments):7.0f} MB")
    for side in SIDES[:2] if arguments.ops else ():
        print(f"{side}:")
        print_ops(steps[side])


if __name__ == "__main__":
    main()
