"""Functions that build networks: what other libraries' functions of these names take is answered with the call here."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from megengine.core.calls import called
from megengine.core.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")
_OF_WEIGHTS = ("pretrained", "weights")


def builder(function: Callable[P, R]) -> Callable[P, R]:
    """A function that builds a network with random weights, and says where published ones come from."""
    name = function.__name__

    @functools.wraps(function)
    def build(*args: P.args, **kwargs: P.kwargs) -> R:
        values: dict[str, Any] = {**dict(zip(("num_classes",), args, strict=False)), **kwargs}
        asked = [word for word in _OF_WEIGHTS if word in values]
        if asked or isinstance(values.get("num_classes"), bool):
            raise ArgumentError(
                f"{name}: builds a network with random weights; expected num_classes, a whole number, got "
                f"{called(name, args, kwargs)}; megengine.models.load_pretrained({name!r}, FILE) reads published ones"
            )
        return function(*args, **kwargs)

    return build
