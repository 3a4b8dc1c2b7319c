"""`Grad`: gradients with a callback for each tensor, as MegEngine's own code takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megengine.autodiff.tape import Tape
from megengine.core.errors import ArgumentError, GradientError, brief
from megengine.core.text import counted
from megengine.dispatch.apply import begin, end
from megengine.functional import ones_like  # pyright: ignore[reportAttributeAccessIssue]
from megengine.tensor import Tensor

Callback = Callable[[Tensor], Any]


class Grad:
    """Records what is computed from the tensors of `wrt`; a call gives each callback its gradient.

    ```python
    with Grad() as grad:
        grad.wrt(x, callback=lambda g: print(g))
        grad(x * x)
    ```
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name
        self._tape: Tape | None = Tape()
        self._wanted: list[tuple[Tensor, Callback | None]] = []
        self._paused = False
        begin(self._tape)

    def wrt(self, *tensors: Tensor, callback: Callback | None = None) -> Grad:
        """Ask for gradients; `callback(grad)` is called with each. Raises GradientError after the call."""
        tape = self._open("wrt")
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise ArgumentError(f"Grad.wrt: got {brief(tensor)}; expected tensors")
            tape.watch(tensor)
            self._wanted.append((tensor, callback))
        return self

    def _is_attached_to(self, tensor: Tensor) -> bool:
        return self._tape is not None and self._tape.watches(tensor)

    def _open(self, what: str) -> Tape:
        if self._tape is None:
            raise GradientError(f"Grad.{what}: it was called or closed already; make another one")
        return self._tape

    def suppress(self) -> None:
        """Stop recording for a while."""
        if not self._paused:
            end(self._open("suppress"))
            self._paused = True

    def resume(self) -> None:
        """Record again."""
        if self._paused:
            begin(self._open("resume"))
            self._paused = False

    def __call__(self, ys: Any, dys: Any = None) -> None:
        """Gradients of ys (a tensor, or several) with the cotangents dys, by default ones."""
        tape = self._open("__call__")
        targets = [ys] if isinstance(ys, Tensor) else list(ys)
        seeds = [ones_like(y) for y in targets] if dys is None else [dys] if isinstance(dys, Tensor) else list(dys)
        if len(seeds) != len(targets):
            raise GradientError(f"Grad: {counted(len(targets), 'target')} and {counted(len(seeds), 'cotangent')}")
        self._close()
        grads = tape.gradients(targets, seeds, [tensor for tensor, _ in self._wanted])
        for (_, callback), grad in zip(self._wanted, grads, strict=True):
            if callback is not None and grad is not None:
                callback(grad)

    def _close(self) -> None:
        if self._tape is not None:
            end(self._tape)
        self._tape = None

    def __enter__(self) -> Grad:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
