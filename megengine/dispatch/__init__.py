"""Op records, `apply`, interposers, and the mark of public functions."""

from megengine.dispatch.apply import (
    Interposer,
    apply,
    infer,
    interpose,
    no_interposers,
    reference_runner,
    run_eager,
    runner,
)
from megengine.dispatch.public import PublicFunction, exported, exports, public, public_functions, retract
from megengine.dispatch.record import (
    ErrorSample,
    NoRule,
    OnnxRule,
    Op,
    Sample,
    define,
    get_op,
    no_onnx,
    not_differentiable,
    registry,
    undefine,
)

__all__ = [
    "ErrorSample",
    "Interposer",
    "NoRule",
    "OnnxRule",
    "Op",
    "PublicFunction",
    "Sample",
    "apply",
    "define",
    "exported",
    "exports",
    "get_op",
    "infer",
    "interpose",
    "no_interposers",
    "no_onnx",
    "not_differentiable",
    "public",
    "public_functions",
    "reference_runner",
    "registry",
    "retract",
    "run_eager",
    "runner",
    "undefine",
]
