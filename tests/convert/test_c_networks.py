"""Whole networks as C files: those of the zoo, and published ones at a small size."""

import numpy as np
import pytest

from megengine import models
from megengine.convert import from_torch
from megengine.core.errors import GraphError
from megengine.core.pytree import flatten
from megengine.quantization import quantize_model
from megengine.tensor import Tensor
from megengine.traced_module import lower, trace_module
from tests.helpers.c_file import CFile, needs_gcc
from tests.helpers.zoo import ZOO

pytestmark = [needs_gcc, pytest.mark.slow]

# network -> a node that has no C form
REFUSED = {
    "alexnet": "pow: none for this op",
    "retinanet": "topk: none for this op",
    "deformable": "floor: none for this op",
    "siamese": "pow: none for this op",
    "spatial_transformer": "floor: none for this op",
    "bert": "index: input_ids is computed by the network; expected a constant",
    "lstm_tagger": "qrecurrent: none for this op",
    "crnn": "qrecurrent: none for this op",
    "wide_and_deep": "index: reshape_out is computed by the network; expected a constant",
    "experts": "one_hot: none for this op",
}
OTHERS = {"seq2seq", "autoencoder"}  # loops over the length of the input, keyword arguments


def integers(net, given):
    """The network in integers, and its inputs."""
    arrays = tuple(leaf.numpy() for leaf in flatten(list(given))[0])
    return quantize_model(lower(trace_module(net, *given)).graph, [arrays if len(arrays) > 1 else arrays[0]]), arrays


@pytest.mark.parametrize("name", [name for name in ZOO if name not in OTHERS])
@pytest.mark.filterwarnings("ignore::megengine.traced_module.SpecializationWarning")
def test_zoo(tmp_path, name):
    model, arrays = integers(*ZOO[name]())
    if name in REFUSED:
        with pytest.raises(GraphError, match=rf"no C form: .*{REFUSED[name]}"):
            CFile(tmp_path, model)
        return
    file = CFile(tmp_path, model)
    for factor in (1, -30):
        file.check(*(a * np.float32(factor) if a.dtype == np.float32 else a for a in arrays))


def published(name):
    if hasattr(models, name):
        return trace_module(getattr(models, name)().eval(), Tensor(np.zeros((1, 3, 64, 64), np.float32)))
    torchvision = pytest.importorskip("torchvision")
    given = (
        {"block_config": (2, 3, 3, 2)} if name == "DenseNet" else {}
    )  # its layers are alike, but 58 of them are slow
    net = getattr(torchvision.models, name)(**given).eval()
    return from_torch(net, Tensor(np.zeros((1, 3, 64, 64), np.float32)))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        *("resnet18", "mobilenet_v2", "squeezenet1_1", "efficientnet_lite0"),
        *("mobilenet_v3_small", "efficientnet_b0", "DenseNet", "shufflenet_v2_x1_0"),
    ],
)
def test_published_networks(tmp_path, name):
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(1, 3, 64, 64)).astype(np.float32) for _ in range(2)]
    file = CFile(tmp_path, quantize_model(lower(published(name)).graph, data))
    for x in (data[1], data[1] * 50, np.full_like(data[1], 1e9), np.full_like(data[1], -1e9)):
        file.check(x)
