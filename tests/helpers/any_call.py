"""Calls of every public function with arguments of any kind: what comes back is a result or a documented error
that shows the call.

As a script: `python any_call.py SEED CALLS` makes that many calls of each function and prints the undocumented errors.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from megengine.core.errors import MegEngineError
from megengine.dispatch import public_functions
from megengine.dispatch.public import PublicFunction, watched_function
from megengine.tensor import Tensor

DTYPES = ["float32", "float16", "float64", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool"]
TEXTS = [
    "mean",
    "none",
    "sum",
    "default",
    "same",
    "constant",
    "reflect",
    "bilinear",
    "x",
    "NCHW",
    "test0",
    "float32",
    "",
]
OTHERS = [np.zeros((2, 3)), np.float32(3), {}, object(), b"x", slice(0, 2), [1, [2]], 1j, 10**12, -(10**12)]
NUMBERS = [0, 1, -1, 2, 3, 5, -7, 100, 0.5, -1.5, 0.0, float("nan"), float("inf"), 1e30]
# names of parameters that mean a tensor: most calls give one, so that they come further than the first check
TENSORS = {
    "inp",
    "inps",
    "x",
    "y",
    "weight",
    "bias",
    "input",
    "data",
    "tensor",
    "pred",
    "label",
    "mat1",
    "mat2",
    "index",
}


class Arguments:
    """Arguments drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.random, self.numpy = random.Random(seed), np.random.default_rng(seed)

    def tensor(self) -> Tensor:
        """Any dtype, 0 to 5 axes of length 0 to 5; some nan and inf."""
        pick = self.random.choice
        shape = tuple(pick([0, 1, 1, 2, 3, 4, 5]) for _ in range(pick([0, 1, 1, 2, 2, 3, 4, 4, 5])))
        dtype = "float32" if self.random.random() < 0.5 else pick(DTYPES)
        values = self.numpy.standard_normal(shape) * pick([1, 3, 30])
        if dtype.startswith(("int", "uint")):
            return Tensor(np.clip(values, 0 if dtype == "uint8" else -100, 100).astype(dtype), dtype=dtype)
        if dtype == "bool":
            return Tensor(values > 0)
        if self.random.random() < 0.1:
            values = np.where(self.numpy.random(shape) < 0.3, pick([np.nan, np.inf, -np.inf]), values)
        return Tensor(values.astype(np.float32), dtype=dtype)

    def value(self) -> Any:
        """Anything."""
        pick, kind = self.random.choice, self.random.random()
        if kind < 0.4:
            return self.tensor()
        if kind < 0.6:
            return pick(NUMBERS)
        if kind < 0.7:
            return tuple(pick([0, 1, 2, 3, -1]) for _ in range(pick([0, 1, 2, 3, 4])))
        if kind < 0.78:
            return [self.tensor() for _ in range(pick([0, 1, 2, 3]))]
        return pick([None, True, False]) if kind < 0.85 else pick(TEXTS) if kind < 0.95 else pick(OTHERS)

    def of(self, function: PublicFunction) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments for a signature; most that have a default are left out."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for p in function.signature.parameters.values():
            if p.kind == p.VAR_POSITIONAL:
                args += [self.value() for _ in range(self.random.choice([0, 1, 2]))]
            elif p.kind == p.VAR_KEYWORD or (p.default is not p.empty and self.random.random() < 0.6):
                continue
            else:
                value = self.tensor() if p.name in TENSORS and self.random.random() < 0.85 else self.value()
                if p.kind == p.KEYWORD_ONLY or p.default is not p.empty:
                    kwargs[p.name] = value
                else:
                    args.append(value)
        return args, kwargs


def undocumented(function: PublicFunction, arguments: Arguments) -> str:
    """Make one call; what is wrong with its error, or "" for a result or a documented one."""
    args, kwargs = arguments.of(function)
    try:
        results = watched_function(function)(*args, **kwargs)
        for result in results if isinstance(results, (tuple, list)) else [results]:
            if isinstance(result, Tensor):
                result.numpy()
    except MegEngineError as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", [])])
        if not str(error).strip():
            return f"{function.qualified}: {type(error).__name__} without a message"
        return "" if f"{function.name}(" in text else f"{function.qualified}: the call is not named: {text}"
    except MemoryError:  # 10**12 elements were asked for
        return ""
    except Exception as error:
        return f"{function.qualified}: {type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    import megengine.functional  # noqa: F401  (declares the functions)

    drawn = Arguments(int(sys.argv[1]))
    for qualified in sorted(public_functions):
        print(f"# {qualified}", file=sys.stderr, flush=True)  # the last line names the function that crashed
        for _ in range(int(sys.argv[2])):
            problem = undocumented(public_functions[qualified], drawn)
            if problem:
                print(problem)
