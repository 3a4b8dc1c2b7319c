"""Functions with a gradient written by hand."""

from __future__ import annotations

from typing import Any

from megengine.autodiff.forward import Forward
from megengine.autodiff.tape import Tape
from megengine.dispatch.apply import active_interposers, no_interposers
from megengine.tensor import Tensor


class Function:
    """Subclass it with `forward(*inputs)` and `backward(*output_grads)`; an instance is called like a function.

    `backward` returns one gradient (or None) per tensor input; values may be kept on self in between.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The computation; not recorded op by op."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(self, *output_grads: Any) -> Any:
        """Gradients of the inputs from those of the outputs."""
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        listeners = active_interposers()
        with no_interposers():
            out = self.forward(*args, **kwargs)
        outputs = tuple(_fresh(t, args) for t in (out if isinstance(out, tuple) else (out,)))
        tensors = tuple(a for a in args if isinstance(a, Tensor))
        for listener in listeners:
            if isinstance(listener, Forward):
                listener.push(type(self).__name__, self._vjp, tensors, outputs, {})
            elif isinstance(listener, Tape):
                needs = tuple(id(t) in listener.watched for t in tensors)
                if any(needs):
                    listener.add(type(self).__name__, self._vjp, tensors, outputs, {}, needs)
        return outputs if isinstance(out, tuple) else outputs[0]

    def _vjp(self, ctx: Any, *cts: Tensor | None) -> tuple:
        grads = self.backward(*cts)
        return tuple(grads) if isinstance(grads, (tuple, list)) else (grads,)


def _fresh(out: Tensor, inputs: tuple) -> Tensor:
    """A result that is one of the inputs gets an identity of its own on the tape."""
    return out.detach() if any(out is i for i in inputs) else out
