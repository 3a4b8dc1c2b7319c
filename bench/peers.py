"""The quantizers that ours is measured against: ONNX Runtime's static quantization, and NNCF's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[np.ndarray], np.ndarray]
DROP = 0.01  # of agreement with the float network, that NNCF's accuracy control allows (its default)
RANKED = 10  # samples by which it ranks the layers: one run over them for each group of quantizers
TAKEN_BACK = 5  # groups that it takes back to float at most: all may be ranked anew after each
SECONDS = 900.0  # of wall time, after which accuracy control is cut short: it has no bound itself
SUMS = ("Convolution", "GroupConvolution", "MatMul")  # of OpenVINO


def static_int8(
    source: Path,
    target: Path,
    data: Iterable[dict[str, np.ndarray]],
    *,
    per_channel: bool = True,
    preprocessed: bool = True,
) -> None:
    """Quantize a float file with ONNX Runtime: QDQ, uint8 activations, int8 weights, MinMax."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    batches = iter(data)

    class Reader(CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(batches, None)

    if preprocessed:
        from onnxruntime.quantization.shape_inference import quant_pre_process

        ready = target.with_name("ready.onnx")
        quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
        source = ready
    quantize_static(
        str(source),
        str(target),
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=per_channel,
    )


def session(file: Path) -> Run:
    """The first result of a file of one input in ONNX Runtime."""
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.add_session_config_entry("session.x64quantprecision", "1")  # sums saturate at 16 bits without VNNI
    opened = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    name = opened.get_inputs()[0].name
    return lambda x: np.asarray(opened.run(None, {name: x})[0])


def openvino_run(network: Any) -> Run:
    """The first result of a network of one input in OpenVINO."""
    import openvino

    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    request = openvino.Core().compile_model(network, "CPU", options).create_infer_request()
    return lambda x: np.array(next(iter(request.infer([x]).values())))


def nncf_int8(source: Path, data: Sequence[np.ndarray]) -> Any:
    """Quantize a float file with NNCF."""
    import nncf

    network = _opened(source, data)
    return nncf.quantize(network, nncf.Dataset(data), subset_size=len(data))


def nncf_controlled(source: Path, data: Sequence[np.ndarray], *, seconds: float = SECONDS) -> tuple[Any, bool]:
    """Quantize a float file with NNCF's accuracy control, and whether it was cut short.

    Layers are taken back to float until the agreement with the float network on the same data is kept, `TAKEN_BACK` of
    them are in float, or the time is over. Then all candidates are told to agree without being run: NNCF ends, says
    that it succeeded, and gives the network that it had reached.
    """
    import nncf

    network, samples = _opened(source, data), nncf.Dataset(data)
    run = openvino_run(network)
    exact = {x.tobytes(): int(run(x).argmax()) for x in data}  # it judges by parts of the data, too
    end, cut = time.monotonic() + seconds, False

    def agreement(compiled: Any, inputs: Iterable[np.ndarray]) -> tuple[float, list[float]]:
        nonlocal cut
        cut = cut or time.monotonic() > end
        same = [1.0 if cut else float(compiled([x])[0].argmax() == exact[x.tobytes()]) for x in inputs]
        return float(np.mean(same)), same

    limits = nncf.AdvancedAccuracyRestorerParameters(max_num_iterations=TAKEN_BACK, ranking_subset_size=RANKED)
    made = nncf.quantize_with_accuracy_control(
        network,
        samples,
        samples,
        agreement,
        max_drop=DROP,
        subset_size=len(data),
        advanced_accuracy_restorer_parameters=limits,
    )
    return made, cut


def _opened(source: Path, data: Sequence[np.ndarray]) -> Any:
    """A float file for inputs of one shape."""
    import openvino

    network = openvino.Core().read_model(source)
    network.reshape(list(data[0].shape))
    return network


def float_share(network: Any) -> float:
    """The share of multiply-adds that an OpenVINO network with NNCF's quantizers leaves in float."""
    work = {True: 0, False: 0}
    for node in network.get_ordered_ops():
        if node.get_type_name() in SUMS:
            work[all(_quantized(node.input_value(at)) for at in (0, 1))] += _multiply_adds(node)
    return work[False] / max(sum(work.values()), 1)


def _multiply_adds(node: Any) -> int:
    """Of a convolution with a constant weight, or a product."""
    y, w = list(node.output(0).get_shape()), list(node.input_value(1).get_shape())
    if node.get_type_name() == "MatMul":
        return math.prod(y) * list(node.input_value(0).get_shape())[-2 if node.get_attributes()["transpose_a"] else -1]
    grouped = node.get_type_name() == "GroupConvolution"
    return math.prod(y) * math.prod(w[2 if grouped else 1 :])


def _quantized(value: Any) -> bool:
    """True if a tensor has passed a quantizer, or is read from integers."""
    node = value.get_node()
    kind = node.get_type_name()
    if kind == "FakeQuantize":
        return True
    if kind == "Constant":
        return "8" in node.get_element_type().get_type_name()
    passing = kind in ("Reshape", "Multiply", "Subtract", "Convert", "Transpose")
    return passing and _quantized(node.input_value(0))
