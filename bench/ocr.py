"""PP-OCRv4 in int8 on rendered text: lines that are read without a mistake, and the mask of text that is detected.

The recogniser reads words and numbers in two families of fonts, turned, blurred, with noise, dark on light and light on
dark; the detector sees pages of such lines. Compared with the float network, ONNX Runtime's static quantization on the
same calibration data in the same run. Every row of ours is the plan of the integer network, checked by `verify`.

Needs `pip install rapidocr-onnxruntime onnxruntime` (for its files only) and the fonts DejaVu and Liberation.
Run: python bench/ocr.py [--network recogniser] [--lines 400] [--effort balanced]
"""

import argparse
import functools
import pydoc_data.topics
import re
import string
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from peers import Run, session, static_int8
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from zoo_networks import NETWORKS

from megengine import plan
from megengine.convert import onnx as mge_onnx
from megengine.quantization import QuantConfig, QuantizedModel, quantize_model, verify
from megengine.quantization.pipeline.config import EFFORTS

FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSans-Bold", "LiberationSans-Regular", "LiberationSerif-Regular")
FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", str(Path.home() / ".fonts"))
HEIGHT, WIDTH, PAGE = 48, 320, 320
MASK = 0.3  # the detector's own threshold


# ---------------------------------------------------------------- text


@functools.cache
def words() -> list[str]:
    """Words of Python's own documentation, which is installed everywhere."""
    return sorted(set(re.findall(r"\b[A-Za-z][a-z]{2,9}\b", " ".join(pydoc_data.topics.topics.values()))))


@functools.cache
def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    files = (file for folder in FOLDERS for file in Path(folder).rglob(f"{name}.ttf"))
    file = next(files, None)
    if file is None:
        raise SystemExit(f"no font {name}.ttf; install fonts-dejavu-core and fonts-liberation")
    return ImageFont.truetype(str(file), size)


def phrase(rng: np.random.Generator) -> str:
    """One or two words, a number, or a word and a number."""
    number = "".join(rng.choice(list(string.digits), rng.integers(2, 8)))
    one, two = rng.choice(words(), 2)
    return str(rng.choice(np.array([one, f"{one} {two}", number, f"{one} {number}"], object)))


def line(text: str, rng: np.random.Generator) -> Image.Image:
    """A picture of one line of text in grey."""
    dark, light = (int(v) for v in (rng.integers(0, 90), rng.integers(165, 256)))
    ink, paper = (dark, light) if rng.random() < 0.7 else (light, dark)
    kind = font(str(rng.choice(FONTS)), int(rng.integers(24, 41)))
    box = kind.getbbox(text)
    picture = Image.new("L", (int(box[2] - box[0]) + 20, int(box[3] - box[1]) + 16), paper)
    ImageDraw.Draw(picture).text((10 - box[0], 8 - box[1]), text, ink, kind)
    picture = picture.rotate(float(rng.uniform(-2, 2)), Image.Resampling.BICUBIC, expand=True, fillcolor=paper)
    picture = picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 0.9))))
    noisy = np.asarray(picture, np.float64) + rng.normal(0, rng.uniform(0, 12), picture.size[::-1])
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def tensor(picture: Image.Image) -> np.ndarray:
    """Grey to what both networks read: [1, 3, height, width], -1 to 1."""
    grey = np.asarray(picture, np.float32) / 255
    return np.ascontiguousarray(np.broadcast_to((grey - 0.5) / 0.5, (1, 3, *grey.shape)))


def line_input(picture: Image.Image) -> np.ndarray:
    """One line at the recogniser's height, zeros to the right of it."""
    width = min(WIDTH, round(picture.width * HEIGHT / picture.height))
    filled = np.zeros((1, 3, HEIGHT, WIDTH), np.float32)
    filled[..., :width] = tensor(picture.resize((width, HEIGHT), Image.Resampling.BILINEAR))
    return filled


def page_input(rng: np.random.Generator) -> np.ndarray:
    """A page with some lines; [1, 3, PAGE, PAGE]."""
    page = Image.new("L", (PAGE, PAGE), int(rng.integers(100, 256)))
    for place in range(int(rng.integers(0, 20)), PAGE - 50, int(rng.integers(52, 90))):
        one = line(phrase(rng), rng)
        page.paste(one.resize((max(1, one.width * 2 // 3), one.height * 2 // 3)), (int(rng.integers(0, 90)), place))
    noisy = np.asarray(page, np.float64) + rng.normal(0, 4, (PAGE, PAGE))
    return tensor(Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)))


# ---------------------------------------------------------------- reading


def alphabet(file: Path) -> list[str]:
    """What each class of the recogniser stands for; class 0 is none."""
    import onnx

    stored = {p.key: p.value for p in onnx.load(file).metadata_props}
    return ["", *stored["character"].splitlines(), " "]


def read(classes: np.ndarray, symbols: list[str]) -> str:
    """The text of the best classes [positions], repetitions and spaces left out."""
    kept = [c for i, c in enumerate(classes) if i == 0 or c != classes[i - 1]]
    return "".join(symbols[int(c)] for c in kept).replace(" ", "")


def exact_lines(run: Run, samples: Sequence[tuple[np.ndarray, str]], symbols: list[str]) -> float:
    """The share of lines without a mistake."""
    right = [read(run(x)[0].argmax(-1), symbols) == text.replace(" ", "") for x, text in samples]
    return float(np.mean(right))


def overlap(run: Run, pages: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> float:
    """Intersection over union with the masks of the float network, over all pixels of all pages."""
    found = [run(x) > MASK for x in pages]
    both = sum(int((a & b).sum()) for a, b in zip(found, masks, strict=True))
    return both / sum(int((a | b).sum()) for a, b in zip(found, masks, strict=True))


# ---------------------------------------------------------------- runs


def ours(file: Path, calibration: Sequence[np.ndarray], config: QuantConfig) -> tuple[QuantizedModel, Run]:
    traced = mge_onnx.load(file, input_shapes={"x": calibration[0].shape})
    model = quantize_model(traced, [(x,) for x in calibration], config)
    compiled = plan.compile(model.integer_graph, threads=1)
    return model, lambda x: np.array(compiled(x)[0])


def compare(
    network: str, calibration: Sequence[np.ndarray], rate: Callable[[Run], float], efforts: Sequence[str], title: str
) -> None:
    """Print one row for float, and one for each way to int8 and each scheme of weights."""
    print(f"\n{network}: {title}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "float.onnx"
        NETWORKS[f"ocr_{network}"].write(file, 1)
        print(f"{'float, ONNX Runtime':36} {100 * rate(session(file)):6.2f}", flush=True)
        for weights in ("per_channel", "per_tensor"):
            target = file.with_name(f"{weights}.onnx")
            static_int8(file, target, ({"x": x} for x in calibration), per_channel=weights == "per_channel")
            print(f"{f'ONNX Runtime, {weights}':36} {100 * rate(session(target)):6.2f}", flush=True)
            for effort in efforts:
                model, run = ours(file, calibration, QuantConfig.of(effort, weights=weights))
                exact = "verify exact" if verify(model, [calibration[0]], threads=(1,)).exact else "verify NOT exact"
                share = sum(one.share for one in model.report.floating)
                noise = model.analyze([(x,) for x in calibration[:4]]).output_sqnr_db
                row = f"{f'ours, {effort}, {weights}':36} {100 * rate(run):6.2f}"
                print(f"{row}  {noise:.1f} dB, {share:.1%} of multiply-adds in float, {exact}", flush=True)


def recogniser(lines: int, efforts: Sequence[str]) -> None:
    from zoo_networks import package_file

    symbols = alphabet(package_file("rapidocr_onnxruntime", "models/*rec*.onnx"))
    rng = np.random.default_rng(1)
    calibration = [line_input(line(phrase(rng), rng)) for _ in range(80)]
    rng = np.random.default_rng(2)
    texts = [phrase(rng) for _ in range(lines)]
    samples = [(line_input(line(text, rng)), text) for text in texts]
    compare("recogniser", calibration, lambda run: exact_lines(run, samples, symbols), efforts, "% of exact lines")


def detector(pages: int, efforts: Sequence[str]) -> None:
    rng = np.random.default_rng(3)
    calibration = [page_input(rng) for _ in range(24)]
    held_out = [page_input(rng) for _ in range(pages)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "float.onnx"
        NETWORKS["ocr_detector"].write(file, 1)
        run = session(file)
        masks = [run(x) > MASK for x in held_out]
    compare("detector", calibration, lambda run: overlap(run, held_out, masks), efforts, "IoU with float, %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", action="append", choices=("recogniser", "detector"))
    parser.add_argument("--lines", type=int, default=400)
    parser.add_argument("--pages", type=int, default=40)
    parser.add_argument("--effort", action="append", choices=list(EFFORTS))
    chosen = parser.parse_args()
    for network in chosen.network or ("recogniser", "detector"):
        efforts = chosen.effort or list(EFFORTS)
        recogniser(chosen.lines, efforts) if network == "recogniser" else detector(chosen.pages, efforts)


if __name__ == "__main__":
    main()
