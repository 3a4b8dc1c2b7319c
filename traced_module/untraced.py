"""What to do with a model that is no traced module yet, or no longer one."""

import os
import sys
from typing import Any

from megengine.module import Module


def remedy_for(model: Any, name: str = "model") -> str:
    """How to make a traced module of what was given instead of one, as the end of a message.

    Example:
        >>> remedy_for("net.onnx")
        "read files by megengine.load or megengine.convert.onnx.load first"
    """
    torch = sys.modules.get("torch")  # who gives one of its modules has imported it
    if torch is not None and isinstance(model, getattr(torch.nn, "Module", ())):
        return f"convert it first: megengine.convert.from_torch({name}, *inputs)"
    if isinstance(model, Module):
        return f"trace it first: megengine.traced_module.trace_module({name}, *inputs)"
    if hasattr(model, "traced"):
        return f"give its network in integers: {name}.traced()"
    if isinstance(model, (str, os.PathLike)):
        return "read files by megengine.load or megengine.convert.onnx.load first"
    if callable(model):
        return "wrap a function in a Module, and trace it"
    return "trace the module first"
