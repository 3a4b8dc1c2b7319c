"""ImageNet (ILSVRC2012, Russakovsky et al. 2015), as folders of pictures, a folder for each class."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from megengine.core.errors import MissingFileError
from megengine.data.dataset.vision.folder import ImageFolder
from megengine.data.dataset.vision.utils import default_root
from megengine.dispatch.refusal import constructor

__all__ = ["ImageNet"]


class ImageNet(ImageFolder):
    """The folder "train" or "val" below `root` (by default ~/.cache/megengine/ImageNet); see `ImageFolder`.

    Both hold a folder for each of the thousand classes, called by its WordNet id (n01440764, ...), in whose order the
    classes are numbered. The archives as they are published are not unpacked here.

    Raises:
        MissingFileError: there is no such folder.
    """

    default_train_dir = "train"
    default_val_dir = "val"

    @constructor
    def __init__(
        self,
        root: str | None = None,
        train: bool = True,
        check_valid_func: Callable[[str], bool] | None = None,
        class_name: bool = False,
    ) -> None:
        top = Path(default_root("ImageNet") if root is None else os.path.expanduser(root))
        folder = top / (self.default_train_dir if train else self.default_val_dir)
        if not folder.is_dir():
            raise MissingFileError(
                f"ImageNet: there is no folder {str(folder)!r}; expected one with a folder for each class, such as "
                "n01440764; unpack the archives into these"
            )
        super().__init__(str(folder), check_valid_func, class_name)
