"""Quantization: a pipeline of graph transforms."""
