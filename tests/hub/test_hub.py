"""hub: entries of a folder; nothing runs without trust."""

import sys

import pytest

from megengine import hub
from megengine.core.errors import ArgumentError, OptionError
from megengine.hub.exceptions import InvalidRepo

CODE = '''
from pathlib import Path
from parts import half
Path(__file__).with_name("ran").touch()

def double(x, *, extra=0):
    """Twice x."""
    return 2 * x + extra

def _private():
    return 1
'''


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "hubconf.py").write_text(CODE)
    (tmp_path / "parts.py").write_text("def half(x):\n    return x / 2\n")
    yield tmp_path
    sys.modules.pop("parts", None)


def test_entries(folder):
    before = [*sys.path]
    assert hub.list(folder, trust=True) == ["Path", "_private", "double", "half"]  # MegEngine too lists all of them
    assert hub.help(folder, "double", trust=True) == "Twice x."
    assert hub.load(folder, "double", 3, trust=True, extra=1) == 7
    assert hub.load(folder, "half", 3, trust=True) == 1.5  # imported from another file, as most entries are
    assert hub.help(folder, "half", trust=True) is None
    assert sys.path == before


@pytest.mark.parametrize(
    "call", [lambda f: hub.load(f, "double", 1), lambda f: hub.list(f), lambda f: hub.help(f, "double")]
)
def test_nothing_runs_without_trust(folder, call):
    with pytest.raises(OptionError, match="code that would run with your rights; pass trust=True"):
        call(folder)
    with pytest.raises(OptionError, match="trust=True"):
        hub.load(folder, "double", 1, trust="yes")
    assert not (folder / "ran").exists()


def test_wrong_names(folder):
    with pytest.raises(OptionError, match=r"no entry 'duoble'; it has \[.*'double'.*\]; did you mean 'double'"):
        hub.load(folder, "duoble", trust=True)
    with pytest.raises(ArgumentError, match="entry is 3; expected the name"):
        hub.load(folder, 3, trust=True)
    with pytest.raises(InvalidRepo, match="expected a local folder, or 'owner/name"):
        hub.load(folder / "none", "net", trust=True)
    (folder / "hubconf.py").unlink()
    with pytest.raises(OptionError, match=r"folder .* has no hubconf.py"):
        hub.load(folder, "net", trust=True)


def test_missing_packages(folder):
    with (folder / "hubconf.py").open("a") as file:
        file.write("dependencies = ['numpy', 'no_such_package']\n")
    with pytest.raises(OptionError, match=r"not installed: \['no_such_package'\]"):
        hub.load(folder, "double", 3, trust=True)
    assert hub.help(folder, "double", trust=True) == "Twice x."


def test_the_path_is_restored_when_the_code_fails(folder):
    (folder / "hubconf.py").write_text("raise ValueError('broken')")
    before = [*sys.path]
    with pytest.raises(ValueError, match="broken"):
        hub.list(folder, trust=True)
    assert sys.path == before
