"""The demo's published networks: architecture, weights, and how their pictures are prepared."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from megengine import models
from megengine.cli import assets
from megengine.cli.images import PRESETS, Recipe, to_metadata
from megengine.cli.photos import PhotoSet
from megengine.tensor import Tensor
from megengine.traced_module import TracedModule, lower, trace_module


@dataclass(frozen=True, slots=True)
class Network:
    """A published classifier of ImageNet; `name` is a function of `megengine.models` and the key of its weights."""

    title: str
    name: str
    recipe: Recipe

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Input shape of batch 1."""
        return (1, 3, *self.recipe.size)

    def traced(self, *, say: Callable[[str], None] = print) -> "TracedModule":
        """The network with its published weights, captured as a graph."""
        (weights,) = assets.pip_asset(self.name, say=say)
        module = getattr(models, self.name)()
        models.load_published(module, self.name, weights)
        module.eval()
        traced = lower(trace_module(module, Tensor(np.zeros(self.shape, np.float32))))
        traced.graph.name = self.name
        traced.graph.metadata.update(to_metadata(self.recipe))
        return traced


NETWORKS = {
    network.name: network
    for network in (
        Network("MobileNetV2", "mobilenet_v2", replace(PRESETS["imagenet"], resize="square")),
        Network("EfficientNet-Lite0", "efficientnet_lite0", replace(PRESETS["tf"], resize="square")),
        Network("SqueezeNet 1.1", "squeezenet1_1", replace(PRESETS["caffe"], resize="square")),
    )
}


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibration photographs for one network; can be read more than once, holds one picture at a time."""

    photos: PhotoSet
    recipe: Recipe

    def __iter__(self) -> Iterator[tuple[np.ndarray]]:
        for view in self.photos.calibration:
            yield (view.array(self.recipe),)

    def __len__(self) -> int:
        return len(self.photos.calibration)
