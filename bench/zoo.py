"""Latency of many networks beside OpenVINO, ONNX Runtime and torch: float32, bfloat16, int8; threads; batches.

Each network runs in processes of its own, in which all runners take turns; a runner that crashes is left out of the
next one. Results are JSON lines, to which `--resume` adds; a table and a picture are made of them. With one thread the
figure is CPU time on one core, with more it is time. Peers and networks whose packages are missing are noted. Weights
are random, or those of the packages: this measures speed only.
Needs `pip install torch torchvision openvino nncf onnxruntime rapidocr-onnxruntime magika silero-vad`, each of them
optional. Run: python bench/zoo.py [--networks resnet50 bert] [--precisions int8] [--threads 1 2] [--batch 1 8]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from turns import use_cores
from zoo_networks import NETWORKS

PRECISIONS = ("float32", "bfloat16", "int8")
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- zoo: begin -->\n", "<!-- zoo: end -->\n"
Line = dict[str, Any]


# ---------------------------------------------------------------- measuring


def measure(base: Line, precisions: list[str], rounds: int, limit: float, without: Iterable[str] = ()) -> list[Line]:
    """The lines of one network, in as many processes as crash, and one; some runners are left out."""
    notes: list[Line] = []
    skip = [label for label in _labels(precisions) if label.partition(": ")[2] in without]
    while True:
        options = {**base, "precisions": precisions, "rounds": rounds, "skip": skip}
        lines, began, ended = _child(options, limit)
        found = [line for line in lines if "runner" in line]
        if ended is None:
            return [_result(base, line) for line in (*notes, *found)]
        notes.append({"runner": began, "note": ended})
        if began not in _labels(precisions) or began in skip:  # not one runner's fault
            return [_result(base, line) for line in (*found, *notes)]
        skip.append(began)


def _labels(precisions: list[str]) -> list[str]:
    from zoo_runs import RUNNERS

    return [f"{precision}: {runner}" for precision in precisions for runner in RUNNERS[precision]]


def _child(options: Line, limit: float) -> tuple[list[Line], str, str | None]:
    """Lines of a process, what it began last, and how it ended if not well."""
    command = [sys.executable, __file__, "--child", json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            text, ended = process.communicate(timeout=limit)[0], None
            if process.returncode:
                code = process.returncode
                ended = f"the process ended with {signal.Signals(-code).name if code < 0 else f'code {code}'}"
        except subprocess.TimeoutExpired:
            process.kill()
            text, ended = process.communicate()[0], f"not done after {limit:g} s"
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    began = [line["begin"] for line in lines if "begin" in line]
    return lines, began[-1] if began else "the beginning", ended


def _result(base: Line, line: Line) -> Line:
    precision, _, runner = line["runner"].rpartition(": ")
    return {**base, "precision": precision, **line, "runner": runner}


def key_of(line: Line) -> tuple[Any, ...]:
    """What a line measures."""
    return line["network"], line["threads"], line["batch"]


# ---------------------------------------------------------------- reporting


def latest(lines: Iterable[Line]) -> dict[tuple[Any, ...], Line]:
    """The last line of each runner of each network; later runs take the place of earlier ones."""
    return {(*key_of(line), line["precision"], line["runner"]): line for line in lines}


def compare(lines: Iterable[Line]) -> dict[tuple[int, int], dict[str, dict[str, tuple[float, float | None, str]]]]:
    """(threads, batch) -> network -> precision -> our milliseconds, the ratio to the fastest peer, and that peer."""
    groups: dict[tuple[int, int], dict[str, dict[str, dict[str, float]]]] = defaultdict(dict)
    for line in latest(lines).values():
        if "ms" in line:
            of_network = groups[line["threads"], line["batch"]].setdefault(line["network"], defaultdict(dict))
            of_network[line["precision"]][line["runner"]] = line["cpu_ms" if line["threads"] == 1 else "ms"]
    table: dict[tuple[int, int], dict[str, dict[str, tuple[float, float | None, str]]]] = {}
    for group, networks in sorted(groups.items()):
        table[group] = {}
        for network, precisions in networks.items():
            row = table[group].setdefault(network, {})
            for precision, times in precisions.items():
                if (own := times.pop("ours", None)) is not None:
                    peer = min(times, key=lambda name: times[name], default="")
                    row[precision] = own, own / times[peer] if peer else None, peer
    return table


def mean_ratio(rows: dict[str, dict[str, tuple[float, float | None, str]]], precision: str) -> float | None:
    """The geometric mean of the ratios."""
    ratios = [row[precision][1] for row in rows.values() if precision in row and row[precision][1]]
    return math.exp(sum(math.log(ratio) for ratio in ratios if ratio) / len(ratios)) if ratios else None


def markdown(lines: list[Line]) -> str:
    """A table for each number of threads and batch."""
    parts = []
    for (threads, batch), rows in compare(lines).items():
        precisions = [p for p in PRECISIONS if any(p in row for row in rows.values())]
        parts.append(f"{threads} thread{'s' * (threads > 1)}, batch {batch}:\n")
        parts.append("| network | " + " | ".join(f"{p}, ms | ratio | fastest peer" for p in precisions) + " |")
        parts.append("|---|" + "---|---|---|" * len(precisions))
        for network, row in rows.items():
            cells = []
            for precision in precisions:
                own, ratio, peer = row.get(precision, (None, None, ""))
                cells += ["-" if own is None else f"{own:.3g}", "-" if ratio is None else f"{ratio:.2f}", peer or "-"]
            parts.append(f"| {network} | " + " | ".join(cells) + " |")
        means = [mean_ratio(rows, p) for p in precisions]
        cells = [f"| {'-' if mean is None else f'{mean:.2f}'} | " for mean in means]
        parts.append("| geometric mean | " + " | ".join(cells) + "|\n")
    notes = [line for line in latest(lines).values() if "note" in line and line["runner"] == "ours"]
    if notes:
        parts.append("Not measured: " + "; ".join(_note(line) for line in notes) + ".\n")
    return "\n".join(parts)


def _note(line: Line) -> str:
    where = f"{line['network']} {line['precision']}, threads {line['threads']}, batch {line['batch']}"
    return f"{where} ({line['note'].rstrip('.')})"


def picture(lines: list[Line]) -> str:
    """Ratios to the fastest peer as dots, on a logarithmic axis from 1/4 to 4, as SVG; the first group of the table."""
    from xml.sax.saxutils import escape

    (threads, batch), rows = next(iter(compare(lines).items()))
    colours = dict(zip(PRECISIONS, ("#1f77b4", "#ff7f0e", "#2ca02c"), strict=True))
    left, wide, high = 160, 400, 18

    def at(ratio: float) -> float:
        return left + wide * (math.log2(min(max(ratio, 0.25), 4)) + 2) / 4

    height = high * (len(rows) + 3)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 20}" height="{height}" font-size="12"']
    parts.append('font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>')
    for ratio in (0.25, 0.5, 1, 2, 4):
        colour = "black" if ratio == 1 else "#ddd"
        parts.append(f'<path d="M{at(ratio):.1f} {high * 2}V{height - high}" stroke="{colour}"/>')
        parts.append(f'<text x="{at(ratio):.1f}" y="{height - 4}" text-anchor="middle">{ratio:g}</text>')
    for i, precision in enumerate(PRECISIONS):
        parts.append(f'<circle cx="{left + 100 * i}" cy="12" r="5" fill="{colours[precision]}"/>')
        parts.append(f'<text x="{left + 10 + 100 * i}" y="16">{precision}</text>')
    parts.append(f'<text x="4" y="16">threads {threads}, batch {batch}</text>')
    for i, (network, row) in enumerate(rows.items()):
        y = high * (i + 2) + 12
        parts.append(f'<text x="{left - 8}" y="{y}" text-anchor="end">{escape(network)}</text>')
        for precision, (_, ratio, _) in row.items():
            if ratio is not None:
                parts.append(f'<circle cx="{at(ratio):.1f}" cy="{y - 4}" r="5" fill="{colours[precision]}"/>')
    return "\n".join([*parts, "</svg>\n"])


def write_page(page: Path, text: str) -> None:
    """Put a text between the marks of a page."""
    old = page.read_text(encoding="utf-8")
    before, _, rest = old.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{page}: expected the lines {BEGIN.strip()} and {END.strip()}, between which the table goes")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def read(path: Path) -> list[Line]:
    """The lines of a file; a last one that was cut off is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            print(f"{path}: a line that is no JSON is left out", file=sys.stderr)
    return lines


# ---------------------------------------------------------------- the command


def arguments_of(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--without", nargs="+", default=[], metavar="RUNNER", help="peers to leave out")
    parser.add_argument("--repeat", type=int, default=30, help="rounds in turns")
    parser.add_argument("--limit", type=float, default=900, help="seconds that one process may take")
    parser.add_argument("--output", type=Path, default=Path("zoo.jsonl"), help="JSON lines")
    parser.add_argument("--resume", action="store_true", help="add to the output what it lacks")
    parser.add_argument("--report", action="store_true", help="measure nothing; table and picture of the output")
    parser.add_argument("--picture", type=Path, help="SVG to write")
    parser.add_argument("--docs", action="store_true", help=f"write the table into {PAGE.name}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    arguments = arguments_of(given)
    if arguments.child:
        options = json.loads(arguments.child)
        use_cores(options["threads"])
        from zoo_runs import run

        run(*(options[name] for name in ("network", "precisions", "batch", "threads", "rounds", "skip")))
        return
    if not (arguments.resume or arguments.report):
        arguments.output.unlink(missing_ok=True)
    if not arguments.report:
        _measure_all(arguments)
    lines = read(arguments.output)
    print(text := markdown(lines))
    if arguments.picture and compare(lines):
        arguments.picture.write_text(picture(lines), encoding="utf-8")
    if arguments.docs:
        write_page(PAGE, text)


def _measure_all(arguments: argparse.Namespace) -> None:
    done = {(*key_of(line), line["precision"]) for line in read(arguments.output)}
    cores = len(os.sched_getaffinity(0))
    for threads in arguments.threads:
        if threads > cores:
            print(f"{threads} threads: only {cores} cores may be used; left out", file=sys.stderr)
            continue
        for batch in arguments.batch:
            for network in arguments.networks:
                base = {"network": network, "threads": threads, "batch": batch}
                missing = [p for p in arguments.precisions if (network, threads, batch, p) not in done]
                if not missing:
                    continue
                print(f"{network}, threads {threads}, batch {batch}", file=sys.stderr)
                lines = measure(base, missing, arguments.repeat, arguments.limit, arguments.without)
                with arguments.output.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
