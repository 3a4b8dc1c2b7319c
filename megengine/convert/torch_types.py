"""Functions of torch with an argument `dtype` for its exporter to ONNX, which rounds to that type what it has
computed in the operand's: a softmax of integers is zeros there. torch computes in the type itself.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any


def in_their_type(torch: Any) -> AbstractContextManager[Any]:
    """While it is entered, operands of softmax, sums, means and products get the type that is asked for first."""
    functional, special = torch.nn.functional, torch.special
    functions = (torch.softmax, torch.log_softmax, functional.softmin, special.softmax, special.log_softmax, torch.mean)
    functions += (torch.nanmean, torch.sum, torch.nansum, torch.prod, torch.cumsum, torch.cumprod)
    typed = frozenset(one.__name__ for one in functions)  # methods of tensors have the same names

    class Typed(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = dict(kwargs or {})
            if getattr(function, "__name__", None) in typed:
                kind = named.get("dtype") or next((v for v in args if isinstance(v, torch.dtype)), None)
                if kind is not None and args:
                    args = (args[0].to(kind), *args[1:])
                elif kind is not None:
                    named["input"] = named["input"].to(kind)
            return function(*args, **named)

    return Typed()


__all__ = ["in_their_type"]
