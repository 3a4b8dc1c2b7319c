"""Parts of packages can be named after `import megengine` alone, as in MegEngine."""

import subprocess
import sys

import pytest

PACKAGES = (
    *("autodiff", "data", "distributed", "functional", "hub", "jit", "optimizer", "quantization", "random"),
    *("serialization", "traced_module", "utils"),
)
PROGRAM = """
import megengine
from megengine.core import late
for package in sys.argv[1:]:
    for part in sorted(late.parts(f"megengine.{package}")):
        found = eval(f"megengine.{package}.{part}")
        if type(found).__name__ != "module":
            assert callable(found) or isinstance(found, type), (package, part)
            continue
        assert found.__name__ == f"megengine.{package}.{part}", found
megengine.traced_module.expr.CallFunction, megengine.utils.profiler.Profiler, megengine.traced_module.node.TensorNode
"""


def test_parts_are_imported_when_they_are_named():
    command = [sys.executable, "-W", "ignore", "-c", "import sys" + PROGRAM, *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["utils", "traced_module", "hub", "serialization", "quantization"])
def test_a_name_that_is_no_part_is_an_error_with_the_nearest_one(package):
    import megengine

    with pytest.raises(AttributeError, match=f"module 'megengine.{package}' has no attribute 'nothing_such'"):
        getattr(megengine, package).nothing_such
