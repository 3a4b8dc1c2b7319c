"""The networks of `bench/zoo.py`: each writes a float32 ONNX file for a batch; those of torch have a module too."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OPSET = 17


class MissingError(Exception):
    """What a network or a runner needs is not there; the text is the note in the results."""


@dataclass(frozen=True)
class Network:
    """A network by name.

    Args:
        name: how `--networks` asks for it.
        write: writes the ONNX file for a batch; raises MissingError.
        module: the torch module, where there is one.
        sizes: open sizes of inputs by name, behind the batch; `values` fixed values of inputs.
    """

    name: str
    write: Callable[[Path, int], None]
    module: Callable[[], Any] | None = None
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


def needed(name: str) -> Any:
    """An imported package. Raises MissingError if it is not installed, or does not load."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a package built for another version of torch fails with errors of every kind
        raise MissingError(f"{name} cannot be imported ({type(error).__name__})") from error


# ---------------------------------------------------------------- of this package


def _of_models(name: str) -> Network:
    def write(path: Path, batch: int) -> None:
        import numpy as np

        from megengine import models, random
        from megengine.convert import onnx
        from megengine.tensor import Tensor
        from megengine.traced_module import trace_module

        random.seed(0)
        x = Tensor(np.zeros((batch, 3, 224, 224), np.float32))
        onnx.export(trace_module(getattr(models, name)().eval(), x), path)

    return Network(name, write)


# ---------------------------------------------------------------- of torch


def of_torch(name: str, build: Callable[[], Any], shape: tuple[int, ...], tokens: int = 0) -> Network:
    """A torch module of random weights; `tokens` is the number of words where the input holds words."""

    def module() -> Any:
        needed("torch").manual_seed(0)
        return build().eval()

    def write(path: Path, batch: int) -> None:
        torch = needed("torch")
        x = torch.randint(0, tokens, (batch, *shape)) if tokens else torch.randn(batch, *shape)
        torch.onnx.export(module(), (x,), str(path), opset_version=OPSET, dynamo=False, input_names=["x"])

    return Network(name, write, module)


def _vision(name: str, size: int = 224) -> Network:
    return of_torch(name, lambda: getattr(needed("torchvision").models, name)(weights=None), (3, size, size))


def _segmentation() -> Any:
    make = needed("torchvision").models.segmentation.deeplabv3_mobilenet_v3_large
    wrapped = make(weights=None, weights_backbone=None)
    torch = needed("torch")

    class Picture(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = wrapped

        def forward(self, x: Any) -> Any:
            return self.net(x)["out"]

    return Picture()


def _encoder(layers: int = 4, width: int = 256, *, causal: bool = False, words: int = 1000) -> Any:
    """A BERT-like encoder, or a GPT-like decoder, that reads words."""
    torch = needed("torch")
    nn = torch.nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, width)
            self.places = nn.Parameter(torch.randn(128, width) * 0.02)
            layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True)
            self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.head = nn.Linear(width, words if causal else 2)

        def forward(self, x: Any) -> Any:
            y = self.words(x) + self.places[: x.shape[1]]
            if not causal:
                return self.head(self.layers(y).mean(1))
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.head(self.layers(y, mask=mask))

    return Encoder()


def _whisper() -> Any:
    """Two convolutions over a spectrogram, and an encoder."""
    nn = needed("torch").nn

    class Whisper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ears = nn.Sequential(nn.Conv1d(80, 256, 3, 1, 1), nn.GELU(), nn.Conv1d(256, 256, 3, 2, 1), nn.GELU())
            layer = nn.TransformerEncoderLayer(256, 4, 1024, activation="gelu", batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

        def forward(self, x: Any) -> Any:
            return self.layers(self.ears(x).transpose(1, 2))

    return Whisper()


def _llama() -> Any:
    """A block with RMS norm, rotary positions, grouped queries and a gated MLP."""
    torch = needed("torch")
    nn = torch.nn

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(256))

        def forward(self, x: Any) -> Any:
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = Norm(), Norm()
            self.q, self.k, self.v, self.o = (nn.Linear(256, n, bias=False) for n in (256, 128, 128, 256))
            self.gate, self.up, self.down = (nn.Linear(*n, bias=False) for n in ((256, 688), (256, 688), (688, 256)))
            angles = torch.arange(64)[:, None] * 10000 ** (-torch.arange(0, 64, 2) / 64)
            self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()]))

        def turned(self, x: Any) -> Any:
            a, b = x.chunk(2, -1)
            cos, sin = self.turns[0], self.turns[1]
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        def forward(self, x: Any) -> Any:
            n, length, _ = x.shape
            y = self.before(x)
            q, k, v = (f(y).reshape(n, length, -1, 64).transpose(1, 2) for f in (self.q, self.k, self.v))
            k, v = (t.repeat_interleave(2, 1) for t in (self.turned(k), v))
            scores = self.turned(q) @ k.transpose(2, 3) / 8
            hidden = torch.full((length, length), -100.0, dtype=x.dtype).triu(1)
            x = x + self.o((torch.softmax(scores + hidden, -1) @ v).transpose(1, 2).reshape(n, length, 256))
            y = self.between(x)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    return Block()


def _unet() -> Any:
    torch = needed("torch")
    nn = torch.nn

    def twice(i: int, o: int) -> Any:
        parts = (nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())
        return nn.Sequential(*parts, nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = twice(3, 16), twice(16, 32), twice(32, 64), twice(96, 32)
            self.e, self.out = twice(48, 16), nn.Conv2d(16, 2, 1)

        def forward(self, x: Any) -> Any:
            wider = nn.Upsample(scale_factor=2)
            a = self.a(x)
            b = self.b(nn.functional.max_pool2d(a, 2))
            c = self.c(nn.functional.max_pool2d(b, 2))
            d = self.d(torch.cat([b, wider(c)], 1))
            return self.out(self.e(torch.cat([a, wider(d)], 1)))

    return UNet()


def _volume() -> Any:
    nn = needed("torch").nn
    one = (nn.Conv3d(3, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.MaxPool3d(2))
    two = (nn.Conv3d(16, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU(), nn.AdaptiveAvgPool3d(1))
    return nn.Sequential(*one, *two, nn.Flatten(), nn.Linear(32, 10))


def _recurrent(kind: str, layers: int, *, both: bool) -> Any:
    nn = needed("torch").nn

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(100, 64)
            self.layers = getattr(nn, kind)(64, 128, layers, batch_first=True, bidirectional=both)
            self.head = nn.Linear(256 if both else 128, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(self.words(x))[0])

    return Tagger()


# ---------------------------------------------------------------- of packages


def package_file(package: str, file: str) -> Path:
    """A file in an installed package, found without running the package."""
    found = importlib.util.find_spec(package)
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    files = [f for folder in folders for f in sorted(Path(folder).glob(file))]
    if not files:
        raise MissingError(f"{package} is not installed, or has no {file}")
    return files[0]


def _of_package(name: str, package: str, file: str, **known: Any) -> Network:
    def write(path: Path, batch: int) -> None:
        onnx = needed("onnx")
        model = onnx.load(package_file(package, file))
        stored = {tensor.name for tensor in model.graph.initializer}
        inputs = [item for item in model.graph.input if item.name not in stored]  # old files list weights there too
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        model.ir_version = max(model.ir_version, 4)
        if any(
            one.domain == "" and one.version < 13 for one in model.opset_import
        ):  # older ones have no scales a channel
            model = needed("onnx.version_converter").convert_version(model, OPSET)
        onnx.save(model, path)

    return Network(name, write, **known)


def _light(name: str) -> Network:
    return _of_package(f"light_{name}", "onnx", f"backend/test/data/light/light_{name}.onnx")


LIGHT = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet")
VISION = (
    *("resnet18", "regnet_y_400mf", "efficientnet_b0", "mobilenet_v3_large", "convnext_tiny", "shufflenet_v2_x1_0"),
    *("swin_t", "vit_b_16", "densenet121", "googlenet", "inception_v3", "mnasnet1_0"),
)
_ALL = (
    *map(_of_models, ("resnet50", "mobilenet_v2", "efficientnet_lite0", "squeezenet1_1")),
    *map(_vision, VISION),
    of_torch("deeplab", _segmentation, (3, 224, 224)),
    of_torch("bert", _encoder, (64,), 1000),
    of_torch("gpt", lambda: _encoder(causal=True), (64,), 1000),
    of_torch("llama_block", _llama, (64, 256)),
    of_torch("whisper_encoder", _whisper, (80, 400)),
    of_torch("unet", _unet, (3, 128, 128)),
    of_torch("cnn_3d", _volume, (3, 8, 32, 32)),
    of_torch("lstm_tagger", lambda: _recurrent("LSTM", 2, both=True), (64,), 100),
    of_torch("gru_tagger", lambda: _recurrent("GRU", 1, both=False), (64,), 100),
    *map(_light, (*LIGHT, "vgg19", "zfnet512")),
    _of_package("ocr_detector", "rapidocr_onnxruntime", "models/*det*.onnx", sizes={"x": (3, 320, 320)}),
    _of_package("ocr_recogniser", "rapidocr_onnxruntime", "models/*rec*.onnx", sizes={"x": (3, 48, 320)}),
    _of_package("ocr_classifier", "rapidocr_onnxruntime", "models/*cls*.onnx", sizes={"x": (3, 48, 192)}),
    _of_package("magika", "magika", "models/*/model.onnx"),
    _of_package(
        "silero_vad",
        "silero_vad",
        "data/silero_vad.onnx",
        sizes={"input": (512,), "state": (2, 128)},
        values={"sr": 16000},
    ),
)
NETWORKS = {network.name: network for network in _ALL}
