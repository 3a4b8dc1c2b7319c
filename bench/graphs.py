"""Graph surgery on ResNet-50: CPU time of one core, beside torch.fx and the real MegEngine where they are installed.

    python bench/graphs.py                                  # torch.fx is measured if torch can be imported
    MEGENGINE_PYTHON=/path/to/python3.8 python bench/graphs.py
    python bench/graphs.py chain 1000 10000 50000           # microseconds for each node of chains of these sizes

Each package runs in a process of its own; they take turns, operation by operation. Each figure is the median of the
turns, in milliseconds, beside its ratio to torch.fx in the same turns.
"""

from __future__ import annotations

import inspect
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

TURNS, TURNS_OF_MEGENGINE = 11, 3
ROWS = (
    *("trace", "insert after 53 convolutions", "flatten", "fuse batch norms", "all passes"),
    *("save .tm", "load .tm", "save .mgt", "load .mgt"),
)
Operations = dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]  # name -> (preparation, timed operation)


def nothing() -> None:
    return None


def ours() -> Operations:
    import megengine as mge
    import megengine.functional as F
    import megengine.module as M
    from megengine import models
    from megengine.traced_module import trace_module
    from megengine.traced_module.passes import optimize

    net, x = models.resnet50().eval(), mge.tensor(np.zeros((1, 3, 224, 224), np.float32))
    traced = trace_module(net, x)
    kept = tempfile.TemporaryDirectory()  # until the process ends

    def insert(graph: Any) -> None:
        for expr in graph.get_calls_of(M.Conv2d):
            with graph.insert_exprs():
                graph.replace_node({expr.output: F.relu(expr.output)})

    def save(name: str) -> None:
        mge.save(traced, Path(kept.name) / name)

    return {
        "trace": (nothing, lambda _: trace_module(net, x)),
        "insert after 53 convolutions": (lambda: traced.flatten().graph, insert),
        "flatten": (nothing, lambda _: traced.flatten()),
        "fuse batch norms": (nothing, lambda _: optimize(traced)),
        "all passes": (nothing, lambda _: optimize(traced, "all")),
        "save .tm": (nothing, lambda _: save("net.tm")),
        "load .tm": (lambda: save("net.tm"), lambda _: mge.load(Path(kept.name) / "net.tm")),
        "save .mgt": (nothing, lambda _: save("net.mgt")),
        "load .mgt": (lambda: save("net.mgt"), lambda _: mge.load(Path(kept.name) / "net.mgt")),
    }


def torch_fx() -> Operations:
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

    return {
        "trace": (nothing, lambda _: fx.symbolic_trace(net)),
        "insert after 53 convolutions": (lambda: fx.symbolic_trace(net), insert),
        "fuse batch norms": (nothing, lambda _: fuse(net)),
    }


MEGENGINE = """
import json, os, sys, tempfile, time
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

net, x = Net(), mge.tensor(np.zeros((1, 3, 224, 224), np.float32))
net.eval()
traced = tm.trace_module(net, x)
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
kept = tempfile.TemporaryDirectory()
path = os.path.join(kept.name, "net.tm")
operations = {
    "trace": (lambda: None, lambda _: tm.trace_module(net, x)),
    "insert after 53 convolutions": (traced.flatten, insert),
    "flatten": (lambda: None, lambda _: traced.flatten()),
    "fuse batch norms": (lambda: None, lambda _: tm.optimize(traced, enabled_pass=["FuseConvBn"])),
    "all passes": (lambda: None, lambda _: tm.optimize(traced, enabled_pass=["FuseConvBn", "FuseAddMul"])),
    "save .tm": (lambda: None, lambda _: mge.save(traced, path)),
    "load .tm": (lambda: mge.save(traced, path), lambda _: mge.load(path)),
}
"""


def answer(operations: Operations) -> None:
    """Perform operations on demand. It runs under the old Python of MegEngine 1.13 too."""
    print("READY " + json.dumps(list(operations)), flush=True)
    for line in sys.stdin:
        ready, run = operations[line.strip()]
        given = ready()
        start = time.process_time()
        run(given)
        print("TOOK %r" % (time.process_time() - start), flush=True)


class Worker:
    """A process that performs operations on demand and reports the CPU time of each."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name, self.times = name, {}
        self.folder = tempfile.TemporaryDirectory()  # an empty one: Python imports files of the folder where it starts
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            stderr=subprocess.DEVNULL,
            cwd=self.folder.name,
        )
        self.rows = json.loads(self._line("READY"))

    def _line(self, wanted: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(f"{wanted} "):
                return line.removeprefix(f"{wanted} ")
        raise RuntimeError(f"{self.name} did not answer")

    def measure(self, row: str) -> None:
        """One turn."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{row}\n")
        self.process.stdin.flush()
        self.times.setdefault(row, []).append(float(self._line("TOOK")) * 1e3)

    def median(self, row: str) -> float:
        """Milliseconds, without the first turn, which fills caches."""
        return statistics.median(self.times[row][1:])


def workers() -> list[Worker]:
    here = [sys.executable, os.path.abspath(__file__), "answer"]
    found = [Worker("megengine 2", [*here, "ours"])]
    try:
        found.append(Worker("torch.fx", [*here, "torch_fx"]))
    except RuntimeError:
        print("torch cannot be imported: no column for torch.fx")
    program = f"from __future__ import annotations\n{MEGENGINE}\n{inspect.getsource(answer)}\nanswer(operations)"
    if python := os.environ.get("MEGENGINE_PYTHON"):
        found.append(Worker("MegEngine 1.13", [python, "-c", program]))
    else:
        print("MEGENGINE_PYTHON is not set: no column for MegEngine 1.13")
    return found


def compare() -> None:
    found = workers()
    for row in ROWS:
        for turn in range(TURNS + 1):
            for worker in found:
                if row in worker.rows and (turn <= TURNS_OF_MEGENGINE or worker.name != "MegEngine 1.13"):
                    worker.measure(row)
    print(f"{'ms, CPU time':32}" + "".join(f"{w.name:>16}" for w in found) + f"{'of torch.fx':>16}")
    for row in ROWS:
        cells = [f"{w.median(row):16.1f}" if row in w.rows else f"{'-':>16}" for w in found]
        peer = next((w for w in found[1:2] if w.name == "torch.fx" and row in w.rows), None)
        ratio = f"{found[0].median(row) / peer.median(row):16.2f}" if peer else ""
        print(f"{row:32}" + "".join(cells) + ratio)


# ---------------------------------------------------------------- chains


def chain(size: int) -> dict[str, float]:
    """Microseconds of CPU time for each of `size` nodes in a row."""
    import megengine as mge
    import megengine.functional as F
    import megengine.module as M
    from megengine.traced_module import trace_module
    from megengine.traced_module.comparing.diff import diff
    from megengine.traced_module.passes import optimize
    from megengine.traced_module.pictures.dot import to_dot
    from megengine.traced_module.source import to_source

    class Chain(M.Module):
        def forward(self, x: Any) -> Any:
            for _ in range(size // 2):
                x = F.relu(x) + 1
            return x

    kept = tempfile.TemporaryDirectory()
    folder, x, took = Path(kept.name), mge.tensor(np.zeros((2, 3), np.float32)), {}

    def timed(name: str, run: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = run()
        took[name] = (time.process_time() - start) / size * 1e6
        return result

    traced = timed("trace", lambda: trace_module(Chain(), x))
    edited = timed("clone", traced.clone)

    def insert() -> None:
        for expr in edited.graph.exprs():
            if expr.kind.startswith("Call"):
                with edited.graph.insert_exprs():
                    edited.graph.replace_node({expr.output: F.sigmoid(expr.output)})

    def delete() -> None:
        for expr in edited.graph.get_function_by_type(F.sigmoid):
            edited.graph.replace_node({expr.output: expr.inputs[0]})
            edited.graph.erase(expr)

    def undo() -> None:
        while edited.graph.undo():
            pass

    timed("insert behind every node", insert)
    timed("delete what was inserted", delete)
    timed("undo all", undo)
    timed("flatten", traced.flatten)
    timed("all passes", lambda: optimize(traced, "all"))
    for suffix in ("tm", "mgt"):
        timed(f"save .{suffix}", lambda suffix=suffix: mge.save(traced, folder / f"net.{suffix}"))
        timed(f"load .{suffix}", lambda suffix=suffix: mge.load(folder / f"net.{suffix}"))
    timed("diff", lambda: diff(traced, edited))
    timed("source", lambda: to_source(traced))
    timed("dot", lambda: to_dot(traced.graph))
    return took


def main() -> None:
    if sys.argv[1:2] == ["answer"]:
        answer({"ours": ours, "torch_fx": torch_fx}[sys.argv[2]]())
    elif sys.argv[1:2] == ["chain"]:
        sizes = [int(text) for text in sys.argv[2:]] or [1_000, 10_000]
        found = [chain(size) for size in sizes]
        print(f"{'us a node, CPU time':32}" + "".join(f"{size:>10,}" for size in sizes))
        for row in found[0]:
            print(f"{row:32}" + "".join(f"{took[row]:10.1f}" for took in found))
    else:
        compare()


if __name__ == "__main__":
    main()
