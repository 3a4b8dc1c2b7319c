"""Single float layers beside OpenVINO, ONNX Runtime and torch, in turns: times, and ratios to the fastest peer.

The layers are not those of one network: norms, pools, reductions, moves, activations and convolutions of kinds that
seldom occur, at sizes that networks have. CPU time on one core. What takes much longer than the fastest peer is a case
that a kernel is missing for. Of layers that move numbers only, torch makes views, where our plans write a result.
Needs `pip install torch openvino onnxruntime`, each of them optional.
Run: python bench/layers.py [--layers depthwise_3d mish] [--precisions bfloat16] [--above 1.5]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turns import cpu_milliseconds, pin_to_one_core
from zoo_networks import MissingError, Network, needed, of_torch

Shape = tuple[int, ...]
PICTURE, VOLUME, SOUND, WORDS = (64, 56, 56), (64, 8, 28, 28), (128, 512), (196, 384)
SKIPPED = ("torch compiled",)  # compiles for many seconds a layer


def _function(name: str, f: Callable[[Any, Any], Any], shape: Shape) -> Network:
    """A layer without weights: f(torch, x)."""

    def build() -> Any:
        torch = needed("torch")

        class Layer(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return f(torch, x)

        return Layer()

    return of_torch(name, build, shape)


def _layer(name: str, kind: str, shape: Shape, *arguments: Any, **options: Any) -> Network:
    """A layer of torch.nn."""
    return of_torch(name, lambda: getattr(needed("torch").nn, kind)(*arguments, **options), shape)


def _first(name: str, kind: str, shape: Shape, *arguments: Any, **options: Any) -> Network:
    """The first result of a layer of torch.nn that has several."""

    def build() -> Any:
        torch = needed("torch")

        class Layer(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = getattr(torch.nn, kind)(*arguments, **options)

            def forward(self, x: Any) -> Any:
                return self.layer(x)[0]

        return Layer()

    return of_torch(name, build, shape)


ACTIVATIONS = {
    **{"mish": "Mish", "softplus": "Softplus", "elu": "ELU", "celu": "CELU", "selu": "SELU", "silu": "SiLU"},
    **{"gelu": "GELU", "hardswish": "Hardswish", "softsign": "Softsign", "tanh": "Tanh", "leaky_relu": "LeakyReLU"},
}
CONVOLUTIONS = {
    "conv": ("Conv2d", PICTURE, (64, 64, 3, 1, 1), {}),
    "conv_dilated": ("Conv2d", PICTURE, (64, 64, 3, 1, 2, 2), {}),
    "conv_odd": ("Conv2d", (37, 56, 56), (37, 53, 3, 1, 1), {}),
    "conv_groups_4": ("Conv2d", PICTURE, (64, 64, 3, 1, 1), {"groups": 16}),
    "depthwise_7": ("Conv2d", PICTURE, (64, 64, 7, 1, 3), {"groups": 64}),
    "depthwise_dilated": ("Conv2d", PICTURE, (64, 64, 3, 1, 2, 2), {"groups": 64}),
    "conv_1d": ("Conv1d", SOUND, (128, 128, 5, 1, 2), {}),
    "depthwise_1d": ("Conv1d", SOUND, (128, 128, 31, 1, 15), {"groups": 128}),
    "conv_3d": ("Conv3d", VOLUME, (64, 64, 3, 1, 1), {}),
    "depthwise_3d": ("Conv3d", VOLUME, (64, 64, 3, 1, 1), {"groups": 64}),
    "depthwise_3d_stride": ("Conv3d", VOLUME, (64, 64, 3, 2, 1), {"groups": 64}),
    "transposed": ("ConvTranspose2d", PICTURE, (64, 64, 4, 2, 1), {}),
    "transposed_depthwise": ("ConvTranspose2d", PICTURE, (64, 64, 4, 2, 1), {"groups": 64}),
}
OTHERS = {
    "prelu": ("PReLU", PICTURE, (64,), {}),
    "group_norm": ("GroupNorm", PICTURE, (32, 64), {}),
    "instance_norm": ("InstanceNorm2d", PICTURE, (64,), {"affine": True}),
    "layer_norm": ("LayerNorm", WORDS, (384,), {}),
    "max_pool": ("MaxPool2d", PICTURE, (3, 2, 1), {}),
    "avg_pool": ("AvgPool2d", PICTURE, (3, 2, 1), {}),
    "max_pool_3d": ("MaxPool3d", VOLUME, (2,), {}),
    "resize_nearest": ("Upsample", PICTURE, (), {"scale_factor": 2}),
    "resize_bilinear": ("Upsample", PICTURE, (), {"scale_factor": 2, "mode": "bilinear"}),
    "pixel_shuffle": ("PixelShuffle", PICTURE, (2,), {}),
    "pad_reflect": ("ReflectionPad2d", PICTURE, (1,), {}),
}
FUNCTIONS: dict[str, tuple[Callable[[Any, Any], Any], Shape]] = {
    **{f"max_{''.join(map(str, axes))}": ((lambda t, x, a=axes: t.amax(x, a)), PICTURE) for axes in ((1,), (2, 3))},
    **{
        f"mean_{''.join(map(str, axes))}": ((lambda t, x, a=axes: t.mean(x, a)), PICTURE)
        for axes in ((1,), (2,), (3,), (2, 3), (1, 2, 3))
    },
    **{f"softmax_{axis}": ((lambda t, x, a=axis: t.softmax(x, a)), PICTURE) for axis in (1, 2, 3)},
    "argmax": (lambda t, x: t.argmax(x, 1), PICTURE),
    "where": (lambda t, x: t.where(x > 0, x, x * x), PICTURE),
    "cumsum": (lambda t, x: t.cumsum(x, 1), WORDS),
    "topk": (lambda t, x: t.topk(x, 8, -1)[0], WORDS),
    "einsum": (lambda t, x: t.einsum("bid,bjd->bij", x, x), WORDS),
    "concat": (lambda t, x: t.cat([x, x * 2], 1), PICTURE),
    "split": (lambda t, x: t.chunk(x, 2, 1)[1], PICTURE),
    "transpose": (lambda t, x: x.permute(0, 2, 3, 1), PICTURE),
}
LAYERS = {
    layer.name: layer
    for layer in (
        *(_layer(name, kind, PICTURE) for name, kind in ACTIVATIONS.items()),
        *(_layer(name, kind, shape, *given, **more) for name, (kind, shape, given, more) in CONVOLUTIONS.items()),
        *(_layer(name, kind, shape, *given, **more) for name, (kind, shape, given, more) in OTHERS.items()),
        *(_function(name, f, shape) for name, (f, shape) in FUNCTIONS.items()),
        _first("lstm", "LSTM", WORDS, 384, 128, batch_first=True),
        _first("gru", "GRU", WORDS, 384, 128, batch_first=True),
    )
}


def measure(layer: Network, precision: str, rounds: int) -> tuple[dict[str, float], dict[str, str]]:
    """Milliseconds of each runner, and why others do not run the layer."""
    from zoo_runs import RUNNERS, Job

    calls: dict[str, Callable[[], object]] = {}
    notes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        job = Job(layer, 1, 1, Path(folder))
        for runner, build in RUNNERS[precision].items():
            if runner in SKIPPED:
                continue
            try:
                call = build(job)
                call()
            except MissingError as missing:
                notes[runner] = str(missing)
            except Exception as error:  # a peer that refuses a layer is a result, too
                notes[runner] = f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"
            else:
                calls[runner] = call
        return {name: statistics.median(times) for name, times in cpu_milliseconds(calls, rounds).items()}, notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=[*LAYERS], metavar="NAME")
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--above", type=float, default=0.0, help="print only layers with a ratio above it")
    args = parser.parse_args()
    pin_to_one_core()
    for name in args.layers:
        for precision in args.precisions:
            times, notes = measure(LAYERS[name], precision, args.rounds)
            peers = {runner: ms for runner, ms in times.items() if runner != "ours"}
            if "ours" in times and peers:
                best = min(peers, key=peers.__getitem__)
                ratio = times["ours"] / peers[best]
                if ratio > args.above:
                    print(f"{name:22}{precision:10}{times['ours']:9.3f} ms {ratio:6.2f}  {best}", flush=True)
            else:
                print(f"{name:22}{precision:10}{notes}", flush=True)


if __name__ == "__main__":
    main()
