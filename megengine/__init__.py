"""MegEngine for today's Python."""

__version__ = "2.0.0.dev0"
