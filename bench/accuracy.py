"""Accuracy of int8 on 1,080 views of 135 labelled photographs, ONNX Runtime's static quantization in the same run.

Both start from the same float network and calibrate on the same 100 other photographs. Printed per network: top-1 and
top-5, agreement with the float network, logit SQNR, and the CPU time of quantize_model. A `--row` is a network of ours
with an effort, weights and a precision; each is verified on two views. Nothing in it is random.
Run: python bench/accuracy.py [--network NAME] [--views plain] [--row balanced,per_tensor,w8a8]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from megengine import plan
from megengine.cli.evaluation import Score, logits_of, score
from megengine.cli.networks import NETWORKS, Calibration, Network
from megengine.cli.photos import PhotoSet, photo_set
from megengine.convert import onnx as mge_onnx
from megengine.quantization import QuantConfig, quantize_model, verify
from megengine.traced_module import InternalGraph, TracedModule, lower


class OnnxCalibration:
    """The reader that onnxruntime's calibrator pulls from."""

    def __init__(self, name: str, data: Iterator[tuple[np.ndarray, ...]]) -> None:
        self.name, self.data = name, data

    def get_next(self) -> dict[str, np.ndarray] | None:
        item = next(self.data, None)
        return None if item is None else {self.name: item[0]}


def peer(traced: TracedModule, calibration: Calibration, folder: Path):
    """ONNX Runtime's quantize_static: QDQ, uint8 activations, int8 weights per channel, MinMax."""
    import onnxruntime as runtime
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    source, ready, quantized = (folder / name for name in ("float.onnx", "ready.onnx", "int8.onnx"))
    mge_onnx.export(traced, source)
    quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
    quantize_static(
        str(ready),
        str(quantized),
        OnnxCalibration(traced.graph.inputs[0].name, iter(calibration)),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    made = runtime.InferenceSession(str(quantized), options, providers=["CPUExecutionProvider"])
    name = made.get_inputs()[0].name
    return lambda x: made.run(None, {name: x})[0]


def ours(graph: InternalGraph):
    compiled = plan.compile(graph, threads=1)
    return lambda x: compiled(x)[0]


def measure(network: Network, photos: PhotoSet, rows: list[str]) -> dict[str, Score]:
    """Scores by the name of the run; a row is EFFORT,WEIGHTS,PRECISION."""
    traced = network.traced()
    calibration = Calibration(photos, network.recipe)
    with tempfile.TemporaryDirectory() as folder:
        runs = {"float": ours(lower(traced).graph), "ONNX Runtime int8": peer(traced, calibration, Path(folder))}
        for row in rows:
            effort, weights, precision = row.split(",")
            begin = time.process_time()
            model = quantize_model(traced, calibration, QuantConfig.of(effort, weights=weights, precision=precision))
            taken = time.process_time() - begin
            exact = verify(model, [v.array(network.recipe) for v in photos.evaluation[:2]], with_float=False).exact
            print(f"{network.title}: {row}: {taken:.0f} s of CPU time, {'exact' if exact else 'NOT EXACT'}", flush=True)
            runs[row] = ours(model.integer_graph)
        logits = {name: [] for name in runs}
        for view in photos.evaluation:
            x = view.array(network.recipe)
            for name, run in runs.items():
                logits[name].append(logits_of(run, [x]))
    joined = {name: np.concatenate(rows) for name, rows in logits.items()}
    labels = [view.photo.ids for view in photos.evaluation]
    return {name: score(rows, joined["float"], labels) for name, rows in joined.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", action="append", choices=list(NETWORKS))
    parser.add_argument("--views", choices=("all", "plain"), default="all")
    parser.add_argument("--row", action="append", metavar="EFFORT,WEIGHTS,PRECISION")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    photos = photo_set(views=chosen.views)
    results = {}
    for name in chosen.network or NETWORKS:
        results[name] = measure(NETWORKS[name], photos, chosen.row or ["fast,per_channel,w8a8"])
        print(f"\n{NETWORKS[name].title}: {len(photos.evaluation)} views")
        print(f"{'':26} {'top-1':>7} {'top-5':>7} {'agrees':>7} {'SQNR dB':>8} {'cosine':>8}")
        for run, one in results[name].items():
            top = f"{100 * one.top1:7.1f} {100 * one.top5:7.1f} {100 * one.agreement:7.1f}"
            print(f"{run:26} {top} {one.sqnr:8.1f} {one.cosine:8.4f}", flush=True)
    if chosen.json:
        print(json.dumps({n: {run: s.describe() for run, s in r.items()} for n, r in results.items()}, indent=2))


if __name__ == "__main__":
    main()
