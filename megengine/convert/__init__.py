"""Models of other frameworks in and out: `megengine.convert.onnx`, and `from_torch` for modules of PyTorch."""

from megengine.convert.torch_modules import from_torch

__all__ = ["from_torch"]
