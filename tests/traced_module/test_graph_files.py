"""The native format: what comes back is what was saved, and damaged files are one clear error."""

import json
import pickle
import random
import zipfile
from collections import namedtuple

import numpy as np
import pytest

import megengine.module as M
from megengine.core.dtype import quantized
from megengine.core.errors import FileFormatError, MissingFileError
from megengine.core.pytree import flatten
from megengine.core.spec import TensorSpec
from megengine.tensor import Tensor, tensor
from megengine.traced_module import InternalGraph, TracedModule, interpret, lower, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.formats import archives
from megengine.traced_module.formats import native as files


def small() -> InternalGraph:
    g = InternalGraph("net")
    x = add_input(g, "x", TensorSpec((1, 3, 8, 8), np.dtype(np.float32)))
    w = g.constant(np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32), name="w")
    options = {"stride": (1, 1), "padding": ((1, 1), (0, 2)), "dilation": (1, 1), "groups": 1}
    y = g.apply("conv2d", x, w, attrs=options, name="conv", meta={"module": "a.b", "source": "net.py:3"})
    y = g.apply("clip", y, attrs={"lo": 0.1, "hi": float("inf")}, name="clip")
    parts = g.apply("split", y, attrs={"sections": (1, 3), "axis": 1}, name="part")
    q = g.constant(Tensor._wrap(np.arange(4, dtype=np.int8), quantized("qint8", [0.1, 0.2, 0.3, 0.4], 0, 0)), name="q")
    half = g.constant(np.float32(0.5), name="half")  # no axis at all
    none = g.constant(np.zeros((0, 2), np.float32), name="none")
    set_outputs(g, [parts[1], q, half, none])
    return g


def test_round_trip_is_exact(tmp_path):
    g = small()
    files.save(TracedModule.from_graph(g), tmp_path / "a.mgt")
    again = files.load(tmp_path / "a.mgt").graph
    again.lint()
    assert repr(again).replace("%", "") == repr(g).replace("%", "")
    assert again.node("conv").expr.meta["module"] == "a.b"
    assert again.node("q").spec == g.node("q").spec
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    for a, b in zip(interpret(g, [x]), interpret(again, [x]), strict=True):
        assert np.array_equal(a._storage(), b._storage())


def test_the_same_graph_gives_the_same_bytes(tmp_path):
    files.save(small(), tmp_path / "a.mgt")
    files.save(files.load(tmp_path / "a.mgt"), tmp_path / "b.mgt")
    assert (tmp_path / "a.mgt").read_bytes() == (tmp_path / "b.mgt").read_bytes()


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.mgt"
    path.write_text("old")
    g = small()
    g.node("clip").expr._attrs = {"lo": object(), "hi": 1.0}
    with pytest.raises(FileFormatError, match="attribute 'lo' is object"):
        files.save(g, path)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(MissingFileError, match="there is no folder"):
        files.save(small(), tmp_path / "none" / "a.mgt")


def test_random_damage_never_escapes_as_another_error(tmp_path):
    path = tmp_path / "a.mgt"
    files.save(small(), path)
    content, rng = path.read_bytes(), random.Random(3)
    for _ in range(200):
        damaged = bytearray(content[: rng.randrange(len(content))] if rng.random() < 0.3 else content)
        for _ in range(rng.randint(1, 4)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            files.load(path)
        except FileFormatError as error:
            assert str(path) in str(error)


def changed(tmp_path, change) -> str:
    """A file whose graph.json was changed by a program, checksums right."""
    path = tmp_path / "a.mgt"
    files.save(small(), path)
    with zipfile.ZipFile(path) as archive:
        described, weights = json.loads(archive.read(files.GRAPH)), archive.read(archives.WEIGHTS)
    change(described)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(files.GRAPH, json.dumps(described))
        archive.writestr(archives.WEIGHTS, weights)
    return str(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="x"), "format is 'x'"),
        (
            lambda d: d.update(version=9),
            "version is 9; this program reads versions 1 and 2; the file was",
        ),
        (lambda d: d["exprs"][2].update(op="convv"), "unknown op 'convv'"),
        (lambda d: d["exprs"][2]["attrs"].update(padding=[[1, 1, 1], [0, 2]]), "pairs of them for padding"),
        (lambda d: d["exprs"][2]["attrs"].update(stride=[1.5, 1]), "2 integers each"),
        (lambda d: d["exprs"][3]["attrs"].update(hi=[[]]), r"clip: attributes are .* expected numbers \['lo', 'hi'\]"),
        (lambda d: d["exprs"][3]["attrs"].update(more=1), "clip: attributes are"),
        (lambda d: d["exprs"][2].update(inputs=["x", "ghost"]), "ghost"),
        (lambda d: d["exprs"][2]["outputs"][0].update(shape=[1]), "the file states"),
        (lambda d: d["exprs"][0].update(kind="Odd"), "unknown kind 'Odd'"),
        (lambda d: d.update(outputs=["ghost"]), "ghost"),
        (lambda d: d.update(inputs=[]), "the inputs of .* are not those of its expressions"),
        (lambda d: d["exprs"][1]["outputs"][0].update(dtype="int8"), "stored as float32; expected int8"),
        (lambda d: d["exprs"].reverse(), "not consistent"),
        (lambda d: d.pop("exprs"), "not consistent"),
    ],
)
def test_inconsistent_graphs(tmp_path, change, message):
    with pytest.raises(FileFormatError, match=message):
        files.load(changed(tmp_path, change))


def test_what_is_no_graph_file(tmp_path):
    with pytest.raises(FileFormatError, match="no such file"):
        files.load(tmp_path / "none.mgt")
    path = tmp_path / "a.mgt"
    path.write_text("text")
    with pytest.raises(FileFormatError, match="damaged or not a graph file"):
        files.load(path)
    path.write_bytes(pickle.dumps({}))
    with pytest.raises(FileFormatError, match=r"a pickle, as .* writes .tm files; read it with megengine.load"):
        files.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other", "x")
    with pytest.raises(FileFormatError, match=r"holds \['other'\]"):
        files.load(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(files.GRAPH, "{}")
        archive.writestr(archives.WEIGHTS, b"\0" * 10_000_000)
    with pytest.raises(FileFormatError, match="is packed; expected it stored"):
        files.load(path)


Pair = namedtuple("Pair", "low high")


@pytest.mark.parametrize(
    ("nested", "read"),
    [
        (lambda a, b: {"b": a, "a": (b, None, [a])}, None),
        (lambda a, b: [b], None),
        (lambda a, b: (a,), None),
        (lambda a, b: [3, {"x": b, 2: "text"}], None),
        (lambda a, b: Pair(a, [b]), lambda a, b: (a, [b])),  # reading needs no class
    ],
)
def test_results_of_graphs_of_ops_nest_in_files_as_before(nested, read, tmp_path):
    class Nested(M.Module):
        def forward(self, x):
            return nested(x * 2, x + 1)

    x = tensor(np.array([1.0, -2.0], np.float32))
    low = lower(trace_module(Nested(), x))
    files.save(low, tmp_path / "a.mgt")
    again = files.load(tmp_path / "a.mgt")
    expected = (read or nested)(np.array([2.0, -4.0]), np.array([2.0, -1.0]))
    leaves, structure = flatten(again(x))
    wanted, shape = flatten(expected)
    assert structure == shape
    for got, want in zip(leaves, wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    files.save(again, tmp_path / "b.mgt")
    assert (tmp_path / "a.mgt").read_bytes() == (tmp_path / "b.mgt").read_bytes()
