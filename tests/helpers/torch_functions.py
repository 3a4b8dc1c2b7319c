"""Functions of torch as modules, which `from_torch` takes."""

import pytest

torch = pytest.importorskip("torch")


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)
