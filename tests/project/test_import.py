"""Importing the package stays light: what only some users need is imported where it is used."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import megengine

HEAVY = ("onnx", "onnxruntime", "PIL", "rich", "jinja2", "click", "cupy", "safetensors", "torch", "importlib.metadata")


@pytest.mark.parametrize("module", ["megengine", "megengine.functional", "megengine.module", "megengine.optimizer"])
def test_heavy_modules_are_not_imported(module):
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert module in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_slow_parts_of_the_library_are_not_imported():
    """But for what NumPy imports itself, which differs between its versions."""
    show = "; import json, sys; print(json.dumps(sorted(sys.modules)))"
    ours, numpys = (
        set(
            json.loads(
                subprocess.run([sys.executable, "-c", c + show], capture_output=True, text=True, check=True).stdout
            )
        )
        for c in ("import megengine", "import numpy")
    )
    slow = {"numpy.random", "importlib.resources", "pathlib", "zipfile", "tempfile"}
    assert (ours - numpys) & slow == set()


def test_kernels_of_gpus_come_when_a_gpu_is_used():
    """Not with tensors, gradients, random numbers, optimizers and plans of the processor."""
    code = (
        "import sys, megengine as mge, megengine.functional as F\n"
        "from megengine.kernels import registry\n"
        "net = mge.module.Linear(2, 3)\n"
        "opt, gm = mge.optimizer.LAMB(net.parameters(), lr=0.1), mge.autodiff.GradManager().attach(net.parameters())\n"
        "for _ in range(3):\n"
        "    with gm:\n"
        "        gm.backward(F.mean(F.exp(net(mge.random.normal(size=(4, 2))))))\n"
        "    opt.step()\n"
        "traced = mge.traced_module.trace_module(net, mge.functional.ones((1, 2)))\n"
        "mge.plan.compile(traced).describe()\n"
        "loaded = {name.rpartition('.')[2] for name in sys.modules if name.startswith('megengine.kernels.cuda.')}\n"
        "light = {'array', 'fallback', 'lists', 'placing', 'runtime', 'settings', 'sources', 'turning'}\n"
        "assert loaded <= light, loaded\n"
        "assert {k.name.startswith('cuda') for k in registry.family('add').kernels} == {True, False}\n"
        "assert 'megengine.kernels.cuda.elementwise' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_traced_and_quantized_parts_come_when_they_are_named():
    code = (
        "import sys, megengine as mge\n"
        "assert 'megengine.quantization' not in sys.modules\n"
        "assert mge.quantization.QuantConfig and 'megengine.quantization' in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_pooling_floats_does_not_import_quantization():
    code = (
        "import sys, megengine as mge, megengine.functional as F\n"
        "F.max_pool2d(mge.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2).reshape(-1)\n"
        "assert 'megengine.quantization' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_source_that_was_not_built_says_so(tmp_path):
    """Python in the repository finds the sources before an installed package."""
    sources = Path(megengine.__file__).parent
    shutil.copytree(sources, tmp_path / "megengine", ignore=shutil.ignore_patterns("*.so", "csrc", "__pycache__"))
    packages = Path(np.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(packages)])}
    command = [sys.executable, "-S", "-c", "import megengine"]  # without site, no editable install is found
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {tmp_path}/megengine/__init__.py is source")
    assert "use an installed megengine, or build this one: make setup" in done.stderr


def test_every_part_is_reached_by_its_name():
    names = "*late.parts('megengine'), *(f'functional.{n}' for n in late.parts('megengine.functional'))"
    code = (
        "import operator, megengine\n"
        "from megengine.core import late\n"
        f"names = [{names}]\n"
        "assert {'traced_module', 'hub', 'functional.quantized', 'functional.helpers'} <= {*names}\n"
        "for name in names:\n"
        "    operator.attrgetter(name)(megengine)\n"
        "assert {n for n in names if '.' not in n} <= {*dir(megengine)}\n"
        "assert not hasattr(megengine, '_early_') and not hasattr(megengine.functional, 'quantised')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
