"""One network of `bench/zoo.py` in a process of its own: the runners are built one after the other, then run in turns.

What happens is printed as JSON lines: {"begin": runner} before a runner is built, so that the parent knows which one a
crash belongs to, then notes and times.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from peers import static_int8
from turns import in_turns
from zoo_networks import NETWORKS, MissingError, Network, needed

Call = Callable[[], object]
CALIBRATION = 4  # batches


@dataclass
class Job:
    """A network for a batch: its file, and inputs."""

    network: Network
    batch: int
    threads: int
    folder: Path

    @cached_property
    def file(self) -> Path:
        path = self.folder / "float.onnx"
        self.network.write(path, self.batch)
        return path

    @cached_property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shapes and dtypes of the inputs, with the batch and the sizes of the network in open places."""
        import onnx

        model = onnx.load(self.file, load_external_data=False)
        return {item.name: self._shape(item) for item in model.graph.input}

    def _shape(self, item: Any) -> tuple[tuple[int, ...], np.dtype]:
        import onnx

        kind = item.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in kind.shape.dim]
        given, first = self.network.sizes.get(item.name, ()), dims[:1]
        if item.name == "state":
            shape = (given[0], self.batch, *given[1:])
        elif given:
            shape = (self.batch, *given)
        else:
            shape = tuple(self.batch if d is None else d for d in dims)
        if first and first[0] not in (None, self.batch) and item.name != "state":
            raise MissingError(f"its file is for a batch of {first[0]}")
        return shape, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))

    def data(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random inputs: normal floats, integers from 0 to 99, fixed values."""
        rng = np.random.default_rng(seed)
        made = {}
        for name, (shape, dtype) in self.shapes.items():
            values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 100, shape)
            made[name] = np.asarray(self.network.values.get(name, values), dtype)
        return made

    @cached_property
    def model(self) -> Any:
        from megengine.convert import onnx

        return onnx.load(self.file, input_shapes=self.fixed, input_values=self.network.values or None)

    @property
    def fixed(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs that our plans have."""
        return {name: shape for name, (shape, _) in self.shapes.items() if name not in self.network.values}

    def ours(self, seed: int = 0) -> tuple[np.ndarray, ...]:
        """Inputs for our plans, which have no fixed ones."""
        return tuple(value for name, value in self.data(seed).items() if name not in self.network.values)

    @cached_property
    def quantized(self) -> Any:
        from megengine.quantization import quantize_model

        return quantize_model(self.model, [self.ours(seed) for seed in range(CALIBRATION)])


def _plan(job: Job, model: Any, *, tune: bool = False) -> Call:
    from megengine import plan

    compiled, inputs = plan.compile(model, threads=job.threads, tune=tune), job.ours()
    return lambda: compiled(*inputs)


def ours_half(job: Job) -> Call:
    """A plan in bfloat16."""
    from megengine.kernels import isa
    from megengine.quantization import to_half

    if "bf16" not in (str(name) for name in isa.available()):
        raise MissingError("this CPU has no bfloat16 arithmetic")
    return _plan(job, to_half(job.model, "bf16"))


def _session(job: Job, file: Path) -> Call:
    runtime = needed("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = job.threads, 3
    session, data = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"]), job.data()
    return lambda: session.run(None, data)


def onnxruntime_int8(job: Job) -> Call:
    """ONNX Runtime's static quantization."""
    needed("onnxruntime")
    file = job.folder / "runtime_int8.onnx"
    static_int8(job.file, file, [job.data(seed) for seed in range(CALIBRATION)])
    return _session(job, file)


def _openvino(job: Job, network: Any, precision: str) -> Call:
    ov = needed("openvino")
    options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": job.threads, "NUM_STREAMS": 1}
    options |= {"PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False}
    data = job.data()
    network.reshape({name: list(value.shape) for name, value in data.items()})
    request = ov.Core().compile_model(network, "CPU", options).create_infer_request()
    for name, value in data.items():
        request.set_tensor(name, ov.Tensor(value))
    return request.infer


def openvino_float(job: Job, precision: str = "f32") -> Call:
    """OpenVINO on the float file."""
    return _openvino(job, needed("openvino").Core().read_model(job.file), precision)


def openvino_nncf(job: Job) -> Call:
    """NNCF's post-training quantization in OpenVINO."""
    nncf, core = needed("nncf"), needed("openvino").Core()
    network = core.read_model(job.file)
    network.reshape({name: list(value.shape) for name, value in job.data().items()})
    data = nncf.Dataset([job.data(seed) for seed in range(CALIBRATION)])
    return _openvino(job, nncf.quantize(network, data, subset_size=CALIBRATION), "f32")


def openvino_ours(job: Job) -> Call:
    """Our QDQ file in OpenVINO."""
    from megengine.convert import onnx

    core = needed("openvino").Core()
    onnx.export_qdq(job.quantized, job.folder / "qdq.onnx")
    network = core.read_model(job.folder / "qdq.onnx")
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": job.threads, "NUM_STREAMS": 1}
    request = core.compile_model(network, "CPU", options).create_infer_request()
    for index, value in enumerate(job.ours()):
        request.set_input_tensor(index, needed("openvino").Tensor(value))
    return request.infer


def torch_runs(job: Job, *, half: bool, compiled: bool) -> Call:
    """torch, eager or compiled."""
    if job.network.module is None:
        raise MissingError("there is no torch module of it")
    torch = needed("torch")
    torch.set_num_threads(job.threads)
    net = job.network.module()
    (x,) = (torch.from_numpy(value) for value in job.data().values())
    if half:
        net, x = net.to(torch.bfloat16), x.to(torch.bfloat16) if x.is_floating_point() else x
    if x.ndim == 4:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    call = torch.compile(net) if compiled else net

    def run() -> object:
        with torch.inference_mode():
            return call(x)

    return run


RUNNERS: dict[str, dict[str, Callable[[Job], Call]]] = {
    "float32": {
        "ours": lambda job: _plan(job, job.model),
        "OpenVINO": openvino_float,
        "ONNX Runtime": lambda job: _session(job, job.file),
        "torch": lambda job: torch_runs(job, half=False, compiled=False),
        "torch compiled": lambda job: torch_runs(job, half=False, compiled=True),
    },
    "bfloat16": {
        "ours": ours_half,
        "OpenVINO": lambda job: openvino_float(job, "bf16"),
        "torch": lambda job: torch_runs(job, half=True, compiled=False),
        "torch compiled": lambda job: torch_runs(job, half=True, compiled=True),
    },
    "int8": {
        "ours": lambda job: _plan(job, job.quantized.traced(), tune=True),
        "OpenVINO, NNCF": openvino_nncf,
        "OpenVINO, our file": openvino_ours,
        "ONNX Runtime": onnxruntime_int8,
    },
}


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def run(name: str, precisions: list[str], batch: int, threads: int, rounds: int, skip: list[str]) -> None:
    """Build and measure all runners of a network."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(NETWORKS[name], batch, threads, Path(folder))
        calls: dict[str, Call] = {}
        for precision in precisions:
            for runner, build in RUNNERS[precision].items():
                label = f"{precision}: {runner}"
                if label in skip:
                    continue
                say(begin=label)
                try:
                    call = build(job)
                    call()
                except MissingError as missing:
                    say(runner=label, note=str(missing))
                except Exception as error:  # a peer that refuses a network is a result, too
                    say(runner=label, note=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
                else:
                    calls[label] = call
        say(begin="the measurement")
        for label, times in in_turns(calls, rounds, rest=0.1 if threads > 1 else 0.0).items():
            wall, cpu = zip(*times, strict=True)
            found = {"ms": statistics.median(wall), "cpu_ms": statistics.median(cpu)}
            say(runner=label, **{key: round(value, 4) for key, value in found.items()}, rounds=len(times))
