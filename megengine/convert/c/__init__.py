"""Integer networks as one C99 file without dependencies: `export`, `to_source`."""

from megengine.convert.c.exporter import export, to_source

__all__ = ["export", "to_source"]
