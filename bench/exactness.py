"""Exactness of whole networks: specification, eager run and plans at every instruction set level.

The specification (NumPy) runs on the first pictures once; every level runs in a process of its own, eagerly and as
plans with 1 and 2 threads, on all pictures. One value that differs is a failure.
Run: python bench/exactness.py [--network NAME] [--pictures 135] [--specified 50]
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from megengine import models, plan
from megengine.cli.networks import NETWORKS, Calibration, Network
from megengine.cli.photos import photo_set
from megengine.kernels import isa
from megengine.quantization import QuantConfig, quantize_model
from megengine.quantization.checks.verify import eager, specification
from megengine.tensor import Tensor
from megengine.traced_module import TracedModule, lower, trace_module
from megengine.traced_module.formats import native as files

RANDOM_RESNET = Network("ResNet-50, random weights", "resnet50", replace(NETWORKS["mobilenet_v2"].recipe))
ALL = {**NETWORKS, "resnet50": RANDOM_RESNET}
THREADS = (1, 2)


def traced(name: str) -> TracedModule:
    if name in NETWORKS:
        return NETWORKS[name].traced()
    module = models.resnet50()
    rng = np.random.default_rng(0)
    for parameter in module.parameters():
        if len(parameter.shape) > 1:  # He's scale; the rest keeps its start
            scale = np.sqrt(2 / np.prod(parameter.shape[1:]))
            parameter[...] = Tensor((rng.standard_normal(parameter.shape) * scale).astype(np.float32))
    module.eval()
    return lower(trace_module(module, Tensor(np.zeros(RANDOM_RESNET.shape, np.float32))))


def quiet(line: str) -> None:
    """Every process opens the photographs: their line is printed once, by `main`."""


def digest(value: np.ndarray) -> str:
    return hashlib.sha256(f"{value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes()).hexdigest()


def digests(values: dict[str, np.ndarray]) -> dict[str, str]:
    return {name: digest(value) for name, value in values.items()}


def pictures(name: str, count: int) -> Iterator[np.ndarray]:
    for view in photo_set(say=quiet).evaluation[:count]:
        yield view.array(ALL[name].recipe)


def prepare(name: str, folder: Path, specified: int) -> None:
    """Quantize, store the integer network and the digests of what the specification says of the first pictures."""
    data = Calibration(photo_set(say=quiet), ALL[name].recipe)
    files.save(
        TracedModule.from_graph(quantize_model(traced(name), data, QuantConfig()).integer_graph), folder / "q.mgt"
    )
    graph = files.load(folder / "q.mgt").graph
    wanted = [digests(specification(graph, (x,))) for x in pictures(name, specified)]
    (folder / "wanted.json").write_text(json.dumps(wanted))


def run_level(name: str, folder: Path, count: int) -> dict:
    """Numbers of tensors that differ (eager run from specification, plans from eager run), digest of all outputs."""
    graph = files.load(folder / "q.mgt").graph
    wanted = json.loads((folder / "wanted.json").read_text())
    plans = {f"plan, {n} thread(s)": plan.compile(graph, threads=n) for n in THREADS}
    outputs = [node.name for node in graph.outputs]
    wrong = dict.fromkeys(("eager", *plans), 0)
    whole = hashlib.sha256()
    for index, x in enumerate(pictures(name, count)):
        values = digests(eager(graph, (x,)))
        if index < len(wanted):
            wrong["eager"] += sum(values[node] != text for node, text in wanted[index].items() if node in values)
        for run, compiled in plans.items():
            got = [digest(value) for value in compiled(x)]
            wrong[run] += sum(values[node] != text for node, text in zip(outputs, got, strict=True))
        whole.update("".join(values[node] for node in outputs).encode())
    return {"level": isa.active(), "values that differ": wrong, "outputs": whole.hexdigest()[:16]}


def child(name: str, folder: Path, count: int, level: str) -> dict:
    command = [sys.executable, __file__, "--network", name, "--level", level, "--folder", str(folder)]
    environment = {**os.environ, "MEGENGINE_MAX_ISA": level}
    done = subprocess.run([*command, "--pictures", str(count)], env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def check(name: str, count: int, specified: int) -> bool:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        prepare(name, Path(folder), specified)
        found = [child(name, Path(folder), count, level) for level in isa.available()[1:]]
    same = len({one["outputs"] for one in found}) == 1
    exact = same and not any(value for one in found for value in one["values that differ"].values())
    verdict = "exact" if exact else "NOT exact"
    print(f"{ALL[name].title}: specification on {specified} pictures, runs on {count}: {verdict}")
    for one in found:
        runs = ", ".join(f"{run}: {value}" for run, value in one["values that differ"].items())
        print(f"  {one['level']:8} tensors that differ: {runs}; outputs {one['outputs']}")
    print(f"  {time.monotonic() - start:.0f} s", flush=True)
    return exact


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", action="append", choices=list(ALL))
    parser.add_argument("--pictures", type=int, default=135)
    parser.add_argument("--specified", type=int, default=50)
    parser.add_argument("--level", choices=isa.LEVELS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.level:
        print(json.dumps(run_level(chosen.network[0], chosen.folder, chosen.pictures)))
        return
    photo_set()
    results = [check(name, chosen.pictures, chosen.specified) for name in chosen.network or ALL]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
