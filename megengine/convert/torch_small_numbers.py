"""Programs of torch's exporter, optimised without the loss of small numbers.

The rules of its optimiser (onnxscript) take a number for 0 that is at most 1e-8: `x / (total + 1e-15)` becomes
`x / total`, which is not a number where the total is 0. They look for Add and Sub; ONNX's Sum adds as well.
"""

from __future__ import annotations

from typing import Any

_TAKEN_FOR_ZERO = 1e-8


def optimized(program: Any) -> Any:
    """The program, which the exporter did not optimise, after its optimiser."""
    from onnxscript import ir

    node: Any
    for node in list(ir.traversal.RecursiveGraphIterator(program.model.graph)):
        if node.op_type in ("Add", "Sub") and any(_is_small(ir, value) for value in node.inputs):
            if node.op_type == "Sub":
                less = ir.node("Neg", [node.inputs[1]])
                node.graph.insert_before(node, less)
                node.replace_input_with(1, less.outputs[0])
            node.op_type = "Sum"
    program.optimize()
    return program


def _is_small(ir: Any, value: Any) -> bool:
    """True for a float constant without axes that the rules take for 0."""
    constant = ir.convenience.get_const_tensor(value)
    if constant is None or constant.shape.rank() != 0 or not constant.dtype.is_floating_point():
        return False
    return 0 < abs(float(constant.numpy())) <= _TAKEN_FOR_ZERO


__all__ = ["optimized"]
