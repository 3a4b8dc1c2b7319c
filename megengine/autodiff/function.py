"""Functions with a gradient written by hand."""

from __future__ import annotations

from typing import Any

from megengine.autodiff.forward import Forward
from megengine.autodiff.tape import Tape
from megengine.core.calls import shown
from megengine.core.errors import ArgumentError, GradientError, MissingMethodError
from megengine.core.pytree import flatten
from megengine.core.text import counted
from megengine.dispatch.apply import active_interposers, hidden
from megengine.tensor import Tensor


class Function:
    """Subclass it with `forward(*inputs)` and `backward(*output_grads)`; an instance is called like a function.

    `backward` returns one gradient (or None) per tensor input, and may return None for others after them; values may be
    kept on self in between. There, `self.needs` says which tensor inputs want a gradient.
    """

    needs: tuple[bool, ...] = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Function:
        if cls.__init__ is object.__init__ and (args or kwargs):
            name = cls.__name__
            raise ArgumentError(f"{name}: its class was called with the inputs; call an instance: {name}()(x)")
        return super().__new__(cls)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The computation; its ops are not recorded."""
        raise MissingMethodError(f"{type(self).__name__} has no forward; define it in the subclass")

    def backward(self, *output_grads: Any) -> Any:
        """Gradients of the inputs from those of the outputs."""
        raise MissingMethodError(f"{type(self).__name__} has no backward; define it in the subclass")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        listeners = active_interposers()
        with hidden(lambda one: not getattr(one, "looks_inside", False)):
            out = self.forward(*args, **kwargs)
        results = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        wrong = [shown(t) for t in results if not isinstance(t, Tensor)]
        if wrong:
            raise ArgumentError(f"{type(self).__name__}.forward returned {wrong[0]}; expected tensors")
        # copies of inputs: the tape tells tensors apart by identity
        outputs = tuple(t.detach() if any(t is i for i in args) else t for t in results)
        tensors = tuple(a for a in args if isinstance(a, Tensor))
        aside = [t for t in flatten((args, kwargs))[0] if isinstance(t, Tensor) and not any(t is a for a in tensors)]
        for listener in listeners:
            if isinstance(listener, Forward):
                listener.push(type(self).__name__, self._vjp, tensors, outputs, {})
            elif isinstance(listener, Tape):
                needs = tuple(map(listener.watches, tensors))
                if any(map(listener.watches, aside)):
                    raise ArgumentError(
                        f"{type(self).__name__}: a tensor that wants a gradient is passed by name or in a list; "
                        "expected tensors by place"
                    )
                if any(needs):
                    listener.add(type(self).__name__, self._vjp, tensors, outputs, {}, needs)
        return outputs if isinstance(out, tuple) else list(outputs) if isinstance(out, list) else outputs[0]

    def _vjp(self, ctx: Any, *cts: Tensor | None) -> tuple:
        self.needs = ctx.needs
        grads = self.backward(*cts)
        grads = tuple(grads) if isinstance(grads, (tuple, list)) else (grads,)
        name, wanted = type(self).__name__, len(ctx.inputs)
        if all(grad is None for grad in grads[wanted:]):
            grads = grads[:wanted]
        if len(grads) != wanted:
            raise GradientError(
                f"{name}.backward returned {counted(len(grads), 'gradient')} for {counted(wanted, 'tensor')}; "
                "expected one (or None) for each"
            )
        wrong = [shown(g) for g in grads if g is not None and not isinstance(g, Tensor)]
        if wrong:
            raise GradientError(f"{name}.backward returned {wrong[0]}; expected a tensor or None for each input")
        return grads
