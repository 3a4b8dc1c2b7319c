"""Every module of MegEngine 1.13 (tests/data/megengine/modules.txt) can be imported, or its error says what to use."""

import importlib
import sys
from pathlib import Path

import pytest

from megengine.core.paths import PATHS

MODULES = (Path(__file__).parents[1] / "data" / "megengine" / "modules.txt").read_text().split()


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_imported_or_say_what_to_use(name):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        assert str(error).startswith(f"No module named '{name}'") or name.count(".") > 1
        assert ": " in str(error), str(error)
    else:
        assert module.__name__ == name


@pytest.mark.parametrize("path", PATHS)
def test_a_path_has_the_names_of_its_home(path):
    home, module = importlib.import_module(PATHS[path]), importlib.import_module(path)
    assert PATHS[path] not in PATHS
    names = {}
    exec(f"from {path} import *", names)
    assert names.keys() - {"__builtins__"} == set(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is getattr(home, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing_such'"):
        _ = module.nothing_such
    with pytest.raises(ImportError, match="cannot import name 'nothing_such'"):
        exec(f"from {path} import nothing_such")


def test_paths_do_not_hide_what_packages_have():
    import megengine.amp.autocast
    import megengine.distributed.launcher

    assert isinstance(megengine.amp.autocast, type) and callable(megengine.distributed.launcher)
    assert sys.modules["megengine.amp.autocast"].autocast is megengine.amp.autocast
    with pytest.raises(ImportError, match="make a Dataset"):
        from megengine.data.dataset.vision import Published  # noqa: F401  # pyright: ignore
