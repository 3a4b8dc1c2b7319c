"""The demo's labelled photographs: an evaluation set and a calibration set that share no picture."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from megengine.cli import assets
from megengine.cli.images import Recipe, load
from megengine.core.text import counted

WHITE, GREY = (255, 255, 255), (128, 128, 128)
FORMS = tuple(itertools.product((0.05, 0.2), (WHITE, GREY), (False, True)))  # margin, background, mirrored


@dataclass(frozen=True, slots=True)
class Photo:
    """A picture file and the ImageNet ids that count as right."""

    path: Path
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """One way to show a photo: margin, background and mirroring replace those of a network's recipe."""

    photo: Photo
    margin: float = 0.1
    background: tuple[int, int, int] = WHITE
    flip: bool = False

    def array(self, how: Recipe) -> np.ndarray:
        """float32 [1, C, H, W]."""
        return load(self.photo.path, replace(how, margin=self.margin, background=self.background, flip=self.flip))


@dataclass(frozen=True, slots=True)
class PhotoSet:
    """Disjoint photographs: those of `evaluation` have labels, those of `calibration` need none."""

    name: str
    line: str
    calibration: tuple[View, ...]
    evaluation: tuple[View, ...]


@cache
def label_map() -> dict:
    """Tux Paint's photographs and their ImageNet ids."""
    text = resources.files("megengine.cli").joinpath("data/tuxpaint.json").read_text(encoding="utf-8")
    return json.loads(text)


def tuxpaint(folder: Path, *, calibration: int = 100, views: str = "plain") -> PhotoSet:
    """135 labelled photographs of the folder `stamps`, and the first `calibration` of 190 others in path order.

    `views` "plain" shows each photo once on white, "all" in 8 ways (margin, background, mirrored).
    """
    table = label_map()
    labelled = [Photo(folder / name, tuple(ids)) for name, ids in table["labels"].items()]
    missing = [photo.path for photo in labelled if not photo.path.is_file()]
    if missing:
        raise assets.AssetError(
            f"{counted(len(missing), 'photograph')} of the label map not found in {folder}; first: {missing[0]}"
        )
    others = [View(Photo(path, ())) for path in _unlabelled(folder)]
    forms: Any = FORMS if views == "all" else ((),)
    evaluated = [View(photo, *form) for photo in labelled for form in forms]
    line = (
        f"photographs: Tux Paint stamps (Debian package {assets.STAMPS_PACKAGE}), {len(labelled)} labelled, "
        f"{counted(len(evaluated), 'view')}; calibrated on {counted(len(others[:calibration]), 'other')}"
    )
    return PhotoSet("tuxpaint", line, tuple(others[:calibration]), tuple(evaluated))


def _unlabelled(folder: Path) -> Iterator[Path]:
    table = label_map()
    for top in table["calibration_folders"]:
        for path in sorted((folder / top).rglob("*.png")):
            name = path.relative_to(folder).as_posix()
            if name not in table["labels"] and not any(word in name for word in table["calibration_excludes"]):
                yield path


def foolbox(paths: list[Path]) -> PhotoSet:
    """20 labelled photographs: every second one calibrates (with its mirror picture), the others are evaluated."""
    photos = [Photo(path, (int(path.stem.rsplit("_", 1)[1]),)) for path in paths]
    calibration = [View(photo, flip=flip) for photo in photos[1::2] for flip in (False, True)]
    line = (
        f"photographs: foolbox 3.3.4, {len(photos)} labelled; {len(photos[0::2])} evaluated, "
        f"calibrated on the other {len(photos[1::2])}"
    )
    return PhotoSet("foolbox", line, tuple(calibration), tuple(View(photo) for photo in photos[0::2]))


def photo_set(*, say: Callable[[str], None] = print, views: str = "plain") -> PhotoSet:
    """Tux Paint's photographs if they are available, else foolbox's; `say` gets a line that names them."""
    try:
        chosen = tuxpaint(assets.stamps(say=say), views=views)
    except assets.AssetError as error:
        say(str(error))
        chosen = foolbox(assets.pip_asset("foolbox", say=say))
    say(chosen.line)
    return chosen
