"""Ranges: what was seen of a tensor, and the scale and zero point that follow from it."""
