"""The network whose graph tests of edits change, and all of it that an edit can change."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from block_nets import BlockNet
from megengine_graphs import listing

from megengine.tensor import tensor
from megengine.traced_module import TracedModule, trace_module
from megengine.traced_module.formats import module_writing
from megengine.traced_module.formats import native as files


class Net(BlockNet):
    """A stem, two blocks and a classifier."""


X = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)


def module() -> TracedModule:
    """The network, traced."""
    return trace_module(Net().eval(), tensor(X))


def state(m: TracedModule) -> tuple:
    """All that an edit can change."""
    attributes = [(n, id(v)) for n, v in m.named_modules()] + [(n, id(t)) for n, t in m.named_tensors()]
    graph = m.graph
    text, arrays = module_writing.describe(m, {})
    return listing(m), attributes, graph.out_def, graph.arguments, text, {k: v.tobytes() for k, v in arrays.items()}


def content(m: TracedModule) -> bytes:
    """The bytes of the module's file."""
    with tempfile.TemporaryDirectory() as folder:
        files.save(m, Path(folder) / "net.mgt")
        return (Path(folder) / "net.mgt").read_bytes()


def first(m: TracedModule, name: str) -> Any:
    """The node of a name in the outermost graph."""
    return m.graph.node(name)
