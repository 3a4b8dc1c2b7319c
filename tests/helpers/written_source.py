"""Networks that are written as Python source and read back, for tests of what the source says and does."""

import importlib.util
import subprocess
import sys

import numpy as np
from megengine_graphs import leaves

import megengine.module as M
from megengine.tensor import Tensor
from megengine.traced_module.source import save_source, to_source
from megengine.traced_module.source.text import WIDTH


def x(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def imported(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(module, path, **options):
    """The network that a generated file gives."""
    save_source(module, path, **options)
    return imported(path).load()


def check(module, path, *args, **kwargs):
    """The generated network gives what the graph gives, exactly; its text is stable, formatted and of our imports."""
    net = written(module, path)
    got, want = leaves(net(*args, **kwargs)), leaves(module(*args, **kwargs))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        assert a.dtype == b.dtype
    text = path.read_text()
    assert text == to_source(module)
    assert max(map(len, text.splitlines())) <= WIDTH
    return net


def formatted(folder):
    """Ruff finds nothing to change."""
    for command in (["format", "--diff"], ["check", "--select", "E,F,I,UP,SIM,PERF,RUF,B", "--ignore", "RET"]):
        tool = [sys.executable, "-m", "ruff", command[0], "--isolated", "--line-length", str(WIDTH), *command[1:]]
        done = subprocess.run([*tool, "."], capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


class One(M.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


def changed(layer, **attributes):
    for name, value in attributes.items():
        setattr(layer, name, value)
    return layer
