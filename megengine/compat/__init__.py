"""What programs import from inside MegEngine 1.x, over this engine.

The modules at MegEngine's paths (`megengine.core._imperative_rt`, `megengine.core.ops.builtin`, ...) are faces: they
only give names to what is written here and elsewhere. `docs/names.md` says what is where.
"""
