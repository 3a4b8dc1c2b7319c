"""Time of one optimizer step over ResNet-50's parameters, beside torch (fused and not) in the same process.

python bench/optimizer.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from megengine import models, optimizer
from megengine.tensor import Tensor


def milliseconds(step: Callable[[], object], runs: int = 7) -> float:
    """Median CPU time of a call."""
    step()
    times = []
    for _ in range(runs):
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    """Print a table."""
    import torch

    torch.set_num_threads(1)
    params = list(models.resnet50().parameters())
    rng = np.random.default_rng(0)
    for p in params:
        p.grad = Tensor(rng.standard_normal(p.shape, np.float32))
    twins = [torch.nn.Parameter(torch.from_numpy(p.numpy().copy())) for p in params]
    for twin, p in zip(twins, params, strict=True):
        twin.grad = torch.from_numpy(np.array(p.grad))
    for name, options in (("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {})):
        ours = milliseconds(getattr(optimizer, name)(params, lr=1e-3, **options).step)
        plain, fused = (
            milliseconds(getattr(torch.optim, name)(twins, lr=1e-3, fused=f, **options).step) for f in (False, True)
        )
        print(f"{name:6} {ours:7.1f} ms   torch {plain:7.1f} ms   torch fused {fused:7.1f} ms")


if __name__ == "__main__":
    main()
