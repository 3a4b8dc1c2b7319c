"""Files that are whole and say impossible things: scales, weights, sizes, paths; and the use of what is loaded."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine import plan
from megengine.convert.onnx.exporter import to_model
from megengine.core.dtype import storage_of
from megengine.core.errors import GraphError, MegEngineError
from megengine.tensor import Tensor
from megengine.traced_module import TracedModule, lower
from megengine.traced_module.ir.node import TensorNode

SIZES = (-1, 0, 1, 7, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63))
NUMBERS = (0.0, -0.0, -1.0, 1e-45, 1e-39, 1e38, math.inf, -math.inf, math.nan)
_SCALES = (*NUMBERS, [], [0.1], [0.1, 0.2], [0.1] * 1000, [[0.1]], [0.1, 0.0], "0.1", None, True, {"float": "nan"})
_AXES = (None, 0, 1, -1, 4, -9, 1.0, "0", True, [0], 1 << 40)
_LOCATIONS = (
    ".",
    "..",
    "",
    "/",
    "./.",
    "a\0b",
    "\0",
    "n" * 5000,
    "no/such",
    "/dev/zero",
    "damaged.onnx",
    "a/../.",
)
_BIGGEST = 1 << 22  # elements of what is run


def hostile_archive(content: bytes, rng: random.Random) -> bytes:
    """A native file with one or two values that cannot be: in dtypes, arrays, sizes, paths of attributes."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    root = json.loads(entries["graph.json"])
    for _ in range(rng.choice((1, 1, 2))):
        kind = rng.randrange(4)
        if kind == 0:
            entries["weights.safetensors"] = _changed_floats(entries["weights.safetensors"], rng)
        else:
            (_change_dtype, _change_size, _change_path)[kind - 1](root, rng)
    entries["graph.json"] = json.dumps(root).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return made.getvalue()


def _changed_floats(stored: bytes, rng: random.Random) -> bytes:
    """A safetensors file with another number in one of its float arrays."""
    head = 8 + int.from_bytes(stored[:8], "little")
    listed = json.loads(stored[8:head])
    arrays = [e for e in listed.values() if e.get("dtype") == "F32" and e["data_offsets"][0] < e["data_offsets"][1]]
    if not arrays:
        return stored
    first, last = rng.choice(arrays)["data_offsets"]
    at = head + rng.randrange(first, last, 4)
    return stored[:at] + struct.pack("<f", rng.choice(NUMBERS)) + stored[at + 4 :]


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _dicts(inner)
    if isinstance(value, dict):
        yield value


def _change_dtype(root: Any, rng: random.Random) -> None:
    found = [d for d in _dicts(root) if "scale" in d and "zero_point" in d]
    if not found:
        return
    chosen = rng.choice(found)
    key, values = rng.choice((("scale", _SCALES), ("scale", _SCALES), ("axis", _AXES), ("zero_point", SIZES)))
    chosen[key] = rng.choice(values)
    if key == "scale" and isinstance(chosen["scale"], list) and rng.random() < 0.7:
        chosen["axis"] = rng.choice((0, 1, -1, 3, 9))
    same = [d for d in found if d != chosen and rng.random() < 0.5]
    for other in same if rng.random() < 0.5 else ():  # a file that agrees with itself
        other.update(chosen)


def _change_size(root: Any, rng: random.Random) -> None:
    lists = [v for d in _dicts(root) for v in d.values() if isinstance(v, list) and v and type(v[0]) is int]
    places = [(d, k) for d in _dicts(root) for k, v in d.items() if type(v) is int]
    holder, key = rng.choice(places) if places and (rng.random() < 0.5 or not lists) else (rng.choice(lists), 0)
    holder[key] = rng.choice(SIZES)


def _change_path(root: Any, rng: random.Random) -> None:
    reads = [d for d in _dicts(root) if "attribute" in d]
    if not reads:
        return
    paths = [d["attribute"] for d in reads]
    rng.choice(reads)["attribute"] = rng.choice((*paths, *(f"{p}.weight" for p in paths), "training", "name", "0"))


def hostile_onnx(content: bytes, rng: random.Random) -> bytes:
    """An ONNX model with one or two values that cannot be: sizes, scales, bounds, paths of stored data."""
    import onnx

    model = onnx.ModelProto.FromString(content)
    graph = model.graph
    for _ in range(rng.choice((1, 1, 2))):
        kind = rng.randrange(5)
        stored = rng.choice(graph.initializer) if graph.initializer else None
        if kind == 0 and stored is not None:
            _move_out(stored, rng)
        elif kind == 1 and stored is not None:
            _change_stored(stored, rng)
        elif kind == 2:
            for dim in graph.input[0].type.tensor_type.shape.dim:
                if rng.random() < 0.5:
                    dim.dim_value = rng.choice(SIZES)
        else:
            _change_attribute(rng.choice(graph.node), rng)
    return model.SerializeToString()


def _move_out(stored: Any, rng: random.Random) -> None:
    import onnx

    stored.ClearField("raw_data")
    stored.data_location = onnx.TensorProto.EXTERNAL
    stored.external_data.add(key="location", value=rng.choice(_LOCATIONS))
    if rng.random() < 0.3:
        key = rng.choice(("offset", "length"))
        stored.external_data.add(key=key, value=str(rng.choice((*SIZES, "", "1e3", "9" * 5000))))


def _change_stored(stored: Any, rng: random.Random) -> None:
    import onnx

    try:
        array = onnx.numpy_helper.to_array(stored).copy()
    except Exception:  # it was moved out
        return
    if array.dtype == np.int64 and rng.random() < 0.5:
        array = np.resize(array, rng.choice((1, 2, 33, 64, 65))) if array.size else array
    if array.size:
        values = NUMBERS if array.dtype.kind == "f" else SIZES if array.dtype == np.int64 else (0,)
        array.reshape(-1)[rng.randrange(array.size)] = rng.choice(values)
    stored.CopyFrom(onnx.numpy_helper.from_array(array, stored.name))


def _change_attribute(node: Any, rng: random.Random) -> None:
    import onnx

    names = (
        "strides",
        "pads",
        "dilations",
        "kernel_shape",
        "group",
        "axis",
        "axes",
        "perm",
        "epsilon",
        "output_padding",
    )
    name = rng.choice([*(a.name for a in node.attribute), *names])
    old = next((a for a in node.attribute if a.name == name), None)
    value: Any = rng.choice((*SIZES, *NUMBERS))
    if (old is not None and old.ints) or (old is None and name.endswith("s")):
        value = [rng.choice(SIZES) for _ in range(len(old.ints) if old is not None else rng.choice((1, 2, 4)))]
        if old is not None and rng.random() < 0.7:  # one of them is another
            value = [v if rng.random() < 0.3 else o for v, o in zip(value, old.ints, strict=True)]
    for attribute in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(attribute)
    node.attribute.append(onnx.helper.make_attribute(name, value))


def used(model: TracedModule, *, calls: bool = False) -> TracedModule:
    """Run what was loaded, eager and compiled, and write it: what cannot be run should have been refused before.

    Shapes of calls are known when they run: a module of calls may be refused then.
    """
    inputs = [n for n in model.graph.inputs if isinstance(n, TensorNode)]
    try:
        lowered = lower(model)
        if sum(n.spec.size for e in lowered.graph.exprs() for n in e.outputs) > _BIGGEST:
            return model
        tensors = [Tensor._wrap(np.ones(n.shape, storage_of(n.dtype)), n.dtype) for n in inputs]
        model(*tensors)
        plan.compile(lowered)(*tensors)
    except MegEngineError as error:
        if calls:
            raise
        raise AssertionError(f"it was loaded and cannot be run: {error}") from error
    with contextlib.suppress(GraphError):  # not every op has an ONNX form
        to_model(lowered)
    return model
