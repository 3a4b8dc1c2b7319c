"""TracedModule: a model as an editable graph."""

if __name__ != "megengine.traced_module":
    raise ImportError("import megengine.traced_module, not traced_module: a second copy has classes of its own")
