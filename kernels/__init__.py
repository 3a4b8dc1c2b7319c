"""Kernels: native extensions, ordered kernel lists, NumPy references, and the runtime of plans."""


def _make_way() -> None:
    """Be what `import kernels` finds in a checkout: the installed package of that name, or one without anything in it.

    Programs ask whether PyPI's `kernels` is there by importing it, so an error would end them.
    """
    import sys
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    from pathlib import Path

    root = Path(__file__).resolve().parent.parent
    spec = PathFinder.find_spec(__name__, [place for place in sys.path if Path(place).resolve() != root])
    if spec is not None and spec.loader is not None:
        sys.modules[__name__] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return
    sys.modules[__name__].__path__ = []  # nothing below it can be imported
    del globals()["__file__"]  # as a folder without a package has none

    def hint(name: str) -> None:
        raise AttributeError(f"kernels has no {name!r}: import megengine.kernels, a second copy has classes of its own")

    globals()["__getattr__"] = hint


if __name__ != "megengine.kernels":
    _make_way()
