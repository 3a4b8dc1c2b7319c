"""No step of a plan of the test zoo is Python or NumPy."""

import numpy as np
import pytest
from zoo import ZOO

import megengine.functional as F
from megengine import plan
from megengine.module import Module
from megengine.tensor import tensor
from megengine.traced_module import trace_module


def not_native(made):
    return sorted({info.op for info in made.steps if info.kernel == "reference" or info.kernel.startswith("python:")})


@pytest.mark.parametrize("name", [name for name in ZOO if name != "autoencoder"])  # takes an argument by name
def test_every_step_of_the_zoo_is_native(name):
    net, arguments = ZOO[name]()
    made = plan.compile(trace_module(net, *arguments))
    assert not_native(made) == []


class Wave(Module):
    def forward(self, x):
        return F.sinh(x)


def test_what_is_not_native_is_seen():
    assert not_native(plan.compile(trace_module(Wave(), tensor(np.zeros(3, np.float32))))) == ["sinh"]
