"""ONNX models in and out."""

from megengine.convert.onnx.exporter import export, export_qdq, newest_opset
from megengine.convert.onnx.importer import load, load_graph

__all__ = ["export", "export_qdq", "load", "load_graph", "newest_opset"]
