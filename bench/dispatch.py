"""Cost of one call on tiny tensors: medians of CPU time, beside NumPy's own call. `python bench/dispatch.py`."""

import statistics
import time

import numpy as np

import megengine.functional as F
from megengine.dispatch import apply
from megengine.tensor import tensor


def median_us(call, calls=2000, rounds=15):
    call()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(calls):
            call()
        times.append((time.process_time() - start) / calls * 1e6)
    return statistics.median(times)


def main():
    a, b = (np.random.default_rng(s).standard_normal((4, 4)).astype(np.float32) for s in (0, 1))
    x, y = tensor(a), tensor(b)
    rows = {
        "NumPy a + b": lambda: a + b,
        "apply('add', x, y)": lambda: apply("add", x, y),
        "x + y": lambda: x + y,
        "F.relu(x)": lambda: F.relu(x),
        "F.sum(x, 1)": lambda: F.sum(x, 1),
    }
    for name, call in rows.items():
        print(f"{name:22}{median_us(call):8.2f} us")


if __name__ == "__main__":
    main()
