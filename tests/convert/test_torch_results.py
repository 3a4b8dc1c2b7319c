"""Results of torch modules nest as torch nests them, in the network, its quantized form and their files."""

from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

import megengine as mge
from megengine.convert import from_torch
from megengine.core.pytree import flatten, unflatten
from megengine.core.spec import TensorSpec
from megengine.quantization import quantize_model
from megengine.traced_module import InternalGraph, TracedModule
from megengine.traced_module.editing.expressions import add_input, set_outputs

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from megengine.convert.torch_results import nesting_of  # noqa: E402

Pair = namedtuple("Pair", "z y")


def made(results, count):
    """The nesting of results, of which texts are names of tensors, as a tree of the numbers of the tensors."""
    leaves, spec = torch.utils._pytree.tree_flatten(results)
    program = SimpleNamespace(
        graph_signature=SimpleNamespace(user_outputs=tuple(leaves)), call_spec=SimpleNamespace(out_spec=spec)
    )
    nesting = nesting_of(torch, program, count)
    return None if nesting is None else unflatten(nesting, range(count))


@pytest.mark.parametrize(
    ("results", "count", "expected"),
    [
        ("y", 1, None),
        (("y", "z"), 2, None),
        (("y",), 1, (0,)),
        (["y", "z"], 2, [0, 1]),
        ({"o": "y"}, 1, {"o": 0}),
        ({"z": "y", "a": "x", "none": None}, 2, {"z": 0, "a": 1}),
        (("y", ("h", ["c"])), 3, (0, (1, [2]))),
        (Pair("a", {"b": "c"}), 2, (0, {"b": 1})),
        (("y", (None, "z")), 2, None),
        ({"y": "z", "number": 2}, 1, None),
        ({"y": "a", "z": "b"}, 1, None),
    ],
)
def test_nesting(results, count, expected):
    assert made(results, count) == expected


def test_the_order_of_an_ordered_dict_outlives_files(tmp_path):
    graph = InternalGraph("net")
    x = add_input(graph, "x", TensorSpec((2,), np.dtype(np.float32)))
    y = add_input(graph, "y", TensorSpec((2,), np.dtype(np.float32)))
    set_outputs(graph, [x, y])
    graph.out_def = flatten(OrderedDict(z=x, a=[y]))[1]
    mge.save(TracedModule.from_graph(graph), tmp_path / "net.mgt")
    again = mge.load(tmp_path / "net.mgt")
    assert [n.name for n in again.graph.outputs] == ["x", "y"]
    found = again(np.zeros(2, np.float32), np.ones(2, np.float32))
    assert list(found) == ["z", "a"] and found["z"].numpy().max() == 0 and found["a"][0].numpy().min() == 1


def test_numbers_among_the_results_are_tensors():
    class Net(torch.nn.Module):
        def forward(self, x):
            return {"y": x * 2, "numbers": (x.shape[0], 0.5, True)}

    net = from_torch(Net(), np.ones((3, 2), np.float32))
    made = net(np.full((3, 2), 4, np.float32))
    assert list(made) == ["y", "numbers"] and made["y"].numpy().tolist() == [[8, 8]] * 3
    assert [(one.numpy().dtype.name, one.item()) for one in made["numbers"]] == [
        ("int64", 3), ("float32", 0.5), ("bool", True),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_network_with_a_dict(tmp_path):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)

        def forward(self, x):
            y = self.body(x)
            return {"out": self.head(y), "aux": [y, (y + 1,)]}

    x, module = np.random.default_rng(0).standard_normal((8, 2, 4)).astype(np.float32), Net()
    net = from_torch(module, x[0])
    wanted = module(torch.from_numpy(x[0]))
    model = quantize_model(net, x)
    mge.save(model.traced(), tmp_path / "net.mgt")
    for one, tolerance in ((net, 1e-5), (model, 0.1), (mge.load(tmp_path / "net.mgt"), 0.1)):
        found = one(x[0])
        np.testing.assert_allclose(found["out"].numpy(), wanted["out"].detach(), atol=tolerance)
        np.testing.assert_allclose(found["aux"][1][0].numpy(), wanted["aux"][1][0].detach(), atol=tolerance)
