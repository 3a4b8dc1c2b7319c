"""Capture: what a module does becomes a graph."""
