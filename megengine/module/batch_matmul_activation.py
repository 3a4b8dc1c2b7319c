"""Matrix products with a weight for each member of a batch."""

from __future__ import annotations

import math
from typing import Any

from megengine import functional as F
from megengine.module import init
from megengine.module.module import Module
from megengine.ops.common import choice
from megengine.tensor import Tensor


class BatchMatMulActivation(Module):
    """weight [batch, out, in] times x [batch, in, N], plus bias, then identity or relu.

    The bias [out] is added along the last axis, as in MegEngine, so with a bias N must be `out_features`.
    Raises OptionError for another nonlinear_mode.
    """

    def __init__(
        self,
        batch: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        nonlinear_mode: str = "identity",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        choice("BatchMatMulActivation", "nonlinear_mode", str(nonlinear_mode).lower(), ("identity", "relu"))
        self.batch, self.out_features, self.in_features = batch, out_features, in_features
        self.weight = init.parameter((batch, out_features, in_features))
        self.bias = init.parameter((out_features,)) if bias else None
        self.nonlinear_mode = nonlinear_mode.lower()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal weights of variance 1 / in_features, bias 0."""
        init.normal_(self.weight, 0.0, math.sqrt(1 / max(self.in_features, 1)))
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, in, N] -> [batch, out, N]."""
        out = F.matmul(self.weight, x)
        if self.bias is not None:
            out = out + self.bias
        return F.relu(out) if self.nonlinear_mode == "relu" else out

    def _module_info_string(self) -> str:
        return (
            f"batch={self.batch}, in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )
