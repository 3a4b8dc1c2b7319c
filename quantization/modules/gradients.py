"""Straight-through gradients around integer computations."""

from dataclasses import dataclass
from typing import Any

from megengine.autodiff import Function
from megengine.autodiff.tape import Context, Tape
from megengine.core.dtype import QuantizedDType
from megengine.dispatch import get_op
from megengine.dispatch.apply import active_interposers
from megengine.quantization.modules.arithmetic import Product, accumulate, constants, to_stored
from megengine.tensor import Tensor


def exact_product(product: Product, x: Tensor, w: Tensor, x_dtype: QuantizedDType, w_dtype: QuantizedDType) -> Tensor:
    """A layer without bias on values that lie on integer grids: exact integer sums times s_x * s_w, in float32.

    The gradient is that of the float op on x and w.
    """
    layer = _ExactProduct(product, x_dtype, w_dtype)
    recording = any(isinstance(i, Tape) for i in active_interposers())
    return layer(x, w) if recording else layer.forward(x, w)


@dataclass(eq=False)
class _ExactProduct(Function):
    product: Product
    x_dtype: QuantizedDType
    w_dtype: QuantizedDType

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        self.inputs = (x, w)
        source, weight = to_stored(x, self.x_dtype), to_stored(w, self.w_dtype)
        return accumulate(self.product, source, constants(self.product, weight, None, self.x_dtype))

    def backward(self, output_grads: Tensor) -> Any:
        context = Context(self.inputs, (), self.product.attrs, (True, True))
        vjp: Any = get_op(self.product.op).vjp
        return vjp(context, output_grads)
