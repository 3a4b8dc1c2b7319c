"""A GPU beside torch: ResNet-50 inference, training steps and quantization, and the time of a small eager call.

Every subject has a process of its own, so that settings and errors of one do not reach another. The subjects of a
section prepare side by side, as many at a time as `--beside` says (1 lets libraries time their ways undisturbed), and
each is measured once as soon as it is ready, while others prepare; what is known is printed, and written to `--json`,
at once. Then times are medians of rounds in which all subjects of a section take turns, by CUDA events (eager calls: by
the clock of the host, with one wait at the end). float32 is without TF32 on both sides. torch is measured with channels
last and its choice of convolutions by their times (cudnn.benchmark), eager, and compiled with CUDA graphs; ours is
measured with the choice by times ("tuned") too. A subject that cannot run here is listed with the reason. `--kernels`
lists what the device does for a call of each, by torch's profiler, behind the times of a section.
Run: python bench/gpu.py [SECTION ...] [--only WORDS] [--batch 32] [--rounds 20] [--patience 240] [--beside 8]
[--kernels FILE] [--json FILE]; sections: eager, inference, training, quantize
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from gpu_subjects import sections
from gpu_workers import Subject, Turns

ROWS = 45  # of kernels that are listed


def chosen(subjects: list[Subject], only: str) -> list[Subject]:
    """The subjects of which all words of one of the alternatives, divided by commas, are words of the label."""
    wanted = [words.split() for words in only.split(",")]
    return [one for one in subjects if any(set(words) <= set(one.label.split()) for words in wanted)]


def summary(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Medians in milliseconds, seconds of each run by part, those of preparing, and reasons for what is missing.

    A subject that no round has reached has the time that it took when it was ready, and is listed in "alone".
    """
    alone = {label: took for label, took in found["alone"].items() if label not in found["ms"]}
    times = {**{label: [took] for label, took in alone.items()}, **found["ms"]}
    runs = {label: [_rounded(run) for run in parts] for label, parts in found["seconds"].items()}
    return {
        "ms": {label: round(statistics.median(of), 4) for label, of in times.items()},
        **({"seconds": runs} if runs else {}),
        **({"alone": sorted(alone)} if alone else {}),
        "prepared": {label: _rounded(seconds) for label, seconds in found["prepared"].items()},
        "missing": dict(found["missing"]),
    }


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {part: round(took, 3) for part, took in seconds.items()}


def first_lines(name: str, label: str, result: dict[str, Any]) -> list[str]:
    """What is known of a subject as soon as it has prepared."""
    start = f"{name:10} {label:32}"
    lines = [f"{start} missing: {result['missing'][label]}"] if label in result["missing"] else []
    seconds = result["prepared"].get(label)
    if seconds is not None:
        took = f"{result['ms'][label]:9.4f} ms, at first" if label in result["ms"] else ""
        lines.append(f"{start} {took}  prepared in {sum(seconds.values()):.1f} s: {_parts(seconds)}")
    runs = result.get("seconds", {}).get(label, [])
    return lines + [f"{start} run 1, seconds: {_parts(run)}" for run in runs]


def _parts(run: dict[str, float]) -> str:
    return ", ".join(f"{part} {took:.3f}" for part, took in run.items())


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
            lines.append(f"{name:10} {label:32} run {number}, seconds: {_parts(run)}")
    return lines + [f"{name:10} {label:32} missing: {why}" for label, why in result["missing"].items()]


def table_of(label: str, rows: list[tuple[str, float, float]]) -> str:
    """What the device does for a call, the longest first."""
    total = sum(us for _, us, _ in rows)
    lines = [f"== {label}: {total / 1e3:.3f} ms of the device, {sum(number for *_, number in rows):.1f} launches"]
    lines += [
        f"  {us:9.1f} us {100 * us / total:5.1f}% x{number:6.1f}  {name[:150]}" for name, us, number in rows[:ROWS]
    ]
    return "\n".join(lines) + "\n"


def measured(
    name: str, subjects: list[Subject], options: argparse.Namespace, results: dict[str, Any], patience: float
) -> float:
    """Measure a section, which prepares for so many seconds; `results` gets what is known of it.

    Returns the seconds that it prepared.
    """

    def tell(label: str) -> None:
        results[name] = summary(turns.found)
        if label:
            print("\n".join(first_lines(name, label, results[name])), flush=True)
        if options.json:
            written = options.json.with_suffix(".part")
            written.write_text(json.dumps(results, indent=1))
            os.replace(written, options.json)  # whole, whenever the bench is killed

    rounds, kernels = 2 if name == "quantize" else options.rounds, options.kernels is not None and name != "quantize"
    with Turns(subjects, beside=options.beside, kernels=kernels, tell=tell) as turns:
        begin = time.monotonic()
        turns.prepare(patience)
        took = time.monotonic() - begin
        turns.measure(rounds)
        tell("")
        print("\n".join(lines_of(name, results[name])), flush=True)
        for label, rows in turns.kernels() if kernels else ():
            with options.kernels.open("a") as file:
                file.write(table_of(f"{name} {label}", rows))
    return took


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", help="eager, inference, training, quantize; all without a name")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pictures", type=int, default=512, help="that quantize")
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile; max-autotune takes minutes")
    parser.add_argument("--patience", type=float, default=240, help="seconds of preparing, of all sections together")
    parser.add_argument("--beside", type=int, default=min(8, os.cpu_count() or 1), help="that prepare at a time")
    parser.add_argument("--only", default="", help='subjects with these words, as "float16, ours tf32"')
    parser.add_argument("--kernels", type=Path, help="file of what the device does for a call of each subject")
    parser.add_argument("--json", type=Path)
    return parser


def run_sections(wanted: dict[str, list[Subject]], options: argparse.Namespace, began: float) -> dict[str, Any]:
    """Measure sections one after the other; each may prepare for its share of what is left of the patience."""
    results: dict[str, Any] = {}
    left = options.patience - (time.monotonic() - began)
    for number, (name, subjects) in enumerate(wanted.items()):
        left -= measured(name, subjects, options, results, left / (len(wanted) - number))
    return results


def main() -> int:
    """Print a table; write it as JSON."""
    began, parse = time.monotonic(), parser()
    options = parse.parse_args()
    from megengine.kernels import cuda

    if (reason := cuda.unavailable_reason()) is not None:
        print(f"nothing is measured: {reason}")
        return 0
    every = sections(options.batch, options.mode, options.pictures)
    if unknown := set(options.sections) - set(every):
        parse.error(f"unknown sections {sorted(unknown)}; expected some of {', '.join(every)}")
    wanted = {name: chosen(every[name], options.only) for name in options.sections or every}
    run_sections({name: subjects for name, subjects in wanted.items() if subjects}, options, began)
    return 0


if __name__ == "__main__":
    sys.exit(main())
