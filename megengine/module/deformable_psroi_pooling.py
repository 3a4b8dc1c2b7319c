"""Deformable position-sensitive pooling of regions."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.module.module import Module
from megengine.tensor import Tensor


class DeformablePSROIPooling(Module):
    """Pools regions into pooled_h x pooled_w cells that are moved by offsets (Dai et al. 2017)."""

    def __init__(
        self,
        no_trans: bool,
        part_size: int,
        pooled_h: int,
        pooled_w: int,
        sample_per_part: int,
        spatial_scale: float,
        trans_std: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.no_trans, self.part_size = no_trans, part_size
        self.pooled_h, self.pooled_w = pooled_h, pooled_w
        self.sample_per_part, self.spatial_scale, self.trans_std = sample_per_part, spatial_scale, trans_std

    def forward(self, inp: Tensor, rois: Tensor, trans: Tensor) -> Tensor:
        """[N,C,H,W], regions [R,5] and offsets -> [R,C,pooled_h,pooled_w]."""
        sizes = (self.part_size, self.pooled_h, self.pooled_w, self.sample_per_part)
        return F.deformable_psroi_pooling(inp, rois, trans, self.no_trans, *sizes, self.spatial_scale, self.trans_std)
