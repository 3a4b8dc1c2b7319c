"""ONNX models in and out."""

from megengine.convert.onnx.importer import load

__all__ = ["load"]
