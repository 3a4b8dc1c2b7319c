"""Cost of calls on tiny tensors, beside torch and the real MegEngine: microseconds of CPU time, one core.

    python bench/dispatch.py                                # torch is measured if it can be imported
    MEGENGINE_PYTHON=/path/to/python3.8 python bench/dispatch.py

Every library runs in a process of its own, in turns; each figure is the least of the medians of its turns, since what
else runs on the machine only adds. The lines in MegEngine's names are the same for this package and for the real one.
torch computes under `no_grad` but for the gradients.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

TURNS = 5
ROUNDS = 15
ROUND_SECONDS = 0.01
ROWS = (
    *("add", "F.add", "relu", "matmul", "F.conv2d", "M.Conv2d", "add + sum + backward"),
    *("tensor(array)", "tensor(list)", "zeros", "full", "arange", "uniform", "normal"),
    *("x[0]", "x[1:3, 2]", "x[i, j].item()", "astype", "numpy()"),
)


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
    return [rng.randn(*shape).astype("float32") for shape in ((4, 4), (4, 4), (1, 3, 8, 8), (4, 3, 3, 3))]


def megengine():
    import megengine as mge
    import megengine.functional as F
    import megengine.module as M
    from megengine.autodiff import GradManager

    a, b, x, w = map(mge.tensor, values())
    layer, array = M.Conv2d(3, 4, 3, padding=1), values()[0]

    def gradients():
        gm = GradManager().attach([a, b])
        with gm:
            gm.backward((a + b).sum())
        a.grad = b.grad = None

    calls = {
        "add": lambda: a + b,
        "F.add": lambda: F.add(a, b),
        "relu": lambda: F.relu(a),
        "matmul": lambda: F.matmul(a, b),
        "F.conv2d": lambda: F.conv2d(x, w, padding=1),
        "M.Conv2d": lambda: layer(x),
        "add + sum + backward": gradients,
        "tensor(array)": lambda: mge.tensor(array),
        "tensor(list)": lambda: mge.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "zeros": lambda: F.zeros((4, 4)),
        "full": lambda: F.full((4, 4), 1.5),
        "arange": lambda: F.arange(16),
        "uniform": lambda: mge.random.uniform(size=(4, 4)),
        "normal": lambda: mge.random.normal(size=(4, 4)),
        "x[0]": lambda: a[0],
        "x[1:3, 2]": lambda: a[1:3, 2],
        "x[i, j].item()": lambda: a[1, 2].item(),
        "astype": lambda: a.astype("float16"),
        "numpy()": lambda: a.numpy(),
    }
    finish = getattr(mge, "_full_sync", lambda: None)  # the real one computes in a thread of its own
    return {name: microseconds(call, finish) for name, call in calls.items()}


def torch():
    import torch

    torch.set_num_threads(1)
    a, b, x, w = map(torch.from_numpy, values())
    layer, array = torch.nn.Conv2d(3, 4, 3, padding=1), values()[0]
    u, v = (t.clone().requires_grad_() for t in (a, b))

    def gradients():
        (u + v).sum().backward()
        u.grad = v.grad = None

    calls = {
        "add": lambda: a + b,
        "F.add": lambda: torch.add(a, b),
        "relu": lambda: torch.relu(a),
        "matmul": lambda: torch.matmul(a, b),
        "F.conv2d": lambda: torch.nn.functional.conv2d(x, w, padding=1),
        "M.Conv2d": lambda: layer(x),
        "tensor(array)": lambda: torch.tensor(array),
        "tensor(list)": lambda: torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "zeros": lambda: torch.zeros((4, 4)),
        "full": lambda: torch.full((4, 4), 1.5),
        "arange": lambda: torch.arange(16, dtype=torch.float32),
        "uniform": lambda: torch.rand((4, 4)),
        "normal": lambda: torch.randn((4, 4)),
        "x[0]": lambda: a[0],
        "x[1:3, 2]": lambda: a[1:3, 2],
        "x[i, j].item()": lambda: a[1, 2].item(),
        "astype": lambda: a.to(torch.float16),
        "numpy()": lambda: a.numpy(),
    }
    with torch.no_grad():
        found = {name: microseconds(call, lambda: None) for name, call in calls.items()}
    return {**found, "add + sum + backward": microseconds(gradients, lambda: None)}


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
    print(f"{'us, CPU time':24}" + "".join(f"{name:>16}" for name in libraries))
    for row in ROWS:
        cells = (min(turn[name][row] for turn in runs) for name in libraries)
        print(f"{row:24}" + "".join(f"{cell:16.2f}" for cell in cells))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps({"megengine": megengine, "torch": torch}[sys.argv[1]]()))
    else:
        main()
