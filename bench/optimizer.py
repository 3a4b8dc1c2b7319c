"""Time of one optimizer step over ResNet-50's parameters, beside torch (fused and not): one core, CPU time.

Runs are interleaved in one process; printed are medians, and the median of the ratios of the rounds.
Run: python bench/optimizer.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
from turns import cpu_milliseconds, pin_to_one_core


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    pin_to_one_core()
    import torch

    from megengine import models, optimizer
    from megengine.tensor import Tensor

    torch.set_num_threads(1)
    params = list(models.resnet50().parameters())
    rng = np.random.default_rng(0)
    for p in params:
        p.grad = Tensor(rng.standard_normal(p.shape, np.float32))
    twins = [torch.nn.Parameter(torch.from_numpy(p.numpy().copy())) for p in params]
    for twin, p in zip(twins, params, strict=True):
        twin.grad = torch.from_numpy(np.array(p.grad))
    for name, options in (("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {}), ("Adagrad", {}), ("Adadelta", {})):
        steps = {"ours": getattr(optimizer, name)(params, lr=1e-3, **options).step}
        for label, fused in (("torch", {}), ("torch fused", {"fused": True})):
            if fused and name == "Adadelta":  # it has no fused form
                continue
            steps[label] = getattr(torch.optim, name)(twins, lr=1e-3, **fused, **options).step
        times = cpu_milliseconds(steps, rounds)
        best = list(times)[-1]
        ratio = statistics.median(a / b for a, b in zip(times["ours"], times[best], strict=True))
        row = "   ".join(f"{label} {statistics.median(t):7.1f} ms" for label, t in times.items())
        print(f"{name:8}   {row}   ours / {best} = {ratio:.2f}")


if __name__ == "__main__":
    main()
