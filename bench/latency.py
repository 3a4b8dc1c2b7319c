"""Latency of ResNet-50 and MobileNetV2, float32 and int8, beside OpenVINO: one core, batch 1, CPU time.

Runs are interleaved in one process, so that drift of the machine affects all alike. It prints medians and the ratio to
the peer. The int8 peer is the faster of NNCF's post-training quantization and our exported model in OpenVINO. Random
weights: this measures speed only. Needs `pip install openvino nncf`; a line names a package that is missing.
Run: python bench/latency.py [--rounds 40] [--isa vnni]
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from turns import cpu_milliseconds, pin_to_one_core

SHAPE = (1, 3, 224, 224)


def pictures(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(count)]


def ours(name: str, folder: Path) -> dict[str, Callable[[], object]]:
    """Our float and int8 plans; writes the float and QDQ ONNX files the peers read."""
    from megengine import models, plan, random
    from megengine.convert import onnx as mge_onnx
    from megengine.quantization import quantize_model
    from megengine.tensor import Tensor
    from megengine.traced_module import trace_module

    random.seed(0)
    x = pictures(1)[0]
    traced = trace_module(getattr(models, name)().eval(), Tensor(x))
    quantized = quantize_model(traced, [(p,) for p in pictures(8)])
    mge_onnx.export(traced, folder / "float.onnx")
    mge_onnx.export_qdq(quantized, folder / "qdq.onnx")
    float_plan, int8_plan = plan.compile(traced), plan.compile(quantized.traced(), tune=True)
    return {"ours float32": lambda: float_plan(x), "ours int8": lambda: int8_plan(x)}


def openvino_runs(folder: Path) -> dict[str, Callable[[], object]]:
    """OpenVINO float32, NNCF's int8 and our QDQ file."""
    try:
        import openvino as ov
    except ImportError:
        print("OpenVINO is not installed (pip install openvino nncf): no peer")
        return {}
    core = ov.Core()
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    options.update({"PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False})
    networks = {"openvino float32": core.read_model(folder / "float.onnx")}
    networks["openvino int8, our export"] = core.read_model(folder / "qdq.onnx")
    try:
        import nncf

        data = nncf.Dataset(pictures(8))
        networks["openvino int8, NNCF"] = nncf.quantize(core.read_model(folder / "float.onnx"), data, subset_size=8)
    except ImportError:
        print("NNCF is not installed (pip install nncf): the int8 peer is our export alone")
    runs = {}
    for label, network in networks.items():
        request = core.compile_model(network, "CPU", options).create_infer_request()
        request.set_input_tensor(ov.Tensor(pictures(1)[0]))
        runs[label] = request.infer
    return runs


def report(name: str, found: dict[str, float]) -> None:
    print(f"\n{name}")
    for label, ms in found.items():
        print(f"  {label:28} {ms:8.3f} ms")
    for kind in ("float32", "int8"):
        peers = [ms for label, ms in found.items() if label.startswith("openvino " + kind)]
        if peers:
            print(f"  {kind}: ours / best peer = {found['ours ' + kind] / min(peers):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--isa", help="cap: sse41, avx2, avx512, vnni or amx")
    arguments = parser.parse_args()
    pin_to_one_core()
    if arguments.isa:
        os.environ["MEGENGINE_MAX_ISA"] = arguments.isa
    from megengine.kernels import isa

    print(f"instruction set: {isa.active()}; one core; medians of {arguments.rounds} interleaved runs, CPU time")
    for name in ("resnet50", "mobilenet_v2"):
        with tempfile.TemporaryDirectory() as folder:
            runs = {**ours(name, Path(folder)), **openvino_runs(Path(folder))}
            times = cpu_milliseconds(runs, arguments.rounds, unmeasured=6)
            report(name, {label: statistics.median(ms) for label, ms in times.items()})


if __name__ == "__main__":
    main()
