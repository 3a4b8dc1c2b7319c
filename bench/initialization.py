"""Time to make ResNet-50 with random weights, beside NumPy's normal numbers of the same count: one core, CPU time.

Run: python bench/initialization.py [--rounds 9]
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
from turns import cpu_milliseconds, pin_to_one_core


def main() -> None:
    """Print medians of interleaved rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    pin_to_one_core()
    from megengine import models

    count = sum(p.size for p in models.resnet50().parameters())
    source = np.random.default_rng(0)
    calls = {"models.resnet50()": models.resnet50}
    calls[f"{count} normal numbers of NumPy"] = lambda: source.standard_normal(count, np.float32)
    times = cpu_milliseconds(calls, rounds, unmeasured=0)
    print("   ".join(f"{label}: {statistics.median(ms) / 1e3:.3f} s" for label, ms in times.items()))


if __name__ == "__main__":
    main()
