"""A GPU beside torch: ResNet-50 inference, training steps and quantization, and the time of a small eager call.

Every subject has a process of its own, so that settings and errors of one do not reach another; times are medians of
rounds in which all subjects of a section take turns, by CUDA events (eager calls: by the clock of the host, with one
wait at the end). float32 is without TF32 on both sides. torch is measured with channels last and its choice of
convolutions by their times (cudnn.benchmark), eager, and compiled with CUDA graphs; ours is measured with the choice by
times ("tuned") too. A subject that cannot run here is listed with the reason. `--kernels` lists what the device does
for a call of each, by torch's profiler.
Run: python bench/gpu.py [SECTION ...] [--only WORDS] [--batch 32] [--rounds 20] [--kernels FILE] [--json FILE];
sections: eager, inference, training, quantize
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from gpu_subjects import sections
from gpu_workers import Subject, in_processes

ROWS = 45  # of kernels that are listed


def chosen(subjects: list[Subject], only: str) -> list[Subject]:
    """The subjects of which all words of one of the alternatives, divided by commas, are words of the label."""
    wanted = [words.split() for words in only.split(",")]
    return [one for one in subjects if any(set(words) <= set(one.label.split()) for words in wanted)]


def summary(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Medians in milliseconds, seconds of each run by part, and reasons for what is missing."""
    ms = {label: round(statistics.median(times), 4) for label, times in found["ms"].items()}
    runs = {
        label: [{part: round(took, 3) for part, took in run.items()} for run in parts]
        for label, parts in found["seconds"].items()
    }
    return {"ms": ms, **({"seconds": runs} if runs else {}), "missing": found["missing"]}


def lines_of(name: str, result: dict[str, Any]) -> list[str]:
    """A section as lines; ratios are to torch's fastest that computes in the same type."""
    best: dict[str, float] = {}
    for label, ms in result["ms"].items():
        library, kind = label.split()[:2]
        if library == "torch":
            best[kind] = min(ms, best.get(kind, ms))
    lines = []
    for label, ms in result["ms"].items():
        base = best.get(label.split()[1])
        lines.append(f"{name:10} {label:32} {ms:9.4f} ms" + (f"  {ms / base:6.2f} of torch's best" if base else ""))
    for label, runs in result.get("seconds", {}).items():
        for number, run in enumerate(runs, 1):
            parts = ", ".join(f"{part} {took:.3f}" for part, took in run.items())
            lines.append(f"{name:10} {label:32} run {number}, seconds: {parts}")
    return lines + [f"{name:10} {label:32} missing: {why}" for label, why in result["missing"].items()]


def table_of(label: str, rows: list[tuple[str, float, float]]) -> str:
    """What the device does for a call, the longest first."""
    total = sum(us for _, us, _ in rows)
    lines = [f"== {label}: {total / 1e3:.3f} ms of the device, {sum(number for *_, number in rows):.1f} launches"]
    lines += [
        f"  {us:9.1f} us {100 * us / total:5.1f}% x{number:6.1f}  {name[:150]}" for name, us, number in rows[:ROWS]
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print a table; write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", help="eager, inference, training, quantize; all without a name")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pictures", type=int, default=512, help="that quantize")
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile; max-autotune takes minutes")
    parser.add_argument("--patience", type=float, default=240, help="seconds of preparing, of a section")
    parser.add_argument("--only", default="", help='subjects with these words, as "float16, ours tf32"')
    parser.add_argument("--kernels", type=Path, help="file of what the device does for a call of each subject")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from megengine.kernels import cuda

    if (reason := cuda.unavailable_reason()) is not None:
        print(f"nothing is measured: {reason}")
        return 0
    results: dict[str, Any] = {}
    every = sections(options.batch, options.mode, options.pictures)
    if unknown := set(options.sections) - set(every):
        parser.error(f"unknown sections {sorted(unknown)}; expected some of {', '.join(every)}")
    for name in options.sections or every:
        subjects = chosen(every[name], options.only)
        rounds = 2 if name == "quantize" else options.rounds
        with_kernels = options.kernels is not None and name != "quantize"
        found = in_processes(subjects, rounds, options.patience, kernels=with_kernels)
        results[name] = summary(found)
        print("\n".join(lines_of(name, results[name])), flush=True)
        if with_kernels:
            with options.kernels.open("a") as file:
                file.writelines(table_of(f"{name} {label}", rows) for label, rows in found["kernels"].items())
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
