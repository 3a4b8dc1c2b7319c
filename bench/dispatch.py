"""Cost of calls on tiny tensors, beside torch and the real MegEngine: microseconds of CPU time, one core.

    python bench/dispatch.py                                # torch is measured if it can be imported
    MEGENGINE_PYTHON=/path/to/python3.8 python bench/dispatch.py

Every library runs in a process of its own, in turns; each figure is the least of the medians of its turns, since what
else runs on the machine only adds. The lines in MegEngine's names are the same for this package and for the real one.
torch computes under `no_grad` but for the gradients and the steps of training. Tensors are 4x4, images [1, 3, 8, 8];
the MLP is 64-64-10 for a batch of 32.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

TURNS = 3
ROUNDS = 9
ROUND_SECONDS = 0.01


def microseconds(call, finish):
    """Medians over rounds of about ROUND_SECONDS; `finish` waits for what runs on behind a call."""
    start = time.process_time()
    calls = 0
    while time.process_time() - start < 5 * ROUND_SECONDS:  # warm
        call()
        calls += 1
    finish()
    calls = max(10, calls // 5)
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(calls):
            call()
        finish()
        times.append((time.process_time() - start) / calls * 1e6)
    return statistics.median(times)


def values():
    import numpy as np

    rng = np.random.RandomState(0)
    shapes = (4, 4), (4, 4), (1, 3, 8, 8), (4, 3, 3, 3), (32, 64)
    return [*(rng.randn(*shape).astype("float32") for shape in shapes), rng.randint(0, 10, 32).astype("int32")]


def same(M, a, b, c, x, batch, mask, net):
    """Calls that are written alike in all libraries; M is the library's module of layers."""
    layer, linear, drop = M.Conv2d(3, 4, 3, padding=1), M.Linear(4, 4), M.Dropout(0.5)
    norm, fixed = M.BatchNorm2d(3), M.BatchNorm2d(3)
    fixed.eval()

    def add_in_place():
        nonlocal c
        c += b

    def set_item():
        c[0] = 1.0

    return {
        "add": lambda: a + b,
        "x > y": lambda: a > b,
        "sum": lambda: a.sum(),
        "M.Linear": lambda: linear(a),
        "M.Conv2d": lambda: layer(x),
        "M.BatchNorm2d": lambda: norm(x),
        "BatchNorm2d, eval": lambda: fixed(x),
        "M.Dropout": lambda: drop(a),
        "MLP": lambda: net(batch),
        "x[0]": lambda: a[0],
        "x[1:3, 2]": lambda: a[1:3, 2],
        "x[mask]": lambda: a[mask],
        "x[0] = y": set_item,
        "x += y": add_in_place,
        "for row in x": lambda: list(a),
        "x.shape": lambda: a.shape,
        "x.dtype": lambda: a.dtype,
        "len(x)": lambda: len(a),
        "numpy()": lambda: a.numpy(),
        "x[i, j].item()": lambda: a[1, 2].item(),
        "detach": lambda: a.detach(),
    }


def megengine():
    import megengine as mge
    import megengine.functional as F
    import megengine.module as M
    import megengine.optimizer as O
    from megengine.autodiff import GradManager

    a, b, x, w, batch, labels = map(mge.tensor, values())
    array, mask = values()[0], a > 0
    net = M.Sequential(M.Linear(64, 64), M.ReLU(), M.Linear(64, 10))
    manager = GradManager().attach(list(net.parameters()))
    sgd, adam = O.SGD(net.parameters(), lr=1e-3), O.Adam(net.parameters(), lr=1e-3)

    def gradients():
        gm = GradManager().attach([a, b])
        with gm:
            gm.backward((a + b).sum())
        a.grad = b.grad = None

    def step(optimizer):
        with manager:
            manager.backward(F.nn.cross_entropy(net(batch), labels))
        optimizer.step().clear_grad()

    calls = {
        **same(M, a, b, mge.tensor(array), x, batch, mask, net),
        "F.add": lambda: F.add(a, b),
        "relu": lambda: F.relu(a),
        "exp": lambda: F.exp(a),
        "matmul": lambda: F.matmul(a, b),
        "F.conv2d": lambda: F.conv2d(x, w, padding=1),
        "add + sum + backward": gradients,
        "mean(axis)": lambda: F.mean(a, axis=1),
        "max(axis)": lambda: F.max(a, axis=1),
        "argmax": lambda: F.argmax(a, axis=1),
        "softmax": lambda: F.softmax(a, axis=1),
        "cross_entropy": lambda: F.nn.cross_entropy(batch, labels),
        "max_pool2d": lambda: F.max_pool2d(x, 2),
        "where": lambda: F.where(mask, a, b),
        "MLP, SGD step": lambda: step(sgd),
        "MLP, Adam step": lambda: step(adam),
        "reshape": lambda: a.reshape(2, 8),
        "transpose": lambda: F.transpose(a, (1, 0)),
        "concat": lambda: F.concat([a, b]),
        "stack": lambda: F.stack([a, b]),
        "split": lambda: F.split(a, 2),
        "broadcast_to": lambda: F.broadcast_to(a, (2, 4, 4)),
        "astype": lambda: a.astype("float16"),
        "tensor(array)": lambda: mge.tensor(array),
        "tensor(list)": lambda: mge.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "tensor(1.0)": lambda: mge.tensor(1.0),
        "zeros": lambda: F.zeros((4, 4)),
        "full": lambda: F.full((4, 4), 1.5),
        "arange": lambda: F.arange(16),
        "zeros_like": lambda: F.zeros_like(a),
        "uniform": lambda: mge.random.uniform(size=(4, 4)),
        "normal": lambda: mge.random.normal(size=(4, 4)),
    }
    finish = getattr(mge, "_full_sync", lambda: None)  # the real one computes in a thread of its own
    return {name: microseconds(call, finish) for name, call in calls.items()}


def torch():
    import torch

    torch.set_num_threads(1)
    a, b, x, w, batch, labels = map(torch.from_numpy, values())
    N, labels = torch.nn, labels.long()
    array, mask = values()[0], a > 0
    u, v = (t.clone().requires_grad_() for t in (a, b))
    net = N.Sequential(N.Linear(64, 64), N.ReLU(), N.Linear(64, 10))
    sgd, adam = torch.optim.SGD(net.parameters(), lr=1e-3), torch.optim.Adam(net.parameters(), lr=1e-3)

    def gradients():
        (u + v).sum().backward()
        u.grad = v.grad = None

    def step(optimizer):
        N.functional.cross_entropy(net(batch), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    calls = {
        **same(N, a, b, a.clone(), x, batch, mask, net),
        "F.add": lambda: torch.add(a, b),
        "relu": lambda: torch.relu(a),
        "exp": lambda: torch.exp(a),
        "matmul": lambda: torch.matmul(a, b),
        "F.conv2d": lambda: N.functional.conv2d(x, w, padding=1),
        "mean(axis)": lambda: torch.mean(a, 1),
        "max(axis)": lambda: torch.amax(a, 1),
        "argmax": lambda: torch.argmax(a, 1),
        "softmax": lambda: torch.softmax(a, 1),
        "cross_entropy": lambda: N.functional.cross_entropy(batch, labels),
        "max_pool2d": lambda: N.functional.max_pool2d(x, 2),
        "where": lambda: torch.where(mask, a, b),
        "reshape": lambda: a.reshape(2, 8),
        "transpose": lambda: torch.permute(a, (1, 0)),
        "concat": lambda: torch.cat([a, b]),
        "stack": lambda: torch.stack([a, b]),
        "split": lambda: torch.chunk(a, 2),
        "broadcast_to": lambda: torch.broadcast_to(a, (2, 4, 4)),
        "astype": lambda: a.to(torch.float16),
        "tensor(array)": lambda: torch.tensor(array),
        "tensor(list)": lambda: torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "tensor(1.0)": lambda: torch.tensor(1.0),
        "zeros": lambda: torch.zeros((4, 4)),
        "full": lambda: torch.full((4, 4), 1.5),
        "arange": lambda: torch.arange(16, dtype=torch.float32),
        "zeros_like": lambda: torch.zeros_like(a),
        "uniform": lambda: torch.rand((4, 4)),
        "normal": lambda: torch.randn((4, 4)),
    }
    with torch.no_grad():
        found = {name: microseconds(call, lambda: None) for name, call in calls.items()}
    trained = {
        "add + sum + backward": gradients,
        "MLP, SGD step": lambda: step(sgd),
        "MLP, Adam step": lambda: step(adam),
    }
    return {**found, **{name: microseconds(call, lambda: None) for name, call in trained.items()}}


def run(python, library):
    """The figures of one library, from a process of its own."""
    done = subprocess.run(
        [python, os.path.abspath(__file__), library],
        capture_output=True,
        text=True,
        check=False,
        cwd=tempfile.gettempdir(),
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    if done.returncode:
        sys.exit(f"{python} did not finish {library}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def columns():
    found = {"megengine 2": (sys.executable, "megengine")}
    if subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        found["torch"] = (sys.executable, "torch")
    else:
        print("torch is not installed: no column for it")
    if os.environ.get("MEGENGINE_PYTHON"):
        found["MegEngine 1.13"] = (os.environ["MEGENGINE_PYTHON"], "megengine")
    else:
        print("MEGENGINE_PYTHON is not set: no column for MegEngine 1.13")
    return found


def main():
    libraries = columns()
    runs = [{name: run(*library) for name, library in libraries.items()} for _ in range(TURNS)]
    print(f"{'us, CPU time':24}" + "".join(f"{name:>16}" for name in libraries) + "    slower than another")
    for row in runs[0]["megengine 2"]:
        ours, *others = (min(turn[name][row] for turn in runs) for name in libraries)
        mark = f"    {ours / min(others):.1f} x" if ours > min(others, default=ours) else ""
        print(f"{row:24}" + "".join(f"{cell:16.2f}" for cell in (ours, *others)) + mark)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps({"megengine": megengine, "torch": torch}[sys.argv[1]]()))
    else:
        main()
