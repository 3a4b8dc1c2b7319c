"""Many small arrays in one file: an `.npz` of one member each would be mostly headers."""

import json

import numpy as np


def save(path, arrays):
    """Write a dict of arrays and texts."""
    index, parts = {}, []
    for name, value in sorted(arrays.items()):
        value = np.asarray(value)
        if value.dtype.kind == "U":
            index[name] = str(value)
            continue
        value = np.ascontiguousarray(value).reshape(value.shape)
        index[name] = [value.dtype.str, list(value.shape)]
        parts.append(value.tobytes())
    text = json.dumps(index).encode()
    np.savez_compressed(path, index=np.frombuffer(text, np.uint8), data=np.frombuffer(b"".join(parts), np.uint8))


def load(path):
    """The dict that `save` wrote."""
    with np.load(path) as file:
        index, data = json.loads(file["index"].tobytes().decode()), file["data"].tobytes()
    found, start = {}, 0
    for name, entry in index.items():
        if isinstance(entry, str):
            found[name] = np.array(entry)
            continue
        dtype, shape = np.dtype(entry[0]), tuple(entry[1])
        size = int(np.prod(shape))
        found[name] = np.frombuffer(data, dtype, size, start).reshape(shape)
        start += size * dtype.itemsize
    return found
