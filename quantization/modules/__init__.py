"""Layers of quantization-aware training and integer layers, by MegEngine's names."""
