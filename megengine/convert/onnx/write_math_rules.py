"""Write rules of arithmetic that is several operators, or whose form depends on the dtype or the opset."""

import numpy as np

from megengine.convert.onnx.writing import Writer, writer
from megengine.core.dtype import is_float, storage_of
from megengine.traced_module.ir.expr import Apply


@writer("mod")
def modulo(w: Writer, expr: Apply) -> None:
    """The remainder of floats has the sign of the dividend, that of integers the divisor's."""
    w.emit("Mod", expr, fmod=int(is_float(storage_of(expr.inputs[0].dtype))))


@writer("floor_div")
def floor_div(w: Writer, expr: Apply) -> None:
    """Floats are divided and rounded down; integers without their remainder divide without one."""
    a, b, name = w.value(expr.inputs[0]), w.value(expr.inputs[1]), expr.outputs[0].name
    if is_float(storage_of(expr.inputs[0].dtype)):
        w.emit("Floor", expr, [w.add("Div", [a, b], f"{name}_quotient")])
        return
    rest = w.add("Mod", [a, b], f"{name}_rest")
    w.emit("Div", expr, [w.add("Sub", [a, rest], f"{name}_multiple"), b])


@writer("not_equal")
def not_equal(w: Writer, expr: Apply) -> None:
    """Not equal."""
    same = w.add("Equal", [w.value(node) for node in expr.inputs], f"{expr.outputs[0].name}_same")
    w.emit("Not", expr, [same])


@writer("round")
def round_half_away(w: Writer, expr: Apply) -> None:
    """Sign(x) * the whole part of abs(x), plus 1 if the rest is 1/2 or more: a sum with 1/2 would be rounded itself."""
    import onnx

    x, name, dtype = w.value(expr.inputs[0]), expr.outputs[0].name, storage_of(expr.inputs[0].dtype)
    if not is_float(dtype):
        w.emit("Identity", expr, [x])
        return
    size = w.add("Abs", [x], f"{name}_size")
    whole = w.add("Floor", [size], f"{name}_whole")
    rest, half = w.add("Sub", [size, whole], f"{name}_rest"), w.constant(0.5, f"{name}_half", dtype)
    less = w.add("Less", [rest, half], f"{name}_less")
    number = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    more = w.add("Cast", [w.add("Not", [less], f"{name}_up")], f"{name}_step", to=number)
    w.emit("Mul", expr, [w.add("Sign", [x], f"{name}_sign"), w.add("Add", [whole, more], f"{name}_nearest")])


@writer("log1p")
def log1p(w: Writer, expr: Apply) -> None:
    """log(x + 1)."""
    name, dtype = expr.outputs[0].name, storage_of(expr.inputs[0].dtype)
    w.emit("Log", expr, [w.add("Add", [w.value(expr.inputs[0]), w.constant(1, f"{name}_one", dtype)], f"{name}_more")])


@writer("cumsum")
def cumsum(w: Writer, expr: Apply) -> None:
    """CumSum with the axis as an input."""
    axis = w.constant(expr.attrs["axis"], f"{expr.outputs[0].name}_axis", np.int64)
    w.emit("CumSum", expr, [w.value(expr.inputs[0]), axis], reverse=int(expr.attrs["reverse"]))
