"""Objects365: pictures with boxes of 365 classes (Shao et al. 2019), in the form of COCO."""

from __future__ import annotations

from megengine.data.dataset.vision.categories import OBJECTS365
from megengine.data.dataset.vision.coco import BoxDataset

__all__ = ["Objects365"]


class Objects365(BoxDataset):
    """Objects365. See `BoxDataset`."""

    class_names = OBJECTS365
