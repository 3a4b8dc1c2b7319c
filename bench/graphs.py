"""Graph surgery on ResNet-50: CPU time of one core, beside torch.fx and the real MegEngine where they are installed.

    python bench/graphs.py                                  # torch.fx is measured if torch can be imported
    MEGENGINE_PYTHON=/path/to/python3.8 python bench/graphs.py

Each figure is the median of several runs, in milliseconds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RUNS = 7
ROWS = ("trace", "insert after 53 convolutions", "flatten", "fuse batch norms", "all passes", "save and load")


def milliseconds(run: Callable[[], Any], runs: int = RUNS) -> float:
    times = []
    for _ in range(runs):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times) * 1e3


def ours() -> dict[str, float]:
    import megengine as mge
    import megengine.functional as F
    import megengine.module as M
    from megengine import models
    from megengine.traced_module import trace_module
    from megengine.traced_module.passes import optimize

    net, x = models.resnet50().eval(), mge.tensor(np.zeros((1, 3, 224, 224), np.float32))
    traced = trace_module(net, x)

    def insert(graph: Any) -> None:
        for expr in graph.get_calls_of(M.Conv2d):
            with graph.insert_exprs():
                graph.replace_node({expr.output: F.relu(expr.output)})

    def save_and_load() -> None:
        with tempfile.TemporaryDirectory() as folder:
            mge.save(traced, Path(folder) / "net.tm")
            mge.load(Path(folder) / "net.tm")

    flat = [traced.flatten().graph for _ in range(RUNS)]
    return {
        "trace": milliseconds(lambda: trace_module(net, x)),
        "insert after 53 convolutions": milliseconds(lambda: insert(flat.pop())),
        "flatten": milliseconds(traced.flatten),
        "fuse batch norms": milliseconds(lambda: optimize(traced)),
        "all passes": milliseconds(lambda: optimize(traced, "all")),
        "save and load": milliseconds(save_and_load),
    }


def torch_fx() -> dict[str, float]:
    import torch
    from torch import fx, nn
    from torch.fx.experimental.optimization import fuse

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            out = width * 4
            self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
            self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
            self.relu = nn.ReLU()
            short = nn.Sequential(nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            self.down = short if stride != 1 or inputs != out else nn.Identity()

        def forward(self, x: Any) -> Any:
            y = self.relu(self.bn1(self.conv1(x)))
            y = self.relu(self.bn2(self.conv2(y)))
            return self.relu(self.bn3(self.conv3(y)) + self.down(x))

    layers: list[Any] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Block(inputs, width, stride if i == 0 else 1))
            inputs = width * 4
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)).eval()

    def insert(traced: Any) -> None:
        modules = dict(traced.named_modules())
        for node in list(traced.graph.nodes):
            if node.op == "call_module" and isinstance(modules[node.target], nn.Conv2d):
                with traced.graph.inserting_after(node):
                    new = traced.graph.call_function(torch.relu, (node,))
                node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
        traced.recompile()

    graphs = [fx.symbolic_trace(net) for _ in range(RUNS)]
    return {
        "trace": milliseconds(lambda: fx.symbolic_trace(net)),
        "insert after 53 convolutions": milliseconds(lambda: insert(graphs.pop())),
        "fuse batch norms": milliseconds(lambda: fuse(net), 3),
    }


MEGENGINE = """
import json, pickle, statistics, sys, tempfile, time, os
import numpy as np
import megengine as mge, megengine.functional as F, megengine.module as M, megengine.traced_module as tm

class Block(M.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        out = width * 4
        self.conv1, self.bn1 = M.Conv2d(inputs, width, 1, bias=False), M.BatchNorm2d(width)
        self.conv2, self.bn2 = M.Conv2d(width, width, 3, stride, 1, bias=False), M.BatchNorm2d(width)
        self.conv3, self.bn3 = M.Conv2d(width, out, 1, bias=False), M.BatchNorm2d(out)
        short = M.Sequential(M.Conv2d(inputs, out, 1, stride, bias=False), M.BatchNorm2d(out))
        self.down = short if stride != 1 or inputs != out else M.Identity()
    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.down(x))

class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.pool = M.Conv2d(3, 64, 7, 2, 3, bias=False), M.BatchNorm2d(64), M.MaxPool2d(3, 2, 1)
        blocks, inputs = [], 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(count):
                blocks.append(Block(inputs, width, stride if i == 0 else 1))
                inputs = width * 4
        self.blocks, self.fc = blocks, M.Linear(2048, 1000)
    def forward(self, x):
        x = self.pool(F.relu(self.bn(self.conv(x))))
        for b in self.blocks:
            x = b(x)
        return self.fc(F.flatten(F.avg_pool2d(x, 7), 1))

def ms(run, runs=3):
    times = []
    for _ in range(runs):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times) * 1e3

net, x = Net(), mge.tensor(np.zeros((1, 3, 224, 224), np.float32))
net.eval()
traced = tm.trace_module(net, x)
flat = [traced.flatten() for _ in range(3)]
def insert(module):
    graph = module.graph
    nodes = graph.get_module_by_type(M.Conv2d).as_list()
    assert len(nodes) == 53, len(nodes)
    for node in nodes:
        for expr in list(node.users):
            with graph.insert_exprs():
                new = F.relu(expr.outputs[0])
            graph.replace_node({expr.outputs[0]: new})
    graph.compile()
def save_and_load():
    with tempfile.TemporaryDirectory() as folder:
        mge.save(traced, os.path.join(folder, "net.tm"))
        mge.load(os.path.join(folder, "net.tm"))
print("RESULT " + json.dumps({
    "trace": ms(lambda: tm.trace_module(net, x)),
    "insert after 53 convolutions": ms(lambda: insert(flat.pop())),
    "flatten": ms(lambda: traced.flatten()),
    "fuse batch norms": ms(lambda: tm.optimize(traced, enabled_pass=["FuseConvBn"])),
    "all passes": ms(lambda: tm.optimize(traced, enabled_pass=["FuseConvBn", "FuseAddMul"])),
    "save and load": ms(save_and_load),
}))
"""


def real_megengine(python: str) -> dict[str, float]:
    done = subprocess.run(
        [python, "-c", MEGENGINE], capture_output=True, text=True, check=False, cwd=tempfile.gettempdir()
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        sys.exit(f"{python} did not finish:\n{done.stderr[-2000:]}")
    return json.loads(lines[0].removeprefix("RESULT "))


def main() -> None:
    columns = {"megengine 2": ours()}
    try:
        columns["torch.fx"] = torch_fx()
    except ImportError:
        print("torch is not installed: no column for torch.fx")
    if python := os.environ.get("MEGENGINE_PYTHON"):
        columns["MegEngine 1.13"] = real_megengine(python)
    else:
        print("MEGENGINE_PYTHON is not set: no column for MegEngine 1.13")
    print(f"{'ms, CPU time':32}" + "".join(f"{name:>16}" for name in columns))
    for row in ROWS:
        cells = (f"{found[row]:16.1f}" if row in found else f"{'-':>16}" for found in columns.values())
        print(f"{row:32}" + "".join(cells))


if __name__ == "__main__":
    main()
