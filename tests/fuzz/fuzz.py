"""Random damage to every kind of file that is loaded; each damaged file gives a value or one of our errors.

Files that are written are tried as well: random keys of square brackets are exported to ONNX and run there.

    python tests/fuzz/fuzz.py --count 20000                 # of all kinds together; those that show a fault are kept
    python tests/fuzz/fuzz.py --kinds tm,onnx --seed 7 --count 500
    python tests/fuzz/fuzz.py --kinds tm --seed 1 --only 137         # one of them again, in this process

Files are loaded in processes of their own with a limit on memory and time. Reported are crashes, errors that are not
ours, MemoryError, and files that take too long. The same seed makes the same files.
"""

from __future__ import annotations

import argparse
import collections
import functools
import io
import json
import os
import pickle
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.errors import FileFormatError, MegEngineError

sys.path.insert(0, str(Path(__file__).parent))  # for the processes that load this module by its name
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import damaged_pickles
import hostile_expressions
import index_keys
from damage import damaged_archive, damaged_bytes, damaged_json
from hostile_values import hostile_archive, hostile_onnx, used
from worker import Worker

DATA = Path(__file__).parents[1] / "data"
MEMORY = 3 << 30  # bytes that loading a file of a few kilobytes may reserve, above those of the program
CPU_SECONDS = 5.0


@dataclass(frozen=True)
class Kind:
    """A kind of file: sound ones, how they are damaged, and how they are loaded."""

    suffix: str
    samples: Callable[[], list[bytes]]
    damage: Callable[[bytes, random.Random], bytes]
    load: Callable[[Path], Any]


def _stored(*patterns: str) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for pattern in patterns for path in sorted(DATA.glob(pattern))]


def _written(make: Callable[[Any, Path], Any], values: Callable[[], list[Any]], suffix: str) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{suffix}"
        found = []
        for value in values():
            make(value, path)
            found.append(path.read_bytes())
    return found


def _traced() -> list[Any]:
    import megengine as mge

    return [mge.load(DATA / f"megengine/graphs/{name}.tm") for name in ("multi_io", "call_mix", "res_fused_q")]


def _module_files() -> list[bytes]:
    from megengine.traced_module.formats import native as files

    return _written(files.save, _traced, ".mgt")


def _op_files() -> list[bytes]:
    from megengine.convert import onnx
    from megengine.traced_module import lower
    from megengine.traced_module.formats import native as files

    def graphs() -> list[Any]:
        nets = [
            onnx.load(DATA / f"onnx/{name}_script.onnx") for name in ("shuffle", "squeezeexcite", "transformer", "unet")
        ]
        return [*(lower(m) for m in _traced()[:2]), *nets]

    return [*_stored("graphs/*.mgt")(), *_written(files.save, graphs, ".mgt"), *_nested_files()]


_NESTED = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x, int64 n) => (float[2,3] y, float[k] z) {
    s = ReduceSum <keepdims = 0> (x)
    bound = Constant <value = float {0}> ()
    t = Greater (s, bound)
    y = Loop (n, t, x) <body = b (int64 i, bool go, float[2,3] h) => (bool go_out, float[2,3] h_out) {
        m = ReduceMax <keepdims = 0> (h)
        go_out = Less (m, s)
        h_out = If (go) <then_branch = a () => (float[2,3] p) { p = Add (h, x) },
                         else_branch = c () => (float[2,3] q) { w = Constant <value = float[3] {1, 2, 3}> ()
                                                                q = Mul (h, w) }> }>
    places = NonZero (y)
    turned = Transpose (places)
    v = GatherND (y, turned)
    z = Add (v, s)
}"""


@functools.cache
def _nested_files() -> list[bytes]:
    """Graphs that ops run, graphs in these, and lengths that values tell."""
    import onnx as format

    from megengine.convert import onnx

    return _written(_save_native, lambda: [onnx.load_graph(format.parser.parse_model(_NESTED))], ".mgt")


def _arrays(save: Callable[..., Any]) -> bytes:
    file = io.BytesIO()
    save(file, np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    return file.getvalue()


def _log_files() -> list[bytes]:
    """Logs of renaming, of passes with layers in them, of calls put in, of other arguments."""
    import megengine.functional as F
    from megengine.traced_module.passes import PassManager, registered_passes

    found = []
    for model in _traced()[:2]:
        graph = model.graph
        graph.rename(graph.outputs[0], "result")
        with graph.insert_exprs():
            graph.replace_node({graph.outputs[0]: F.softmax(graph.outputs[0], axis=-1) * 2})
        graph.get_function_by_type(F.softmax, recursive=False)[-1].set_arg("axis", 0)
        PassManager(registered_passes()).run(graph)
        graph.add_input_node((1, 2), name="more")
        graph.add_output_node(graph.outputs[0])
        found += _written(lambda log, path: log.save(path), lambda log=model.edit_log: [log], ".log")
    return found


def _pictures() -> list[bytes]:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 4), np.uint8)
    modes = {"PNG": "RGBA", "JPEG": "RGB", "GIF": "P", "BMP": "RGB", "WEBP": "RGB", "TIFF": "RGBA", "PPM": "RGB"}
    found = []
    for kind, mode in modes.items():
        file = io.BytesIO()
        Image.fromarray(pixels).convert(mode).save(file, kind)
        found.append(file.getvalue())
    return found


def _plain_pickles() -> list[bytes]:
    value = {"data": [np.arange(6, dtype=np.uint8).reshape(2, 3)], b"labels": [1, 2], "names": ("a", "b")}
    return [pickle.dumps(value, protocol) for protocol in range(6)]


def _recipes() -> list[bytes]:
    from megengine.cli.images import PRESETS

    return [json.dumps(preset.describe()).encode() for preset in PRESETS.values()]


def _damaged_text(content: bytes, rng: random.Random) -> bytes:
    return damaged_json(content, rng) if rng.random() < 0.7 else damaged_bytes(content, rng)


def _load_any(path: Path) -> Any:
    import megengine as mge

    return mge.load(path)


def _load_pth(path: Path) -> Any:
    from megengine.serialization import read_pth

    return read_pth(path)


def _load_plain_pickle(path: Path) -> Any:
    from megengine.serialization import read_numpy_pickle

    return read_numpy_pickle(path)


def _load_mge(path: Path) -> Any:
    from megengine.convert import mge

    return mge.load(path)


def _load_onnx(path: Path) -> Any:
    from megengine.convert import onnx

    return onnx.load(path)


def _integer_files() -> list[bytes]:
    """Integer graphs, with multipliers, and QDQ graphs."""
    return _written(
        _save_native, lambda: [m for q in _quantized_nets() for m in (q.integer_graph, q.qdq_graph)], ".mgt"
    )


def _quantized_module_files() -> list[bytes]:
    import megengine as mge

    names = ("res_fused_q", "call_mix", "res_fused_qat")
    return _written(_save_native, lambda: [mge.load(DATA / f"megengine/graphs/{name}.tm") for name in names], ".mgt")


def _qdq_onnx_files() -> list[bytes]:
    from megengine.convert import onnx

    return [*_written(onnx.export_qdq, _quantized_nets, ".onnx"), *_stored("onnx/[us]*_script.onnx")()]


def _save_native(model: Any, path: Path) -> None:
    from megengine.traced_module.formats import native as files

    files.save(model, path)


@functools.cache
def _quantized_nets() -> list[Any]:
    from quant_nets import residual_net

    from megengine.quantization import quantize_model

    builder, graph = residual_net()
    return [quantize_model(graph, builder.data())]


def _use_native(path: Path) -> Any:
    from megengine.traced_module.formats import native as files

    return used(files.load(path))


def _use_layers(path: Path) -> Any:
    from megengine.traced_module.formats import native as files

    return used(files.load(path), calls=True)


def _use_onnx(path: Path) -> Any:
    from megengine.convert import onnx

    return used(onnx.load(path))


def _load_plan(path: Path) -> Any:
    from megengine import plan

    return plan.load(path)


def _load_samples(path: Path) -> Any:
    from megengine.cli.readers import Slot, open_reader

    return list(open_reader(str(path), [Slot("x", (1, 3, 4), np.dtype(np.float32))]))


def _replay(path: Path) -> Any:
    """A log is read, and replayed on the models that the sound ones are for."""
    from megengine.traced_module.editing.edit_log import EditLog

    log = EditLog.load(path)
    refused = None
    for model in _models():
        copy = model.clone()
        try:
            log.replay(copy)
        except MegEngineError as error:
            assert repr(copy) == repr(model), "a refused log changed the model"
            refused = error
        else:
            copy.graph.lint()
            return log
    raise refused or FileFormatError("a log for none of the models")


@functools.cache
def _models() -> list[Any]:
    return _traced()[:2]


def _load_picture(path: Path) -> Any:
    from megengine.cli.images import Recipe, load

    return load(path, Recipe(size=(8, 8)))


def _load_recipe(path: Path) -> Any:
    """A recipe is read and used."""
    from PIL import Image

    from megengine.cli.images import prepare, recipe

    return prepare(Image.new("RGB", (12, 9)), recipe(str(path)))


def _statistics_files() -> list[bytes]:
    from megengine.quantization import Statistics, collect
    from megengine.traced_module import lower

    rng = np.random.default_rng(0)

    def seen() -> list[Any]:
        net = lower(_traced()[0])
        shapes = [node.shape for node in net.graph.inputs]
        return [collect(net, [tuple(rng.normal(size=s).astype(np.float32) for s in shapes) for _ in range(2)])]

    return _written(Statistics.save, seen, ".stats")


def _load_statistics(path: Path) -> Any:
    from megengine.quantization import RangeMethod, Statistics
    from megengine.quantization.ranges import METHODS, activation_dtype

    statistics = Statistics.load(path)
    for one in statistics.edges.values():
        for method in METHODS if one.count else ():
            activation_dtype(one, RangeMethod(method), "u8_asymmetric")
    return statistics


def _index_cases() -> list[bytes]:
    whole, back = ({"slice": [None, None, step]} for step in (None, -1))
    case = {"shape": [2, 3], "dtype": "float32", "opset": 17, "form": "brackets", "key": [whole, back]}
    return [json.dumps({**case, **more}).encode() for more in ({}, {"set": [0.5, 0.5, 0.5]}, {"form": "op"})]


def _drawn_key(content: bytes, rng: random.Random) -> bytes:
    return json.dumps(index_keys.drawn(rng)).encode()


def _export_key(path: Path) -> str:
    """Elements are read or set, here, in ONNX Runtime and read back: other numbers are a fault."""
    found = index_keys.checked(json.loads(path.read_text()))
    if found != "equal":
        raise FileFormatError(found)
    return found


KINDS: dict[str, Kind] = {
    "tm": Kind(".tm", _stored("megengine/graphs/multi_io.tm", "megengine/graphs/*_flat.tm"), damaged_bytes, _load_any),
    "mgt": Kind(".mgt", _module_files, damaged_archive, _load_any),
    "plan": Kind(".mgt", _op_files, damaged_archive, _load_plan),
    "pkl": Kind(".pkl", _stored("megengine/*.pkl"), damaged_bytes, _load_any),
    "pth": Kind(".pth", _stored("torch/zip.pth", "torch/checkpoint.pth"), damaged_archive, _load_pth),
    "pth-legacy": Kind(".pth", _stored("torch/legacy.pth"), damaged_bytes, _load_pth),
    "onnx": Kind(".onnx", _stored("onnx/*.onnx"), damaged_bytes, _load_onnx),
    "mge": Kind(".mge", _stored("megengine/deployed/*.mge"), damaged_bytes, _load_mge),
    "numpy-pickle": Kind(".pkl", _plain_pickles, damaged_bytes, _load_plain_pickle),
    "npy": Kind(".npy", lambda: [_arrays(np.save)], damaged_bytes, _load_samples),
    "edits": Kind(".log", _log_files, damaged_archive, _replay),
    "expression": Kind(
        ".txt",
        lambda: [text.encode() for text in hostile_expressions.SAMPLES],
        hostile_expressions.damaged,
        hostile_expressions.load,
    ),
    "picture": Kind(".png", _pictures, damaged_bytes, _load_picture),
    "recipe": Kind(".json", _recipes, _damaged_text, _load_recipe),
    "nested-values": Kind(".mgt", _nested_files, hostile_archive, _use_native),
    "mgt-values": Kind(".mgt", _integer_files, hostile_archive, _use_native),
    "layer-values": Kind(".mgt", _quantized_module_files, hostile_archive, _use_layers),
    "onnx-values": Kind(".onnx", _qdq_onnx_files, hostile_onnx, _use_onnx),
    "index": Kind(".json", _index_cases, _drawn_key, _export_key),
    "statistics": Kind(".stats", _statistics_files, damaged_archive, _load_statistics),
    "npz": Kind(".npz", lambda: [_arrays(np.savez), _arrays(np.savez_compressed)], damaged_archive, _load_samples),
}


def _planted(path: Path) -> str:
    """Faults of every kind: what the fuzzer itself is tried with."""
    match path.read_text():
        case "error":
            raise ZeroDivisionError
        case "silence":
            raise FileFormatError
        case "memory":
            bytearray(4 * MEMORY)
        case "crash":
            os.abort()
    return "sound"


for _kind in ("tm", "pkl", "numpy-pickle", "pth-legacy"):
    KINDS[f"{_kind}-operations"] = replace(KINDS[_kind], damage=damaged_pickles.damaged_pickle)
ALL = ",".join(KINDS)
KINDS["planted"] = Kind(
    ".txt", lambda: [b"error", b"silence", b"memory", b"crash", b"sound"], lambda content, rng: content, _planted
)


@functools.cache
def _samples(kind: str) -> list[bytes]:
    return KINDS[kind].samples()


def damaged(kind: str, seed: int, number: int) -> bytes:
    """The damaged file of that number."""
    rng = random.Random(f"{seed}:{kind}:{number}")
    return KINDS[kind].damage(rng.choice(_samples(kind)), rng)


def loaded(kind: str, path: Path) -> str:
    """Load a file and print it: "loaded" or "refused". Other errors than ours are raised."""
    warnings.simplefilter("ignore")
    try:
        value = KINDS[kind].load(path)
        repr(value)
    except MegEngineError as error:
        assert str(error), "an error without a message"
        return "refused"
    finally:
        assert not damaged_pickles.RUN, "code that a file names was run"
    return "loaded"


# ------------------------------------------------------------------ processes


def _serve(connection: Connection, kind: str, seed: int) -> None:
    """Load damaged files by their numbers, until there are no more."""
    _samples(kind)
    connection.send("ready")
    path = Path(f"damaged{KINDS[kind].suffix}")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while (number := connection.recv()) is not None:
        path.write_bytes(damaged(kind, seed, number))
        start = time.process_time()
        try:
            outcome = loaded(kind, path)
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__)[-4:])}"[
                :3000
            ]
        taken = time.process_time() - start
        connection.send(f"takes {taken:.1f} s of CPU time" if taken > CPU_SECONDS else outcome)


def _answer(worker: Worker) -> str:
    try:
        return worker.answer()
    except EOFError as error:
        return str(error)


def outcomes(kind: str, seed: int, numbers: range, jobs: int) -> Iterator[tuple[int, str]]:
    """(number, outcome) of each damaged file of a kind."""
    workers = [Worker(_serve, kind, seed) for _ in range(jobs)]
    try:
        for first in range(numbers.start, numbers.stop, jobs):
            busy = list(zip(workers, range(first, min(first + jobs, numbers.stop)), strict=False))
            for worker, number in busy:
                worker.ask(number)
            yield from ((number, _answer(worker)) for worker, number in busy)
    finally:
        for worker in workers:
            worker.stop()


def main(arguments: list[str] | None = None) -> int:
    """Run as described above; the exit code is 1 when a fault was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="damaged files, of all kinds together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=ALL)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"), help="folder for files that show a fault")
    parser.add_argument("--only", type=int, help="load this one in this process, and let its error through")
    options = parser.parse_args(arguments)
    kinds = options.kinds.split(",")
    if options.only is not None:
        path = options.keep / f"{kinds[0]}-{options.seed}-{options.only}{KINDS[kinds[0]].suffix}"
        options.keep.mkdir(exist_ok=True)
        path.write_bytes(damaged(kinds[0], options.seed, options.only))
        print(path, loaded(kinds[0], path))
        return 0
    faults = 0
    for i, kind in enumerate(kinds):
        count = options.count * (i + 1) // len(kinds) - options.count * i // len(kinds)
        tally: collections.Counter[str] = collections.Counter()
        places: set[str] = set()  # where errors came from; each is told once
        for number, outcome in outcomes(kind, options.seed, range(count), options.jobs):
            sound = outcome in ("loaded", "refused")
            tally[outcome if sound else "faults"] += 1
            if not sound:
                options.keep.mkdir(exist_ok=True)
                name = f"{kind}-{options.seed}-{number}{KINDS[kind].suffix}"
                (options.keep / name).write_bytes(damaged(kind, options.seed, number))
                place = outcome.partition("\n")[2] or outcome
                print(f"{options.keep / name}: {outcome if place not in places else 'as one before'}", flush=True)
                places.add(place)
        faults += tally["faults"]
        print(f"{kind:12}" + "".join(f"{tally[name]:8} {name}" for name in ("loaded", "refused", "faults")), flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
