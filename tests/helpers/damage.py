"""Damage to files that their loaders get to see: behind checksums, inside archives, in the values of JSON."""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from typing import Any

_EXTREMES = (
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\x00\x00\x00\x80",
    b"\x00" * 8,
    b"\xff" * 8,
    b"\x01" + b"\x00" * 7,
)
_VALUES = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    10**30,
    1.5,
    "",
    "x",
    "x" * 3000,
    "__class__",
    [],
    {},
    [[]],
    {"tuple": []},
)


def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, removed, inserted, repeated, moved, or replaced by extreme numbers; or the end cut off."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        if not data:
            break
        at, size = rng.randrange(len(data)), rng.choice((1, 2, 4, 8, 40))
        kind = rng.randrange(8)
        if kind <= 1:
            data[at] = rng.randrange(256)
        elif kind == 2:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del data[at : at + size]
        elif kind == 4:
            data[at:at] = rng.randbytes(size)
        elif kind == 5:
            other = rng.randrange(len(data))
            data[at : at + size] = data[other : other + size]
        elif kind == 6:
            extreme = rng.choice(_EXTREMES)
            data[at : at + len(extreme)] = extreme
        elif rng.random() < 0.2:
            del data[at:]
        else:
            data[at:at] = data[at : at + size] * rng.choice((1, 2, 50))
    return bytes(data)


def damaged_archive(content: bytes, rng: random.Random) -> bytes:
    """One entry of a zip archive damaged, with the right checksum; at times the archive itself."""
    if rng.random() < 0.15:
        return damaged_bytes(content, rng)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [(info, archive.read(info)) for info in archive.infolist()]
    chosen = rng.randrange(len(entries))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for i, (info, data) in enumerate(entries):
            if i == chosen:
                is_json = info.filename.endswith(".json") and rng.random() < 0.8
                data = damaged_json(data, rng) if is_json else damaged_bytes(data, rng)
            archive.writestr(zipfile.ZipInfo(info.filename), data, info.compress_type)
    return made.getvalue()


def damaged_json(content: bytes, rng: random.Random) -> bytes:
    """Values changed, taken away, repeated, or put where others stood; still JSON."""
    root = json.loads(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        places = list(_places(root))
        if not places:
            break  # all of it was taken away
        holder, key = rng.choice(places)
        kind = rng.randrange(5)
        if kind == 0:
            holder[key] = copy.deepcopy(rng.choice(_VALUES))
        elif kind == 1:
            del holder[key]
        elif kind == 2:
            other, at = rng.choice(places)
            holder[key] = copy.deepcopy(other[at])
        elif kind == 3 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(rng.choice(holder)))
        elif type(holder[key]) is int:
            holder[key] += rng.choice((-1, 1, 1000, -(10**6)))
        else:
            holder[key] = {rng.choice(("tuple", "tensor", "layer", "module", "node", "dtype")): holder[key]}
    return json.dumps(root).encode()


def _places(value: Any) -> Any:
    """Every place of a nested value: (container, key or index)."""
    todo = [value]
    while todo:
        holder = todo.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            yield holder, key
            if isinstance(holder[key], (dict, list)):
                todo.append(holder[key])
