"""Networks that other tools have quantized, as integer networks."""

from megengine.core.errors import QuantizationError
from megengine.dispatch.refusal import kinds_named
from megengine.quantization.checks import integer_form
from megengine.quantization.pipeline.fold import fold
from megengine.quantization.pipeline.integerize import integerize
from megengine.quantization.pipeline.order import put_in_order
from megengine.quantization.pipeline.settle import settle
from megengine.traced_module import InternalGraph, TracedModule
from megengine.traced_module.ir.end_names import keep_result_names, result_names
from megengine.traced_module.tracing.entry import on_processor


@kinds_named
def integer_network(model: TracedModule | InternalGraph) -> TracedModule:
    """The integer network of one that holds quantize / dequantize pairs around its layers.

    That is what importing a quantized ONNX file gives, in either format of ONNX Runtime's quantizer. Each layer between
    pairs becomes an integer op; one without an integer form, and one whose weight less its zero point needs more than
    8 bits, stays in float between its pairs. Sums of layers in float have one order in the result
    (docs/integer-arithmetic.md); of a network of integer ops, nothing else is changed.

    Raises:
        QuantizationError: it holds no quantized value that is computed (of 8 bits, or int16, with one scale), or a
            multiplier, bias or accumulator is out of range; the node is named.

    Example:
        >>> fast = plan.compile(integer_network(onnx.load("quantized.onnx")))  # doctest: +SKIP
    """
    graph = on_processor(model)
    form = integer_form(graph)
    if form == "integer":
        put_in_order(graph)
        return TracedModule.from_graph(graph)
    if form == "weights":
        raise QuantizationError(
            f"integer_network: network {graph.name!r} has integers in its weights alone: values between its layers are "
            "real, or rounded to what integer ops do not take (several scales, a range of the values at hand). "
            "It runs as it is; for integers, quantize the float network that it was made from with quantize_model"
        )
    if form != "qdq":
        raise QuantizationError(
            f"integer_network: network {graph.name!r} has no quantize / dequantize pairs around its layers; "
            "quantize it with quantize_model"
        )
    folded = fold(graph)  # first: what stands in it for other runtimes only is no place to settle at
    made = integerize(fold(settle(folded)))
    keep_result_names(made, result_names(graph))
    return TracedModule.from_graph(made)
