"""The internal names of MegEngine 1.x that programs import, over this engine.

The modules at MegEngine's paths (`megengine.core._imperative_rt`, `megengine.core.ops.builtin`, ...) are faces: they
only export names from here and from other packages. `docs/names.md` lists them.
"""
