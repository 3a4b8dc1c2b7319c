"""Record which dtype the real MegEngine gives to results: `python dtypes.py OUT.json`, with megengine 1.13.0 installed."""

import json
import sys

import numpy as np

DTYPES = ("float32", "float16", "int32", "int16", "int8", "uint8", "bool")
OPERATORS = ("a + b", "a - b", "a * b", "a / b", "a // b", "a % b", "a ** b", "F.maximum(a, b)", "F.concat([a, b])")
SCALARS = ("2", "2.5", "np.float32(2)", "np.int8(2)", "np.int32(2)")


def cases():
    """Expression, dtype of a, dtype of b or the number in its place."""
    for expression in OPERATORS:
        for left in DTYPES:
            for right in DTYPES:
                yield expression, left, right
            if "concat" not in expression:
                for number in SCALARS:
                    yield expression, left, number
                    yield expression, number, left


def dtype_of(engine, functional, case):
    """Name of the result's dtype."""
    expression, *operands = case
    values = [
        engine.tensor(np.ones(3, bool) if o == "bool" else np.ones(3, o)) if o in DTYPES else eval(o) for o in operands
    ]
    result = eval(expression, {"F": functional, "a": values[0], "b": values[1]})
    return np.dtype(result.dtype).name


if __name__ == "__main__":
    import megengine
    import megengine.functional

    megengine.config.async_level = 0
    found = {}
    for case in cases():
        try:
            found[" | ".join(case)] = dtype_of(megengine, megengine.functional, case)
        except Exception:  # what is refused there may be allowed here
            continue
    with open(sys.argv[1], "w") as file:
        json.dump(found, file, indent=0)
