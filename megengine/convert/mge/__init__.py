"""MegEngine's deployment graphs (.mge), which `trace.dump` writes, as editable graphs."""

from megengine.convert.mge.importer import load, load_graph

__all__ = ["load", "load_graph"]
