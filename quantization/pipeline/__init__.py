"""The passes from a float network to integers, and `quantize_model`, which calls them in order."""
