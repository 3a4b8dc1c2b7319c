"""All that is checked and measured on a GPU, by one command: `make test-cuda`, or python tests/cuda/run.py [PART ...]

Parts: first (every way to the GPU once), contract (ops against references, gradients, errors), networks (zoo: float,
plans, integers), exact (integers of networks of pictures and of 200 drawn ones, node by node), training (curve, memory,
asynchrony), bench (bench/gpu.py). The report is left in a folder, and is written anew after each part, of which one
that is ended says what it has seen: report.json, report.txt, and what each part printed. A test after which the device
answers nothing, as behind an illegal address, fails with "the context is lost since this test"; those behind it run
again in another process, and are "lost" where that does not help. Without a GPU parts are skipped, and the report says
why.

With a quarter of an hour, in this order, each with what is left if the one before took longer:
  python tests/cuda/run.py --no-compile --limit 90 first                 what fails here explains what fails later
  python tests/cuda/run.py --limit 200 contract                          all kernels are compiled before; every op
  python tests/cuda/run.py --no-compile --limit 120 networks exact training   plans, integers, training
  python bench/int8_gpu.py --check                                       integer layers by every tile, and the reference
  python bench/gpu.py quantize inference training --only "ours, torch eager" --patience 150 --json gpu-report/bench.json
  python bench/gpu_moves.py                                              moves, indexing, sorts beside torch
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import pkgutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = {
    "first": "test_first.py",
    "contract": "test_contract.py",
    "networks": "test_networks.py",
    "exact": "test_exact.py",
    "training": "test_training.py",
}
PARTS = (*TESTS, "bench")
AGAIN = 6  # processes for tests that had no context, as one before them had lost it
PACKAGES = ("numpy", "cupy-cuda13x", "nvidia-cuda-nvrtc", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend")
PACKAGES += ("torch", "onnxruntime")


def _compile(name: str, architecture: int, part: int, parts: int) -> int:
    """Compile every `parts`-th program of a family into the cache; how many."""
    from megengine.kernels.cuda.compiler import cubin

    module = importlib.import_module(f"megengine.kernels.cuda.{name}")
    programs = list(dict.fromkeys(module.programs()))[part::parts]
    for one in programs:
        cubin(one, architecture)
    return len(programs)


def _families() -> list[str]:
    package = importlib.import_module("megengine.kernels.cuda")
    names = [m.name for m in pkgutil.iter_modules(package.__path__)]
    return [n for n in names if hasattr(importlib.import_module(f"megengine.kernels.cuda.{n}"), "programs")]


def _compile_part(job: tuple[str, int, int, int]) -> int:
    return _compile(*job)


def compile_kernels(architecture: int, limit: int) -> dict[str, Any]:
    """All programs, in all processors, in at most `limit` seconds: tests then wait for no compiler."""
    begin, parts, count = time.perf_counter(), os.cpu_count() or 1, 0
    jobs = [(name, architecture, i, parts) for name in _families() for i in range(parts)]
    left = ""
    with multiprocessing.get_context("spawn").Pool(parts) as pool:  # ends its processes
        done = pool.imap_unordered(_compile_part, jobs)
        for number in range(len(jobs)):
            try:
                count += done.next(timeout=max(0.1, limit - (time.perf_counter() - begin)))
            except multiprocessing.TimeoutError:
                left = f"ended after {limit} s, {number} of {len(jobs)} parts"
                break
    found = {"programs": count, "seconds": round(time.perf_counter() - begin, 1)}
    return found | ({"left": left} if left else {})


def machine() -> dict[str, Any]:
    """The GPU, the driver, and the versions of what is used; `missing` says why there is none."""
    from megengine.kernels import cuda

    found: dict[str, Any] = {"python": sys.version.split()[0], "missing": cuda.unavailable_reason()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    if found["missing"] is None:
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(0)
        found |= {"name": properties["name"].decode(), "capability": f"{properties['major']}.{properties['minor']}"}
        found |= {"driver": cupy.cuda.runtime.driverGetVersion(), "runtime": cupy.cuda.runtime.runtimeGetVersion()}
    return found


def run_tests(part: str, out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Counts and the texts of failures of one file of tests.

    Tests behind one that lost the context run again in another process.
    """
    lines, log = out / f"{part}.jsonl", out / f"{part}.log"
    for file in (lines, log):
        file.unlink(missing_ok=True)
    words = ["-q", "--tb=short", "-rs", "-p", "no:cacheprovider"]
    if importlib.util.find_spec("xdist") and part not in ("first", "training"):
        words += ["-n", str(options.processes), "--dist", "worksteal"]
    if options.only:
        words += ["-k", options.only]
    wanted, end, codes = [str(ROOT / "tests/cuda" / TESTS[part])], time.monotonic() + options.limit, []
    environment = {**os.environ, "MEGENGINE_GPU_LINES": str(lines)}
    for _ in range(AGAIN):
        limit = max(1, round(end - time.monotonic()))
        codes.append(_ended([sys.executable, "-m", "pytest", *wanted, *words], log, limit, environment))
        wanted = [test["id"] for test in _last(lines) if test["outcome"] == "lost"]
        if not wanted or isinstance(codes[-1], str):
            break
    worst = next((code for code in reversed(codes) if code), 0)
    ended = isinstance(worst, str)
    return {"exit": f"ended after {options.limit} s" if ended else worst, **_counted(_last(lines))}


def _last(lines: Path) -> list[dict[str, Any]]:
    """What was last said of each test that has ended; of one that failed at its end, too, all words."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines.read_text().splitlines() if lines.exists() else ():
        test = json.loads(line)
        before = found.get(test["id"], {})
        if before.get("outcome") == "failed":
            test = {**test, "outcome": "failed", "words": f"{before['words']} | {test.get('words', '')}"}
        found[test["id"]] = test
    return [*found.values()]


def _ended(command: list[str], log: Path, limit: int, environment: dict[str, str]) -> Any:
    """The exit status of a command; a text where it took longer than its limit, after which all its processes end."""
    with log.open("a") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes of tests, which hold the GPU
            process.wait()
            return f"ended after {limit} s"


def _counted(tests: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of tests, the texts of failures, and the three that took longest; `lost` are those without a context."""
    found: dict[str, Any] = {"tests": len(tests)}
    for outcome in ("passed", "failed", "skipped", "lost"):
        found[outcome] = sum(test["outcome"] == outcome for test in tests)
    slowest = sorted(tests, key=lambda test: -test["seconds"])[:3]
    found["slowest"] = ", ".join(f"{test['name']} {test['seconds']} s" for test in slowest)
    return found | {"failures": {test["name"]: test["words"] for test in tests if test["outcome"] == "failed"}}


def run_bench(out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What bench/gpu.py measures."""
    file = out / "bench.json"
    command = [sys.executable, str(ROOT / "bench/gpu.py"), "--json", str(file), *options.bench.split()]
    for old in (file, out / "bench.log"):
        old.unlink(missing_ok=True)
    code = _ended(command, out / "bench.log", options.limit, dict(os.environ))
    return {"exit": code, "measured": json.loads(file.read_text()) if file.exists() else None}


def text_of(report: dict[str, Any]) -> str:
    """The report as lines."""
    lines = [f"{key}: {value}" for key, value in report["machine"].items()]
    for part, found in report["parts"].items():
        counts = ", ".join(f"{key} {found[key]}" for key in found if key not in ("failures", "measured"))
        lines.append(f"{part}: {counts}")
        lines += [
            f"  FAILED {name}: {' '.join(words.split())[:240]}" for name, words in found.get("failures", {}).items()
        ]
        lines += [f"  {name}: {value}" for name, value in (found.get("measured") or {}).items()]
    return "\n".join(lines) + "\n"


def _write(report: dict[str, Any], out: Path) -> None:
    """Leave the report as it is by now."""
    (out / "report.json").write_text(json.dumps(report, indent=1))
    (out / "report.txt").write_text(text_of(report))


def main() -> int:
    """Run the parts; 0 if nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without a name")
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-report")
    parser.add_argument("--processes", type=int, default=min(8, os.cpu_count() or 1), help="processes of tests")
    parser.add_argument("--limit", type=int, default=600, help="seconds of a part")
    parser.add_argument("--only", default="", help="pytest's -k: names of tests")
    parser.add_argument("--bench", default="", help="words for bench/gpu.py")
    parser.add_argument("--no-compile", action="store_true", help="do not compile all kernels first")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts {sorted(unknown)}; expected some of {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"machine": machine(), "parts": {}}
    _write(report, options.out)
    if report["machine"]["missing"] is None and not options.no_compile:
        architecture = int(report["machine"]["capability"].replace(".", ""))
        report["parts"]["compile"] = compile_kernels(architecture, options.limit)
    for part in options.parts or PARTS:
        _write(report, options.out)
        begin = time.perf_counter()
        found = run_bench(options.out, options) if part == "bench" else run_tests(part, options.out, options)
        report["parts"][part] = found | {"seconds": round(time.perf_counter() - begin, 1)}
    _write(report, options.out)
    print(text_of(report))
    return int(any(found.get("exit") not in (0, None) for found in report["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
