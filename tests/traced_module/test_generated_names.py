"""Graphs of networks made at random are named and printed as MegEngine 1.13 names and prints them.

Digests of what it gave are stored; where MEGENGINE_PYTHON names a Python that has it, it is asked again, and lines that
differ are shown. To store them anew: `python tests/traced_module/test_generated_names.py` with that variable set.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HELPERS = Path(__file__).parent.parent / "helpers"
STORED = Path(__file__).parent.parent / "data" / "megengine" / "generated_names.json"
COUNT = 80

# both makers of graphs run this: the texts of a network's graph and of its flattened one, and all nodes
LISTING = """
def listing(module, kind):
    found = []
    for graph in (module.graph, module.flatten().graph):
        found += [line.rstrip() for line in str(graph).split("\\n")]
        nodes = [(n._name, n._qualname, *kind(n)) for n in graph.nodes()]
        found += sorted("\\t".join(map(str, node)) for node in nodes)
    return found
"""
THERE = (
    LISTING
    + """
import json, logging, sys
import numpy as np
import megengine as mge
import megengine.traced_module as tm
from megengine.traced_module.ir.node import TensorNode
from generated_nets import network

logging.disable(logging.CRITICAL)
kind = lambda n: (tuple(n._shape), np.dtype(n._dtype).name) if isinstance(n, TensorNode) else ()
found = {}
for seed in range(int(sys.argv[1])):
    net, given = network(seed)
    try:
        found[seed] = listing(tm.trace_module(net, *map(mge.tensor, given)), kind)
    except RuntimeError:  # its pooling fails on transposed values
        continue
print(json.dumps(found))
"""
)


def asked() -> dict[str, list[str]]:
    """The listings of MegEngine."""
    python = os.environ.get("MEGENGINE_PYTHON")
    if not python:
        pytest.skip("MEGENGINE_PYTHON names no Python with MegEngine 1.13")
    done = subprocess.run(
        [python, "-c", THERE, str(COUNT)],
        check=False,
        capture_output=True,
        text=True,
        cwd=HELPERS,  # where `import generated_nets` works and this package is not found
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:24]


def own(seed: int) -> list[str]:
    from generated_nets import network

    from megengine.core.dtype import storage_of
    from megengine.tensor import tensor
    from megengine.traced_module import trace_module

    def kind(node):
        return (node.spec.shape, storage_of(node.dtype).name) if hasattr(node, "spec") else ()

    names: dict = {}
    exec(LISTING, names)  # the text above
    net, given = network(seed)
    traced = trace_module(net, *map(tensor, given))
    if seed % 8 == 0:
        want = net(*map(tensor, given)).numpy()
        for form in (traced, traced.flatten()):
            np.testing.assert_array_equal(form(*map(tensor, given)).numpy(), want)
    return names["listing"](traced, kind)


@pytest.mark.parametrize("seed", sorted(map(int, json.loads(STORED.read_text()) if STORED.exists() else ())))
def test_names_and_text(seed):
    assert digest(own(seed)) == json.loads(STORED.read_text())[str(seed)]


def test_there_are_many():
    assert len(json.loads(STORED.read_text())) >= 75


def test_the_real_megengine_gives_the_same_lines():
    for seed, lines in asked().items():
        assert own(int(seed)) == lines


if __name__ == "__main__":
    sys.path.insert(0, str(HELPERS))
    STORED.write_text(json.dumps({seed: digest(lines) for seed, lines in asked().items()}, indent=0) + "\n")
