"""CPU time and peak memory of calibrating ResNet-50 on pictures and converting it, beside ONNX Runtime and NNCF.

Each tool runs in a process of its own on the same exported network and the same random pictures, with one thread and
its default settings; reading the network is counted, imports are not. NNCF is left out where it is not installed:
--python names an interpreter that has nncf, openvino and onnxruntime. Run: python bench/calibration.py [--pictures 64]
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

SHAPE = (1, 3, 224, 224)


def pictures(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=SHAPE).astype(np.float32) for _ in range(count)]


def ours(path: Path, data: list[np.ndarray]) -> Callable[[], object]:
    from megengine.convert import onnx
    from megengine.quantization import quantize_model

    return lambda: quantize_model(onnx.load(path), [(x,) for x in data])


def onnx_runtime(path: Path, data: list[np.ndarray]) -> Callable[[], object]:
    import onnx
    from peers import static_int8

    importlib.import_module("onnxruntime.quantization")  # imports are not measured
    name = onnx.load(path, load_external_data=False).graph.input[0].name
    inputs = [{name: x} for x in data]
    return lambda: static_int8(path, path.with_name("int8.onnx"), inputs, preprocessed=False)


def nncf(path: Path, data: list[np.ndarray]) -> Callable[[], object]:
    import nncf as tool
    import openvino

    core = openvino.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": 1})
    return lambda: tool.quantize(core.read_model(path), tool.Dataset(data), subset_size=len(data))


TOOLS = {"megengine": ours, "onnxruntime": onnx_runtime, "nncf": nncf}


def measure(tool: str, path: Path, count: int) -> None:
    run = TOOLS[tool](path, pictures(count))
    begin = time.process_time()
    run()
    taken = time.process_time() - begin
    status = Path("/proc/self/status").read_text(encoding="ascii")  # getrusage counts what this process was forked from
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    print(json.dumps({"tool": tool, "seconds": taken, "megabytes": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of ONNX Runtime and NNCF")
    parser.add_argument("--tool", choices=TOOLS, help="measure one of them in this process")
    parser.add_argument("--model", type=Path)
    chosen = parser.parse_args()
    if chosen.tool:
        measure(chosen.tool, chosen.model, chosen.pictures)
        return
    from megengine import models
    from megengine.convert import onnx
    from megengine.tensor import Tensor
    from megengine.traced_module import trace_module

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resnet50.onnx"
        net = models.resnet50()
        net.eval()
        onnx.export(trace_module(net, Tensor(np.zeros(SHAPE, np.float32))), path)
        rows: dict[str, list[tuple[float, float]]] = {}
        for _ in range(chosen.turns):
            for tool in TOOLS:
                python = sys.executable if tool == "megengine" else chosen.python
                command = [python, __file__, "--tool", tool, "--model", str(path), "--pictures", str(chosen.pictures)]
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
                )
                if done.returncode == 0:
                    row = json.loads(done.stdout.splitlines()[-1])
                    rows.setdefault(tool, []).append((row["seconds"], row["megabytes"]))
    for tool, found in rows.items():
        seconds, megabytes = np.median(found, axis=0)
        print(f"{tool:12} {seconds:6.1f} s CPU {megabytes:6.0f} MB")


if __name__ == "__main__":
    main()
