"""Quantization: a pipeline of graph transforms."""

if __name__ != "megengine.quantization":
    raise ImportError("import megengine.quantization, not quantization: a second copy has classes of its own")
