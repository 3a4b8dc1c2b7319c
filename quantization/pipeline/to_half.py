"""A float32 network in bfloat16 or float16."""

from typing import Any

import numpy as np

from megengine.core.dtype import as_dtype
from megengine.core.errors import OptionError, QuantizationError, nearest
from megengine.dispatch.refusal import kinds_named
from megengine.kernels.half_conversion import HALVES
from megengine.quantization.checks import require_float, require_float_modules
from megengine.traced_module import TracedModule
from megengine.traced_module.ir.end_names import keep_result_names, result_names
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes import run_passes
from megengine.traced_module.passes.activations import name_activations
from megengine.traced_module.passes.retyping import FLOAT32, retype
from megengine.traced_module.tracing.entry import on_processor

HALF_NAMES = {"bf16": "bfloat16", "fp16": "float16", "bfloat16": "bfloat16", "float16": "float16"}


@kinds_named
def to_half(model: TracedModule | InternalGraph, dtype: Any = "bfloat16", *, float_ends: bool = True) -> TracedModule:
    """A copy of a float32 network whose constants and values between ops are bfloat16 or float16.

    Every op computes the float32 result of its operands and rounds it once. What is computed from integers alone, such
    as positions, stays in float32, and so do ops that take no halves. With `float_ends`, so does what leads from inputs
    to indices, comparisons and integers without a layer between: coordinates to neighbours, keys to an order. Constants
    beyond the range of the type become its largest number, and single ones too small for it (an epsilon) its smallest.

    Args:
        model: a traced module, or an op-level graph.
        dtype: "bfloat16" (or "bf16") or "float16" ("fp16").
        float_ends: inputs and results stay float32, with casts behind and before them.

    Raises:
        OptionError: another dtype.
        QuantizationError: the network is quantized, or has no float32 value.
    """
    if isinstance(dtype, str) and dtype not in HALF_NAMES:
        raise OptionError(
            f"to_half: dtype is {dtype!r}; expected one of {sorted(HALF_NAMES)}{nearest(dtype, HALF_NAMES)}"
        )
    wanted = as_dtype(HALF_NAMES[dtype] if isinstance(dtype, str) else dtype)
    if not isinstance(wanted, np.dtype) or wanted not in HALVES:
        raise OptionError(f"to_half: dtype is {wanted}; expected bfloat16 or float16")
    if isinstance(model, TracedModule):
        require_float_modules(model)
    graph = on_processor(model)
    require_float(graph)
    names = result_names(graph)
    name_activations(graph)  # their constants are no longer known when they are rounded or folded
    run_passes(graph)
    if not any(n.dtype == FLOAT32 for n in graph.nodes() if isinstance(n, TensorNode)):
        raise QuantizationError(f"to_half: network {graph.name!r} has no float32 value; give a float32 network")
    retype(graph, FLOAT32, wanted, float_ends=float_ends)
    keep_result_names(graph, names)
    return TracedModule.from_graph(graph)
