"""NumPy references: the last entry of every kernel list."""
