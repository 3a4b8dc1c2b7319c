"""From picture files to the arrays that a network expects. The recipe is data and goes into the report."""

import json
import math
import os
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from megengine.core.errors import FileFormatError, OptionError, nearest, nearest_file
from megengine.core.sizes import is_open
from megengine.core.text import counted

SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"),
    *(".ppm", ".pgm", ".pbm", ".tga", ".jp2", ".avif"),
)
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)
MAX_PIXELS = 200_000_000  # a larger picture is refused before its pixels are decoded
MAX_SIDE = 4096  # of what a network takes
CHANNELS = (1, 3)
METADATA = "megengine.preprocess"  # under which a model stores its recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a picture becomes an input array.

    Attributes:
        size: height and width of the result.
        resize: "stretch" scales the whole picture to `size`; "crop" scales the shorter side to `size / crop_ratio`
            and takes the centre; "square" takes the largest centre square first.
        crop_ratio: for "crop", the part of the shorter side that is kept.
        colour: "RGB", "BGR" or "L" (one grey channel).
        mean, std: in units of 0..255, one number a channel in the order of `colour`; x = (pixel - mean) / std.
        layout: "NCHW" or "NHWC".
        background, margin: a picture with transparency is cut to its visible part and laid on a square of this colour
            with `margin` of the longer side around it.
        flip: mirror left and right.
    """

    size: tuple[int, int] = (224, 224)
    resize: str = "crop"
    crop_ratio: float = 0.875
    colour: str = "RGB"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    layout: str = "NCHW"
    background: tuple[int, int, int] = (255, 255, 255)
    margin: float = 0.1
    flip: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (
            ("resize", ("stretch", "crop", "square")),
            ("colour", ("RGB", "BGR", "L")),
            ("layout", ("NCHW", "NHWC")),
        ):
            if (value := getattr(self, name)) not in allowed:
                raise OptionError(f"recipe: {name} is {value!r}; expected one of {', '.join(allowed)}")
        if len(self.size) != 2 or not all(type(n) is int and 1 <= n <= MAX_SIDE for n in self.size):
            raise OptionError(f"recipe: size is {self.size}; expected height and width, 1 to {MAX_SIDE}")
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, self.channels):
                raise OptionError(
                    f"recipe: {name} has {counted(len(getattr(self, name)), 'number')}; "
                    f"pictures in {self.colour} need 1 or {self.channels}"
                )
        if 0 in self.std:
            raise OptionError("recipe: std holds a zero; expected the divisor of each channel")
        if not 0.01 <= self.crop_ratio <= 1:
            raise OptionError(f"recipe: crop_ratio is {self.crop_ratio}; expected a number from 0.01 to 1")
        if not 0 <= self.margin <= 10:
            raise OptionError(f"recipe: margin is {self.margin}; expected a part of the longer side, 0 to 10")
        if len(self.background) != 3 or not all(type(n) is int and 0 <= n <= 255 for n in self.background):
            raise OptionError(f"recipe: background is {self.background}; expected red, green and blue, 0 to 255")
        if not all(math.isfinite(float(n)) for n in (*self.mean, *self.std)):
            raise OptionError("recipe: mean or std holds a number that is not finite")

    @property
    def channels(self) -> int:
        """Channels of the result."""
        return 1 if self.colour == "L" else 3

    def describe(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        crop = f"crop {self.crop_ratio:g}" if self.resize == "crop" else self.resize
        flip = ", mirrored" if self.flip else ""
        return f"{self.size[0]}x{self.size[1]} {crop}, {self.colours}, {self.layout}{flip}"

    @property
    def colours(self) -> str:
        """Order, mean and deviation of the channels."""
        means, stds = (",".join(f"{n:g}" for n in numbers) for numbers in (self.mean, self.std))
        return f"{self.colour}, mean {means}, std {stds}"


PRESETS = {
    "imagenet": Recipe(),
    "tf": Recipe(mean=(127.0,), std=(128.0,)),
    "caffe": Recipe(size=(227, 227), colour="BGR", mean=(103.939, 116.779, 123.68), std=(1.0,)),
    "unit": Recipe(mean=(0.0,), std=(255.0,)),
    "mnist": Recipe(size=(28, 28), resize="stretch", colour="L", mean=(0.1307 * 255,), std=(0.3081 * 255,)),
}


def recipe_files(text: str | None) -> list[str]:
    """The file that a recipe names, if it does."""
    head = "" if text is None else _split_commas(text)[0]
    return [head] if head.endswith(".json") else []


def recipe(text: str, shape: tuple[int, ...] | None = None) -> Recipe:
    """A recipe from the command line: a preset, a JSON file, or `preset,key=value,...`.

    Args:
        text: what the user gave; without a preset it states mean and std.
        shape: of the network's input; size and layout follow it where the text leaves them open.

    >>> recipe("imagenet,size=160,resize=stretch", (1, 3, 224, 224)).size
    (160, 160)
    """
    head, *changes = _split_commas(text)
    stated: dict[str, Any] = {}
    base: dict[str, Any] = {}
    if head in PRESETS:
        base = PRESETS[head].describe()
    elif head.endswith(".json") and "=" not in head:
        stated = _recipe_file(Path(head))
    elif "=" in head:
        changes = [head, *changes]
    else:
        raise OptionError(
            f"preprocessing: no preset {head!r}{nearest(head, PRESETS)}; expected one of {', '.join(PRESETS)}, "
            "a .json file, or key=value pairs"
        )
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise OptionError(f"preprocessing: {change!r} is not key=value")
        stated[key] = _parsed(re.sub(r"(?<=\d)x(?=\d)", ",", value) if key == "size" else value)
    if missing := [key for key in ("mean", "std") if key not in base | stated]:
        raise OptionError(
            f"preprocessing: {text!r} names no preset, so it must state mean and std; missing: {', '.join(missing)}"
        )
    form = _form_of(shape)
    if "layout" in form and not {"size"} & {*form, *stated}:
        raise OptionError(
            f"preprocessing: {text!r} states no size, and the network takes pictures of any, {shape}; add size=HxW, "
            f"for example --preprocess {text},size={'x'.join(map(str, base.get('size', (224, 224))))}"
        )
    return _recipe_from(base | form | stated, "preprocessing")


def _form_of(shape: tuple[int, ...] | None) -> dict[str, Any]:
    """Size, unless it is open, and layout of an input that takes pictures.

    Raises OptionError if no axis has 1 or 3 channels.
    """
    if shape is None:
        return {}
    for layout, channels, size in (("NCHW", 1, shape[2:]), ("NHWC", 3, shape[1:3])):
        if len(shape) == 4 and shape[channels] in CHANNELS:
            return {"layout": layout, **({} if any(map(is_open, size)) else {"size": size})}
    raise OptionError(f"pictures have 1 or 3 channels, the network's input is {shape}; give .npy or .npz data")


def to_metadata(how: Recipe) -> dict[str, str]:
    """The metadata in which a model stores the preparation of its pictures."""
    return {METADATA: json.dumps(how.describe())}


def from_metadata(metadata: Mapping[str, str], shape: tuple[int, ...] | None = None) -> Recipe | None:
    """The recipe that a model stores, at its input's size, or None. Raises FileFormatError if it is no recipe."""
    if METADATA not in metadata:
        return None
    try:
        values = _read(metadata[METADATA])
        return _recipe_from(values | _form_of(shape), "recipe")
    except (OptionError, FileFormatError) as error:
        raise FileFormatError(f"the model stores a recipe for pictures that cannot be used: {error}") from error


def _split_commas(text: str) -> list[str]:
    """Commas separate pairs; a piece without `=` after a pair continues its list: mean=1,2,3,std=4."""
    pieces: list[str] = []
    for piece in text.split(","):
        if pieces and "=" in pieces[-1] and "=" not in piece:
            pieces[-1] += "," + piece
        else:
            pieces.append(piece)
    return pieces


def _parsed(value: str) -> Any:
    parts = []
    for part in value.strip("()[]").split(","):
        try:
            parts.append(json.loads(part))
        except ValueError:
            parts.append(part.strip())
    return parts[0] if len(parts) == 1 else tuple(parts)


def _recipe_file(path: Path) -> dict[str, Any]:
    try:
        return _read(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise FileFormatError(f"recipe {path}: no such file{nearest_file(path)}") from error
    except OSError as error:
        raise FileFormatError(f"recipe {path}: cannot be read ({error.strerror})") from error
    except (FileFormatError, UnicodeError) as error:
        raise FileFormatError(f"recipe {path}: {error}") from error


def _read(text: str) -> dict[str, Any]:
    """The JSON object of a recipe."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"not JSON ({error})") from error
    if not isinstance(values, dict):
        raise FileFormatError(f"expected a JSON object of {', '.join(f.name for f in fields(Recipe))}")
    return values


def _recipe_from(values: dict[str, Any], where: str) -> Recipe:
    known = [field.name for field in fields(Recipe)]
    clean: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise OptionError(f"{where}: unknown key {key!r}{nearest(key, known)}; expected {', '.join(known)}")
        if key in ("size", "mean", "std", "background"):
            value = tuple(value) if isinstance(value, (list, tuple)) else (value,)
            if not all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in value):
                raise OptionError(f"{where}: {key} is {value}; expected numbers")
            value = value * 2 if key == "size" and len(value) == 1 else value
        clean[key] = value
    try:
        return Recipe(**clean)
    except (TypeError, OverflowError) as error:
        raise OptionError(f"{where}: {error}") from error


def open_picture(path: Path, how: Recipe) -> Image.Image:
    """The picture in RGB, on the recipe's background. Raises FileFormatError if it is damaged or no picture."""
    try:
        with Image.open(path) as picture:
            return _decoded(picture, how)
    except OptionError as error:
        raise FileFormatError(f"picture {path}: {error}") from error
    except Exception as error:  # Pillow raises a dozen types for damaged data
        raise FileFormatError(f"picture {path}: cannot be read ({error}); remove or repair the file") from error


def _decoded(picture: Image.Image, how: Recipe) -> Image.Image:
    if picture.width * picture.height > MAX_PIXELS:
        raise OptionError(f"{picture.width}x{picture.height} is more than {MAX_PIXELS} pixels; scale it down")
    picture = _in_bytes(_upright(picture), picture.format)
    transparent = picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info
    return _composed(picture.convert("RGBA"), how) if transparent else picture.convert("RGB")


def _upright(picture: Image.Image) -> Image.Image:
    """Turned as the camera noted that it was held."""
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # Pillow raises a dozen types for damaged notes, which do not make the pixels unreadable
        return picture


def _in_bytes(picture: Image.Image, file_format: str | None) -> Image.Image:
    """A grey picture of 16 bits in 8 bits; Pillow's own conversion cuts all above 255."""
    if picture.mode.startswith("I;16") or (picture.mode == "I" and file_format == "PNG"):
        return Image.fromarray(np.rint(np.asarray(picture) / 257).astype(np.uint8))
    if picture.mode in ("I", "F"):
        raise OptionError(
            f"its pixels are {'int32' if picture.mode == 'I' else 'float32'}, which do not say what is white; save it "
            "with 8 or 16 bits, or give prepared arrays (.npy)"
        )
    return picture


def _composed(picture: Image.Image, how: Recipe) -> Image.Image:
    visible = picture.getbbox()
    if visible:
        picture = picture.crop(visible)
    width, height = picture.size
    side = int(max(width, height) * (1 + 2 * how.margin))
    if side * side > MAX_PIXELS:
        raise OptionError(
            f"{width}x{height} would be laid on a square of {side}x{side}, over {MAX_PIXELS} pixels; make it opaque"
        )
    square = Image.new("RGBA", (side, side), (*how.background, 255))
    square.alpha_composite(picture, ((side - width) // 2, (side - height) // 2))
    return square.convert("RGB")


def _resized(picture: Image.Image, how: Recipe) -> Image.Image:
    height, width = how.size
    if how.resize == "square":
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        picture = picture.crop((left, top, left + side, top + side))
    elif how.resize == "crop":
        scale = max(height / picture.height, width / picture.width) / how.crop_ratio
        scaled = max(width, round(picture.width * scale)), max(height, round(picture.height * scale))
        if scaled[0] * scaled[1] > MAX_PIXELS:
            raise OptionError(
                f"{picture.width}x{picture.height} would be scaled to {scaled[0]}x{scaled[1]}, more than {MAX_PIXELS} "
                "pixels; crop it, or take resize=stretch"
            )
        picture = picture.resize(scaled, Image.Resampling.BICUBIC)
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        return picture.crop((left, top, left + width, top + height))
    return picture.resize((width, height), Image.Resampling.BICUBIC)


def prepare(picture: Image.Image, how: Recipe) -> np.ndarray:
    """float32 array of one picture, [1, C, H, W] or [1, H, W, C]."""
    picture = _resized(picture, how)
    if how.flip:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if how.colour == "L":
        pixels = np.asarray(picture.convert("L"), np.float32)[..., None]
    else:
        pixels = np.asarray(picture, np.float32)
        pixels = pixels[..., ::-1] if how.colour == "BGR" else pixels
    x = (pixels - np.asarray(how.mean, np.float32)) / np.asarray(how.std, np.float32)
    x = x.transpose(2, 0, 1) if how.layout == "NCHW" else x
    return np.ascontiguousarray(x[None], np.float32)


def load(path: Path, how: Recipe) -> np.ndarray:
    """A picture file as an input array of batch 1. Raises as `open_picture`."""
    picture = open_picture(path, how)
    try:
        return prepare(picture, how)
    except OptionError as error:
        raise FileFormatError(f"picture {path}: {error}") from error


def images_in(folder: Path) -> list[Path]:
    """Picture files below a folder, in path order; hidden ones, which systems keep beside pictures, are none."""
    return sorted(path for path in _files_below(folder) if path.suffix.lower() in SUFFIXES)


def others_in(folder: Path) -> dict[str, int]:
    """How many other files are below a folder, by their suffixes, the most frequent first."""
    suffixes = (path.suffix.lower() for path in _files_below(folder))
    return dict(Counter(one or "no suffix" for one in suffixes if one not in SUFFIXES).most_common())


def _files_below(folder: Path) -> Iterator[Path]:
    """Files, and links to nothing, which are refused when they are read. Links to folders are followed, after all that
    lies below the folder itself; each folder is visited once.
    """
    seen, folders = set(), deque([folder])
    while folders:
        here = folders.popleft()
        real = os.path.realpath(here)
        if real in seen:
            continue
        seen.add(real)
        with os.scandir(here) as entries:
            shown = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda one: one.name)
        for entry in shown:
            path = here / entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.appendleft(path)
            elif entry.is_dir():
                folders.append(path)
            elif entry.is_file() or entry.is_symlink():
                yield path
