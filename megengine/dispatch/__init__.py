"""Op records, `apply`, interposers, and the mark of public functions."""

from megengine.dispatch.apply import (
    Interposer,
    Listener,
    apply,
    infer,
    interpose,
    no_interposers,
    reference_runner,
    run_eager,
    runner,
)
from megengine.dispatch.public import PublicFunction, public, public_functions, retract
from megengine.dispatch.record import (
    FLOAT_ONLY,
    JOINS_INTEGERS,
    MOVES_INTEGERS,
    NO_RULE,
    ONNX_WRITER,
    ErrorSample,
    NoRule,
    OnnxRule,
    OnnxWriter,
    Op,
    QuantRule,
    Sample,
    ZeroGradient,
    define,
    get_op,
    no_onnx,
    not_differentiable,
    registry,
    stays_float,
    undefine,
    zero_gradient,
)
