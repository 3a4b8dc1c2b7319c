"""ONNX Runtime's own static quantization, what our int8 is measured against."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np


def static_int8(source: Path, target: Path, data: Iterable[dict[str, np.ndarray]], *, per_channel: bool = True) -> None:
    """Quantize a float file: QDQ, uint8 activations, int8 weights, MinMax."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    batches = iter(data)

    class Reader(CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(batches, None)

    ready = target.with_name("ready.onnx")
    quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
    quantize_static(
        str(ready),
        str(target),
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=per_channel,
    )
