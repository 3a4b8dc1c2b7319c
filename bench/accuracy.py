"""Accuracy of int8 on 1,080 views of 135 labelled photographs, beside ONNX Runtime's quantizer and NNCF's.

All start from the same float network and calibrate on the same 100 other photographs. Printed per network: top-1 and
top-5, agreement with the float network, logit SQNR, and the share of multiply-adds that stays in float. A `--row` is a
network of ours with an effort, weights and a precision; each is verified on two views, and its CPU time is printed.
NNCF needs `nncf` and `openvino`; with accuracy control it judges by agreement on the pictures that calibrate, and takes
at most five groups of quantizers back to float, since it may rank all of them anew after each (`peers.py`). After 15
minutes it is cut short, which is noted.
Nothing in it is random.
Run: python bench/accuracy.py [--network NAME] [--views plain] [--row balanced,per_tensor,w8a8] [--peer NNCF]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from peers import Run, float_share, nncf_controlled, nncf_int8, openvino_run, session, static_int8

from megengine import plan
from megengine.cli.evaluation import logits_of, score
from megengine.cli.networks import NETWORKS, Calibration, Network
from megengine.cli.photos import PhotoSet, View, photo_set
from megengine.convert import onnx as mge_onnx
from megengine.quantization import QuantConfig, quantize_model, verify
from megengine.traced_module import InternalGraph, TracedModule, lower

Built = tuple[Run, float, str]  # and the share of multiply-adds in float, and what is to know of it


def onnx_runtime(file: Path, name: str, data: list[np.ndarray]) -> Built:
    """ONNX Runtime's static quantization, per channel; every layer in integers."""
    target = file.with_name("int8.onnx")
    static_int8(file, target, ({name: x} for x in data))
    return session(target), 0.0, ""


def nncf(file: Path, data: list[np.ndarray], *, accuracy_aware: bool) -> Built:
    """NNCF's default, or with accuracy control, in OpenVINO."""
    network, cut = nncf_controlled(file, data) if accuracy_aware else (nncf_int8(file, data), False)
    return openvino_run(network), float_share(network), "cut short" if cut else ""


PEERS: dict[str, Callable[[Path, str, list[np.ndarray]], Built]] = {
    "ONNX Runtime": onnx_runtime,
    "NNCF": lambda file, _, data: nncf(file, data, accuracy_aware=False),
    "NNCF accuracy-aware": lambda file, _, data: nncf(file, data, accuracy_aware=True),
}


def ours(graph: InternalGraph) -> Run:
    """One of our graphs as a plan."""
    compiled = plan.compile(graph, threads=1)
    return lambda x: np.array(compiled(x)[0])


def quantized(network: Network, traced: TracedModule, calibration: Calibration, row: str, check: list[View]) -> Built:
    """A row of ours, EFFORT,WEIGHTS,PRECISION, verified on some views."""
    effort, weights, precision = row.split(",")
    begin = time.process_time()
    model = quantize_model(traced, calibration, QuantConfig.of(effort, weights=weights, precision=precision))
    taken = time.process_time() - begin
    exact = verify(model, [v.array(network.recipe) for v in check], with_float=False).exact
    print(f"{network.title}: {row}: {taken:.0f} s of CPU time, {'exact' if exact else 'NOT EXACT'}", flush=True)
    return ours(model.integer_graph), sum(one.share for one in model.report.floating), ""


def measure(network: Network, photos: PhotoSet, peers: list[str], rows: list[str]) -> dict[str, dict[str, Any]]:
    """Scores by the name of the run, with the share of multiply-adds that it leaves in float."""
    traced, views = network.traced(), photos.evaluation
    calibration = Calibration(photos, network.recipe)
    with tempfile.TemporaryDirectory() as folder:
        runs: dict[str, Built] = {"float": (ours(lower(traced).graph), 1.0, "")}
        file, name = Path(folder) / "float.onnx", traced.graph.inputs[0].name
        mge_onnx.export(traced, file)
        data = [x for (x,) in calibration] if peers else []
        for peer in peers:
            try:
                runs[peer] = PEERS[peer](file, name, data)
            except ImportError as missing:
                print(f"{peer} is left out: {missing}")
        for row in rows:
            runs[row] = quantized(network, traced, calibration, row, list(views[:2]))
        logits = {name: [] for name in runs}
        for view in views:
            x = view.array(network.recipe)
            for name, (run, *_) in runs.items():
                logits[name].append(logits_of(run, [x]))
    joined = {name: np.concatenate(rows) for name, rows in logits.items()}
    labels = [view.photo.ids for view in views]
    return {
        name: {**score(rows, joined["float"], labels).describe(), "float_share": runs[name][1], "note": runs[name][2]}
        for name, rows in joined.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", action="append", choices=list(NETWORKS))
    parser.add_argument("--views", choices=("all", "plain"), default="all")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one view of N, drawn evenly")
    parser.add_argument("--peer", action="append", choices=list(PEERS))
    parser.add_argument("--row", action="append", metavar="EFFORT,WEIGHTS,PRECISION")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    photos = photo_set(views=chosen.views)
    drawn = np.sort(np.random.default_rng(0).permutation(len(photos.evaluation))[:: chosen.every])
    photos = replace(photos, evaluation=tuple(photos.evaluation[i] for i in drawn))
    results = {}
    for name in chosen.network or NETWORKS:
        rows = chosen.row or ["fast,per_channel,w8a8"]
        results[name] = measure(NETWORKS[name], photos, chosen.peer or ["ONNX Runtime"], rows)
        print(f"\n{NETWORKS[name].title}: {len(photos.evaluation)} views")
        print(f"{'':26} {'top-1':>7} {'top-5':>7} {'agrees':>7} {'SQNR dB':>8} {'cosine':>8} {'float':>7}")
        for run, one in results[name].items():
            shares = " ".join(f"{100 * one[key]:7.1f}" for key in ("top1", "top5", "agreement"))
            ratio = np.inf if one["sqnr"] is None else one["sqnr"]
            line = f"{run:26} {shares} {ratio:8.1f} {one['cosine']:8.4f} {one['float_share']:7.1%}"
            print(f"{line}  {one['note']}".rstrip(), flush=True)
    if chosen.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
