"""Random reading and setting of elements, exported to ONNX and compared: every form that square brackets take.

`drawn` gives a case that JSON can hold, `checked` runs it: eager, captured, exported in ONNX Runtime, and read back.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnxruntime
from onnx_runtime import session_of

import megengine.module as M
from megengine import Tensor
from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import GraphError
from megengine.core.spec import TensorSpec
from megengine.traced_module import InternalGraph, TracedModule, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs

onnxruntime.set_default_logger_severity(4)


def drawn(rng: random.Random) -> dict[str, Any]:
    """A case: shape, dtype, key, and the shape of the value that is set (none where elements are read)."""
    shape = [rng.choice((0, 1, 2, 2, 3, 3, 4, 4, 5)) for _ in range(rng.choice((1, 2, 3, 4)))]
    case = {"shape": shape, "dtype": rng.choice(("float32", "float32", "int32")), "opset": rng.randint(13, 17)}
    case["form"] = rng.choice(("brackets", "brackets", "brackets", "op"))
    case["key"] = _pattern(rng, shape) if case["form"] == "op" else _key(rng, shape)
    case["computed"] = rng.random() < 0.3  # of the op: indices are inputs, no constants
    if rng.random() < 0.5:
        case["set"] = [rng.random(), rng.random(), rng.random()]
    return case


def _bound(rng: random.Random, n: int) -> int | None:
    near = rng.randint(-n - 2, n + 2)
    return rng.choice((None, 0, 1, -1, n, -n, n - 1, -n - 1, n + 3, -n - 4, 1 << 40, -(1 << 40), near, near, near))


def _slice(rng: random.Random, n: int) -> dict[str, Any]:
    step = rng.choice((None, 1, 1, 2, 3, -1, -1, -2, -3, n + 1, -n - 1, 1 << 40))
    return {"slice": [_bound(rng, n), _bound(rng, n), step]}


def _index(rng: random.Random, n: int, length: int) -> dict[str, Any]:
    shape = rng.choice(([], [length], [length], [1], [2, length], [2, 1], [0])) if n else [0]
    count = int(np.prod(shape))
    dtype = rng.choice(("int32", "int32", "int64", "int8", "uint8"))
    places = [rng.randrange(0 if dtype == "uint8" else -n, n) for _ in range(count)]
    if len(shape) == 1 and rng.random() < 0.5 and n >= count:
        places = rng.sample(range(n), count)  # each once, so that it can be set
    return {"index": places, "shape": shape, "dtype": dtype}


def _mask(rng: random.Random, shape: list[int]) -> dict[str, Any]:
    part = rng.choice((0.5, 0.5, 0, 1))
    return {"mask": [rng.random() < part for _ in range(int(np.prod(shape)))], "shape": shape}


def _key(rng: random.Random, shape: list[int]) -> list[Any]:
    items: list[Any] = []
    axis, used, length, fancy = 0, rng.randint(0, len(shape)), rng.choice((1, 2, 3)), rng.random() < 0.5
    dots = rng.randint(0, used) if rng.random() < 0.3 else used  # the axes behind the dots are the last ones
    while axis < used:
        if axis == dots:
            items.append("...")
            axis, dots, used = axis + len(shape) - used, -1, len(shape)
            continue
        kind, width = rng.random(), 1
        if kind < 0.12:
            items.append(None)
            continue
        if fancy and kind < 0.35:
            items.append(_index(rng, shape[axis], length))
        elif fancy and kind < 0.45:
            width = min(rng.choice((1, 1, 2)), (dots if axis < dots else used) - axis)
            items.append(_mask(rng, shape[axis : axis + width]))
        elif kind < 0.6 and shape[axis]:
            items.append(rng.randrange(-shape[axis], shape[axis]))
        else:
            items.append(_slice(rng, shape[axis]))
        axis += width
    return [*items, "..."] if dots == used and rng.random() < 0.2 else items


def _pattern(rng: random.Random, shape: list[int]) -> list[Any]:
    length = rng.choice((1, 2, 3))
    return [_slice(rng, n) if rng.random() < 0.6 else _index(rng, n, length) for n in shape]


def _item(item: Any) -> Any:
    if item == "...":
        return Ellipsis
    if not isinstance(item, dict):
        return item
    if "slice" in item:
        return slice(*item["slice"])
    if "mask" in item:
        return np.array(item["mask"], bool).reshape(item["shape"])
    return np.array(item["index"], item["dtype"]).reshape(item["shape"])


class _Get(M.Module):
    def __init__(self, key: Any) -> None:
        super().__init__()
        self.key = [key]

    def forward(self, x: Tensor) -> Tensor:
        return x[self.key[0]]


class _Set(M.Module):
    def __init__(self, key: Any, value: Tensor) -> None:
        super().__init__()
        self.key, self.value = [key], value

    def forward(self, x: Tensor) -> Tensor:
        y = x + 0
        y[self.key[0]] = self.value
        return y


def checked(case: dict[str, Any]) -> str:
    """What became of a case: "equal", or why it was not compared ("no such key", "refused: ...").

    Raises:
        AssertionError: numbers or shapes differ somewhere.
    """
    key = tuple(map(_item, case["key"]))
    x = np.arange(1, 1 + np.prod(case["shape"])).reshape(case["shape"]).astype(case["dtype"])
    try:
        taken = x[key]
        value = _value(case["set"], taken) if "set" in case else None
        if value is not None:
            x.copy()[key] = value
    except (IndexError, ValueError):  # shapes of indices do not broadcast
        return "no such key"
    try:
        model, arrays, wanted = (_op if case["form"] == "op" else _brackets)(case, key, x, value)
        made = to_model(model, opset=case["opset"]).SerializeToString()
    except GraphError as error:
        assert "assignment to one element twice" in str(error) or "only constant indices" in str(error), case
        return f"refused: {error}"
    session = session_of(made)
    (there,) = session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})
    _same(there, wanted, "ONNX Runtime", case)
    back = load(made)
    again = back(*map(Tensor, arrays))
    _same((again[0] if isinstance(again, (tuple, list)) else again).numpy(), wanted, "reading back", case)
    return "equal"


def _value(how: list[float], taken: np.ndarray) -> np.ndarray:
    """A value that broadcasts to what is set: some leading axes left out, others of length 1."""
    shape = taken.shape[int(how[0] * (taken.ndim + 1)) :]
    shape = tuple(1 if how[1] < 0.4 and i % 2 == int(how[2] * 2) else n for i, n in enumerate(shape))
    return -np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(taken.dtype)


def _same(got: np.ndarray, wanted: np.ndarray, where: str, case: dict[str, Any]) -> None:
    same = got.shape == wanted.shape and got.dtype == wanted.dtype and np.array_equal(got, wanted)
    assert same, f"{where}: {got.tolist()} of shape {got.shape}; expected {wanted.tolist()}, {wanted.shape}; {case}"


def _brackets(case: dict[str, Any], key: Any, x: np.ndarray, value: np.ndarray | None) -> tuple[Any, list, np.ndarray]:
    net = _Get(key) if value is None else _Set(key, Tensor(value))
    wanted = net(Tensor(x)).numpy()
    traced = trace_module(net, Tensor(x))
    _same(traced(Tensor(x)).numpy(), wanted, "captured", case)
    return traced, [x], wanted


def _op(case: dict[str, Any], key: Any, x: np.ndarray, value: np.ndarray | None) -> tuple[Any, list, np.ndarray]:
    """A graph of one op, index or set_index, whose slices stand as they were given."""
    graph = InternalGraph("net")
    arrays = [x]
    nodes = [add_input(graph, "x", TensorSpec(x.shape, x.dtype))]
    if value is not None:
        nodes.append(graph.constant(value))
    for index in (k for k in key if isinstance(k, np.ndarray)):
        if case["computed"]:
            arrays.append(index)
            nodes.append(add_input(graph, f"index_{len(nodes)}", TensorSpec(index.shape, index.dtype)))
        else:
            nodes.append(graph.constant(index))
    pattern = tuple((k.start, k.stop, k.step) if isinstance(k, slice) else "i" for k in key)
    op, attrs = "index" if value is None else "set_index", {"pattern": pattern}
    if op == "index" and "i" not in pattern:
        op, attrs = "slice", dict(zip(("starts", "stops", "steps"), zip(*pattern, strict=True), strict=True))
        attrs["steps"] = tuple(1 if step is None else step for step in attrs["steps"])
    set_outputs(graph, [graph.apply(op, *nodes, attrs=attrs, name="out")])
    whole = TracedModule.from_graph(graph)
    made = whole(*map(Tensor, arrays))
    return whole, arrays, (made[0] if isinstance(made, (tuple, list)) else made).numpy()
