"""Data by the names of inputs: which key of a mapping each input of a network takes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from megengine.core.errors import CalibrationError, listed
from megengine.traced_module.ir.names import without_count


def keys_of_inputs(keys: Sequence[str], inputs: Sequence[str]) -> list[str | None]:
    """The key of each input, None for one that has none; no two inputs have the same.

    Keys are compared as nodes of a graph are named: `input.1` is that of input_1. A count behind the name of a Python
    builtin (input_1 for `input`) may be missing.
    """
    nodes = {re.sub(r"\W+", "_", key).strip("_"): key for key in keys}
    found = [nodes.get(name) for name in inputs]
    for place, name in enumerate(inputs):
        if found[place] is None and (key := nodes.get(without_count(name))) not in found:
            found[place] = key
    return found


def values_in_order(item: Mapping[str, Any], inputs: Sequence[str], where: str) -> list[Any]:
    """The values of a mapping in the order of the inputs; more than these are left alone.

    Raises CalibrationError if an input has no value.
    """
    keys = keys_of_inputs([str(key) for key in item], inputs)
    lacking = [name for name, key in zip(inputs, keys, strict=True) if key is None]
    if lacking:
        raise CalibrationError(
            f"{where} has no value for {listed(lacking)}; expected the names {listed(inputs)}, "
            f"got {listed(map(str, item))}"
        )
    return [item[key] for key in keys if key is not None]
