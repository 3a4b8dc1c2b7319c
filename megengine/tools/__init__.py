"""Tools to run by name: `python -m megengine.tools.api list.json`."""
