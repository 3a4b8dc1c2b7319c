"""Quantization-aware training of a small MobileNetV2 on the silhouettes of PyPI's animal-mnist, weights per tensor.

Top-1 on 2,000 pictures that nothing was trained on and that are no twins of trained ones: float, after post-training
quantization, and after epochs of training by each method, every network as integers (a plan, checked by `verify`).
Beside it the share of pictures that have the float network's class.
`pip download --no-deps animal-mnist==0.4`, unpack it, then:
    python bench/animal_mnist.py FOLDER/animal_mnist/data/Animal_MNIST [--epochs 2] [--seeds 3] [--methods ste lsq]
        [--efforts balanced best]
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import megengine.functional as F
import megengine.module as M
from megengine import Tensor, optimizer, plan, random
from megengine.autodiff import GradManager
from megengine.quantization import QuantConfig, RangeMethod, prepare_qat, quantize_model, verify
from megengine.quantization.pipeline.config import EFFORTS
from megengine.quantization.pipeline.qat_training import RATE
from megengine.serialization import read_numpy_pickle
from megengine.traced_module import trace_module

BLOCKS = ((1, 16, 1, 1), (4, 24, 2, 2), (4, 32, 2, 2), (4, 48, 1, 1))  # expansion, channels, count, stride


def conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[M.Module]:
    """A convolution and its batch norm."""
    return [M.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False), M.BatchNorm2d(outputs)]


class Block(M.Module):
    """An inverted residual."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        first = [*conv(inputs, wide, 1), M.ReLU6()] if expansion > 1 else []
        self.layers = M.Sequential(*first, *conv(wide, wide, 3, stride, wide), M.ReLU6(), *conv(wide, outputs, 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Any) -> Any:
        """[N, C, H, W]."""
        y = self.layers(x)
        return x + y if self.adds else y


class Network(M.Module):
    """[N, 1, 28, 28] -> [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[M.Module] = [*conv(1, 16, 3), M.ReLU6()]
        channels = 16
        for expansion, outputs, count, stride in BLOCKS:
            for i in range(count):
                layers.append(Block(channels, outputs, stride if i == 0 else 1, expansion))
                channels = outputs
        self.layers = M.Sequential(*layers, *conv(channels, 128, 1), M.ReLU6())
        self.head = M.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        """Logits."""
        return self.head(F.mean(self.layers(x), axis=(2, 3)))


def silhouettes(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pictures and labels: to train, and 2,000 others without twins among these."""
    arrays = []
    for kind in ("data", "label"):
        with tempfile.NamedTemporaryFile() as file:
            file.write(gzip.decompress((folder / f"animal_{kind}_version_3.gz").read_bytes()))
            file.flush()
            arrays.append(np.asarray(read_numpy_pickle(file.name)))
    x, y = arrays[0].reshape(-1, 28, 28), arrays[1].reshape(-1).astype(np.int32)
    _, first = np.unique(x.reshape(len(x), -1), axis=0, return_index=True)
    order = np.random.default_rng(0).permutation(first)
    x = (x[order, None].astype(np.float32) / 255 - 0.5) / 0.5
    return x[2000:], y[order][2000:], x[:2000], y[order][:2000]


def epochs_of(net: Any, x: np.ndarray, y: np.ndarray, epochs: int, lr: float, seed: int, batch: int = 64) -> None:
    """Train with Adam and a rate that falls as a cosine."""
    parameters = list(net.parameters())
    gm, adam = GradManager().attach(parameters), optimizer.Adam(parameters, lr=lr)
    steps, done = epochs * (len(x) // batch), 0
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(x))
        for first in range(0, len(x) - batch + 1, batch):
            part = order[first : first + batch]
            adam.param_groups[0]["lr"] = lr * 0.5 * (1 + np.cos(np.pi * done / steps))
            with gm:
                gm.backward(F.nn.cross_entropy(net(Tensor(x[part])), Tensor(y[part])))
            adam.step().clear_grad()
            done += 1


def classes(network: Any, x: np.ndarray) -> np.ndarray:
    """The best class of each picture, by a plan."""
    run = plan.compile(network)
    logits = np.concatenate([np.asarray(run(x[i : i + 100])).reshape(-1, 10) for i in range(0, len(x), 100)])
    return logits.argmax(1)


@dataclass
class Table:
    """Top-1 and agreement with the float network in percent, by the name of a row, one pair a seed."""

    x: np.ndarray
    y: np.ndarray
    rows: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    float_classes: np.ndarray | None = None

    def add(self, row: str, network: Any) -> None:
        """Measure a network; the float network of a seed comes first."""
        if row != "float":
            assert verify(network, [self.x[:100]], with_float=False).exact, f"{row}: plan and interpreter differ"
        found = classes(network, self.x)
        self.float_classes = found if row == "float" else self.float_classes
        shares = [100 * float(np.mean(found == right)) for right in (self.y, self.float_classes)]
        self.rows.setdefault(row, []).append((shares[0], shares[1]))
        print(f"  {row:14} {shares[0]:6.2f} %, agrees {shares[1]:6.2f} %", flush=True)

    def show(self) -> None:
        """Means over the seeds."""
        for row, seeds in self.rows.items():
            right, same = (statistics.mean(values) for values in zip(*seeds, strict=True))
            each = " ".join(f"{one:.2f}" for one, _ in seeds)
            print(f"{row:14} {right:6.2f} %, agrees {same:6.2f} %   {each}")


def float_network(seed: int, x: np.ndarray, y: np.ndarray, epochs: int, state: Path | None) -> Network:
    """Trained, or read from the folder `state`, where it is kept."""
    random.seed(seed)
    net, begin = Network(), time.process_time()
    kept = state and state / f"animal_mnist_{seed}.npz"
    if kept and kept.exists():
        net.load_state_dict(dict(np.load(kept)))
    else:
        epochs_of(net.train(), x, y, epochs, 0.004, seed)
        if kept:
            np.savez(kept, **net.state_dict())
    print(f"seed {seed}: {sum(p.size for p in net.parameters())} parameters, {time.process_time() - begin:.0f} s")
    net.eval()
    return net


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--float-epochs", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=RATE, help="of QAT; the command's default")
    parser.add_argument("--efforts", nargs="*", default=["fast", "balanced"], choices=EFFORTS)
    parser.add_argument("--methods", nargs="*", default=["ste", "tqt", "lsq", "pact"])
    parser.add_argument("--weights", default="per_tensor", choices=("per_tensor", "per_channel"))
    parser.add_argument("--precision", default="w8a8", help="of every quantized network, such as w4a8")
    parser.add_argument("--state", type=Path, help="keep the float networks in this folder")
    arguments = parser.parse_args()
    scheme: dict[str, Any] = {"weights": arguments.weights, "precision": arguments.precision}
    x, y, test_x, test_y = silhouettes(arguments.folder)
    table = Table(test_x, test_y)
    for seed in range(arguments.seeds):
        net = float_network(seed, x, y, arguments.float_epochs, arguments.state)
        sample = Tensor(test_x[:100])
        traced = trace_module(net, sample)
        table.add("float", traced)
        batches = [x[i : i + 100] for i in range(0, 1000, 100)]
        for effort in arguments.efforts:
            model = quantize_model(traced, batches, QuantConfig.of(effort, **scheme))
            table.add(f"ptq {effort}", model.traced())
        for method in arguments.methods:
            begin = time.process_time()
            config = QuantConfig(**scheme, activations=RangeMethod("minmax"), bias_correction=False)
            trained = prepare_qat(net, sample, config=config, method=method, calibration=batches).train()
            trained.norms_moving = False
            epochs_of(trained, x, y, arguments.epochs, arguments.lr, seed)
            print(f"  {method}: {time.process_time() - begin:.0f} s", flush=True)
            table.add(f"qat {method}", trained.eval().convert())
    table.show()


if __name__ == "__main__":
    main()
