"""Time to make ResNet-50 with random weights, beside NumPy's normal numbers of the same count: one core, CPU time.

Run: python bench/initialization.py [--rounds 9]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np


def seconds(run: Callable[[], object]) -> float:
    """CPU time of a call."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def main() -> None:
    """Print medians of interleaved rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    from megengine import models

    count = sum(p.size for p in models.resnet50().parameters())
    source = np.random.default_rng(0)
    pairs = [
        (seconds(models.resnet50), seconds(lambda: source.standard_normal(count, np.float32))) for _ in range(rounds)
    ]
    ours, numpy = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"models.resnet50(): {ours:.3f} s   {count} normal numbers of NumPy: {numpy:.3f} s")


if __name__ == "__main__":
    main()
