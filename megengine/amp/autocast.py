"""A `with` body, or a function, with mixed precision."""

from __future__ import annotations

import contextlib
from typing import Any

from megengine.dispatch import mixed
from megengine.ops.common import choice

__all__ = ["DTYPES", "autocast"]

DTYPES = ("float16", "bfloat16", "float32")


class autocast(contextlib.ContextDecorator):  # noqa: N801 (MegEngine's name)
    """Body or function in which convolutions and matrix products take float32 operands as `low_prec_dtype`.

    Their sums are kept in float32, and rounded once; results have that dtype, and so have those of ops on them alone,
    while ops on one of them and a float32 tensor give float32. Gradients of float32 tensors are float32. bfloat16 is
    faster than float32 on CPUs with AVX512-BF16 or AMX; float16 is not. With `enabled=False` nothing is cast, also in
    the body of another one.

    Example:
        >>> with autocast(low_prec_dtype="bfloat16"):
        ...     print(F.matmul(F.ones((2, 3)), F.ones((3, 2))).dtype)
        bfloat16
    """

    def __init__(self, enabled: bool = True, low_prec_dtype: str = "float16", high_prec_dtype: str = "float32") -> None:
        for name, dtype in (("low_prec_dtype", low_prec_dtype), ("high_prec_dtype", high_prec_dtype)):
            choice("autocast", name, dtype, DTYPES)
        self.enabled, self.low_prec_dtype, self.high_prec_dtype = enabled, low_prec_dtype, high_prec_dtype
        self._before: list[mixed.Casting | None] = []

    def __enter__(self) -> autocast:
        self._before.append(mixed.casting())
        mixed.cast_by(mixed.Casting(self.low_prec_dtype, self.high_prec_dtype) if self.enabled else None)
        return self

    def __exit__(self, *error: Any) -> None:
        mixed.cast_by(self._before.pop())
