"""Write the type stubs of the package while it is built: python write_stubs.py SOURCES CORE ENGINE OUT.

The stubs come from running the package, which is not installed yet: it is put together in a folder of its own.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LINKED = ("kernels", "traced_module", "quantization", "cli")  # folders at the root that belong into the package


def main(sources: Path, core: Path, engine: Path, out: Path) -> int:
    with tempfile.TemporaryDirectory() as name:
        package = Path(name) / "megengine"
        left_out = shutil.ignore_patterns("csrc", "__pycache__", "*.pyi", *LINKED)
        shutil.copytree(sources / "megengine", package, ignore=left_out)
        for folder in LINKED:
            shutil.copytree(sources / folder, package / folder, ignore=shutil.ignore_patterns("csrc", "__pycache__"))
        shutil.copy(core, package / "kernels")
        shutil.copy(engine, package / "core")
        command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve().with_name("stubs.py")), str(out)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([name, os.environ.get("PYTHONPATH", "")])}
        return subprocess.run(command, cwd=name, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
