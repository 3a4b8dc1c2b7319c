"""Checks: what stays in float, how far integers are from float, and whether all ways to run agree."""
