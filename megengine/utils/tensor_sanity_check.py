"""A check that operators do not change their inputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from megengine.core.errors import GraphError
from megengine.dispatch import Op, interpose
from megengine.dispatch.apply import Interposer
from megengine.tensor import Tensor

__all__ = ["TensorSanityCheck"]


class TensorSanityCheck(Interposer):
    """In its `with` body every op's inputs are compared with themselves before it ran: a test of kernels.

    Raises GraphError that names the op and the input.

    >>> with TensorSanityCheck():
    ...     loss = net(x).mean()
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        """Run, and compare the inputs."""
        before = [np.array(t.numpy()) for t in tensors]
        result = proceed()
        for i, (t, old) in enumerate(zip(tensors, before, strict=True)):
            if t.numpy().tobytes() != old.tobytes():  # bytes: a nan equals itself
                raise GraphError(f"{op.name}: its input {i} changed while it ran; a kernel writes to what it reads")
        return result

    def __enter__(self) -> TensorSanityCheck:
        self._stack.enter_context(interpose(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
