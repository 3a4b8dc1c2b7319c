"""What runs where torch is not installed: the other tests of `from_torch` are skipped there."""

import sys

import pytest

from megengine.cli.models import load_model
from megengine.convert import from_torch
from megengine.core.errors import MissingImportError, OptionError


@pytest.mark.parametrize("package", ["torch", "onnxscript"])
def test_what_is_missing_is_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingImportError, match="pip install torch onnx onnxscript"):
        from_torch(object())


def test_a_function_that_gives_no_module(tmp_path):
    (tmp_path / "net.py").write_text("def make():\n    return 'resnet'\n")
    with pytest.raises(OptionError, match="gave str; expected a Module of megengine or torch"):
        load_model(f"{tmp_path}/net.py:make")
