"""Cases derived from those of the other files: of each function the first one again, with no row, one row, other dtypes.

The first one in the order of the files below, whatever was imported before.

Where that makes no sense (a shape that the call names, an integer convolution) MegEngine's error is what is recorded.
"""

import importlib

import numpy as np
from cases import CASES, case

FILES = (
    "cases",
    "layer_cases",
    "nn_cases",
    "option_cases",
    "tensor_cases",
    "training_cases",
    "vision_cases",
    "corner_cases",
)


def _rows(count):
    def change(inputs):
        rows = len(inputs[0])
        return [inputs[0][:count]] + [x[:count] if np.ndim(x) and len(x) == rows > 1 else x for x in inputs[1:]]

    return change


def _as(dtype):
    return lambda inputs: [x.astype(dtype) if x.dtype == np.float32 else x for x in inputs]


def _no_columns(inputs):
    columns = inputs[0].shape[-1]
    return [x[..., :0] if np.ndim(x) and x.shape[-1] == columns else x for x in inputs]


VARIANTS = {
    "no rows": _rows(0),
    "one row": _rows(1),
    "no columns": _no_columns,
    **{"all " + dtype: _as(dtype) for dtype in ("float16", "int32", "int8", "bool")},
}


def derive():
    """Enter the variants of the first case of each function that has arrays with axes."""
    for file in FILES:
        importlib.import_module(file)
    seen = set()
    for name, entry in sorted(CASES.items(), key=lambda item: FILES.index(item[1].call.__globals__["__name__"])):
        function = name.partition("/")[0]
        if function in seen or name.startswith("module ") or not entry.inputs or not np.ndim(entry.inputs[0]):
            continue
        seen.add(function)
        for variant, change in VARIANTS.items():
            inputs = [np.asarray(x) for x in change(entry.inputs)]
            if any(a.dtype != b.dtype or a.shape != b.shape for a, b in zip(inputs, entry.inputs)):
                case("%s, %s" % (name, variant), entry.call, *inputs, grad=entry.grad and variant == "one row")


derive()
