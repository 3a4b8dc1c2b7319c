"""Importing the package stays light: what only some users need is imported where it is used."""

import json
import subprocess
import sys

import pytest

HEAVY = ("onnx", "onnxruntime", "PIL", "rich", "jinja2", "click", "cupy", "safetensors", "torch", "importlib.metadata")


@pytest.mark.parametrize("module", ["megengine", "megengine.functional", "megengine.module", "megengine.optimizer"])
def test_heavy_modules_are_not_imported(module):
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert module in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_the_traced_and_quantized_parts_come_when_they_are_named():
    code = (
        "import sys, megengine as mge\n"
        "assert 'megengine.quantization' not in sys.modules\n"
        "assert mge.quantization.QuantConfig and 'megengine.quantization' in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
