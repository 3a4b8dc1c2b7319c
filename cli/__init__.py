"""The mge-quantize command."""

if __name__ != "megengine.cli":
    raise ImportError("import megengine.cli, not cli: a second copy has classes of its own")
