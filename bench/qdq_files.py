"""Our QDQ files in other runtimes, beside the files of their own quantizers, and those files in our plans.

ONNX Runtime runs our file of the default profile and that of `quantize_static` (per channel); OpenVINO runs our file
of profile `openvino` and the network that NNCF's `quantize` makes. Our plans run our network and ONNX Runtime's file.
Each network runs in a process of its own, on one core, in turns; figures are medians of CPU time. The SQNR of the first
result against the float network, on inputs that did not calibrate, tells whether a runtime computes what the file says.
Needs `pip install torch torchvision openvino nncf onnxruntime`. Run: python bench/qdq_files.py [--networks bert unet]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from turns import cpu_milliseconds, pin_to_one_core
from zoo_networks import NETWORKS

NEW = 7  # seed of the inputs that are compared
RATIOS = (("ORT ours", "ORT own"), ("OV ours", "OV own"), ("plan of ORT's", "plan"), ("plan of ORT's", "ORT own"))
Line = dict[str, Any]


def in_onnxruntime(job: Any, file: Path, *, precise: bool = False) -> Any:
    """The first result of a file; sums that are precise do not saturate at 16 bits on CPUs without VNNI."""
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.add_session_config_entry("session.x64quantprecision", str(int(precise)))
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    data = {item.name: job.data(NEW)[item.name] for item in session.get_inputs()}
    return lambda: session.run(None, data)[0]


def in_openvino(job: Any, network: Any) -> Any:
    """The first result of a network."""
    import openvino

    data = {item.any_name: job.data(NEW)[item.any_name] for item in network.inputs}
    network.reshape({name: list(value.shape) for name, value in data.items()})
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    compiled = openvino.Core().compile_model(network, "CPU", options | {"PERFORMANCE_HINT": "LATENCY"})
    request = compiled.create_infer_request()
    for name, value in data.items():
        request.set_tensor(name, openvino.Tensor(value))
    return lambda: next(iter(request.infer().values()))


def in_plan(job: Any, network: Any) -> Any:
    """The first result of a plan."""
    from megengine import plan

    compiled, inputs = plan.compile(network), job.ours(NEW)
    return lambda: compiled(*inputs)[0]


def calls_of(job: Any) -> dict[str, Any]:
    """What takes turns, by label; a function that makes it."""
    import openvino
    from peers import static_int8
    from zoo_runs import CALIBRATION

    from megengine.convert import onnx
    from megengine.quantization import QuantConfig, integer_network, quantize_model

    core, folder = openvino.Core(), job.folder
    data = [job.data(seed) for seed in range(CALIBRATION)]

    def exported(profile: str) -> Path:
        target = folder / f"{profile}.onnx"
        batches = [job.ours(seed) for seed in range(CALIBRATION)]
        made = job.quantized if profile == "x86" else quantize_model(job.model, batches, QuantConfig(profile=profile))
        onnx.export_qdq(made, target)
        return target

    def static() -> Path:
        if not (target := folder / "static.onnx").exists():
            static_int8(job.file, target, data)
        return target

    def by_nncf() -> Any:
        import nncf

        network = core.read_model(job.file)
        network.reshape({name: list(value.shape) for name, value in data[0].items()})
        return nncf.quantize(network, nncf.Dataset(data), subset_size=CALIBRATION)

    return {
        "float": lambda: in_onnxruntime(job, job.file),
        "ORT own": lambda: in_onnxruntime(job, static()),
        "ORT ours": lambda: in_onnxruntime(job, exported("x86")),
        "OV own": lambda: in_openvino(job, by_nncf()),
        "OV ours": lambda: in_openvino(job, core.read_model(exported("openvino"))),
        "plan": lambda: in_plan(job, job.quantized.traced()),
        "plan of ORT's": lambda: in_plan(job, integer_network(onnx.load(static(), input_shapes=job.fixed))),
    }


def measure(name: str, rounds: int) -> None:
    """Print the line of a network: milliseconds and decibels by label, and why a label has none."""
    from zoo_runs import Job

    with tempfile.TemporaryDirectory() as folder:
        job = Job(NETWORKS[name], 1, 1, Path(folder))
        calls: dict[str, Any] = {}
        notes: dict[str, str] = {}
        files = {"ORT own": job.folder / "static.onnx", "ORT ours": job.folder / "x86.onnx"}
        for label, make in calls_of(job).items():
            try:
                calls[label] = make()
                calls[label]()
            except Exception as error:  # a peer that refuses a network is a result, too
                calls.pop(label, None)
                notes[label] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        exact = np.asarray(calls["float"](), np.float64)
        precise = {label: in_onnxruntime(job, file, precise=True) for label, file in files.items() if label in calls}
        noise = {label: sqnr(exact, np.asarray(call())) for label, call in {**calls, **precise}.items()}
        times = {label: float(np.median(found)) for label, found in cpu_milliseconds(calls, rounds).items()}
        print(json.dumps({"network": name, "ms": times, "db": noise, "notes": notes}), flush=True)


def sqnr(exact: np.ndarray, got: np.ndarray) -> float:
    """Decibels between values and their error."""
    error = float(np.square(got.astype(np.float64) - exact).sum())
    return round(10 * float(np.log10(max(float(np.square(exact).sum()), 1e-300) / max(error, 1e-300))), 1)


def markdown(lines: list[Line]) -> str:
    """A row for each network: ratios, then decibels."""
    labels = [label for label in ("ORT ours", "ORT own", "OV ours", "OV own", "plan", "plan of ORT's")]
    heads = ["network", *(f"{a} / {b}" for a, b in RATIOS), *(f"{label}, dB" for label in labels)]
    rows = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for line in lines:
        ms, db = line["ms"], line["db"]
        cells = [f"{ms[a] / ms[b]:.2f}" if a in ms and b in ms else "-" for a, b in RATIOS]
        cells += [f"{db[label]:.1f}" if label in db else "-" for label in labels]
        rows.append(f"| {line['network']} | " + " | ".join(cells) + " |")
    notes = [f"{line['network']}, {label}: {note}" for line in lines for label, note in line["notes"].items()]
    return "\n".join([*rows, "", *notes])


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--repeat", type=int, default=15, help="rounds in turns")
    parser.add_argument("--output", type=Path, default=Path("qdq_files.jsonl"), help="JSON lines, added to")
    parser.add_argument("--child", choices=list(NETWORKS), help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.child:
        pin_to_one_core()
        measure(arguments.child, arguments.repeat)
        return
    for name in arguments.networks:
        command = [sys.executable, __file__, "--child", name, "--repeat", str(arguments.repeat)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        found = [text for text in done.stdout.splitlines() if text.startswith("{")]
        if not found:
            print(f"{name}: its process ended with code {done.returncode}", file=sys.stderr)
        with arguments.output.open("a", encoding="utf-8") as file:
            file.writelines(f"{text}\n" for text in found)
        print(markdown([json.loads(text) for text in found]), flush=True)


if __name__ == "__main__":
    main()
