"""Traced modules in native files: what comes back is what was saved, byte for byte, and files run nothing."""

import json
import random
import sys
import zipfile
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from damage import damaged_bytes
from megengine_graphs import DATA, FILES, NETS, inputs_of, leaves, listing, traced

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.quantization as Q
from megengine import plan
from megengine.cli.models import load_calls, load_model
from megengine.core.errors import FileFormatError
from megengine.tensor import Parameter, Tensor, tensor
from megengine.traced_module import TracedModule, lower, register_as_builtin, trace_module, wrap
from megengine.traced_module.formats import archives
from megengine.traced_module.formats import native as files

X = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
Pair = namedtuple("Pair", "first second")


def again(module: TracedModule, tmp_path, **options) -> TracedModule:
    """The module from its file; that of what was read is the same, byte for byte."""
    files.save(module, tmp_path / "a.mgt")
    loaded = files.load(tmp_path / "a.mgt", **options)
    files.save(loaded, tmp_path / "b.mgt")
    assert (tmp_path / "a.mgt").read_bytes() == (tmp_path / "b.mgt").read_bytes()
    for graph in loaded.graphs:
        graph.lint()
    return loaded


def assert_same_results(a, b) -> None:
    for one, two in zip(leaves(a), leaves(b), strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            assert one.dtype == two.dtype
            np.testing.assert_array_equal(one.numpy(), two.numpy())


@pytest.mark.parametrize("name", [*FILES, *(f"here:{n}" for n in NETS), *(f"flat:{n}" for n in NETS)])
def test_a_module_comes_back_as_it_was(name, tmp_path):
    kind, _, net = name.rpartition(":")
    module = traced(net) if kind else mge.load(DATA / f"{net}.tm")
    module = module.flatten() if kind == "flat" else module
    loaded = again(module, tmp_path)
    assert listing(loaded) == listing(module)
    given = [tensor(x) for x in inputs_of(net)]
    assert_same_results(loaded(*given), module(*given))


class Mixed(M.Module):
    def __init__(self):
        super().__init__()
        self.attention = M.MultiHeadAttention(8, 2)
        self.parts = [M.Linear(8, 8), {"act": M.ReLU()}]
        self.tied = self.parts[0]
        self.scale = Parameter(np.ones(8, np.float32))
        self.offset = tensor(np.zeros(8, np.float32))
        self.same = self.scale

    def forward(self, x, flag=True, *, options=None):
        y = self.attention(x, x, x)
        y = y[0] if isinstance(y, tuple) else y
        y = self.parts[1]["act"](self.parts[0](y)) + self.tied(y) * self.scale + self.same + self.offset
        return {"b": y[0:1, ..., None], "a": (y.astype(np.float16), None, [y.reshape(-1), 3])}


def test_arguments_results_and_sharing(tmp_path):
    x = tensor(X)
    module = trace_module(Mixed().eval(), x, False, options={"z": [1, float("inf"), "s"], "y": (None, slice(1, 2))})
    loaded = again(module, tmp_path)
    assert loaded.tied is loaded.parts.__getattribute__("0")
    assert loaded.scale is loaded.same and isinstance(loaded.scale, Parameter)
    assert type(loaded.offset) is Tensor
    assert loaded.origin == "Mixed"
    assert str(loaded.forward_signature) == "(self, x, flag=True, *, options=None)"
    options = {"z": [1, float("inf"), "s"], "y": (None, slice(1, 2))}
    here, there = (m(x, False, options=options) for m in (module, loaded))
    assert list(there) == ["b", "a"] and there["a"][1:2] == (None,) and there["a"][2][1] == 3
    assert_same_results(here["b"], there["b"])
    assert list(loaded.state_dict()) == list(module.state_dict())


def test_provenance_points_and_specializations(tmp_path):
    class Branching(M.Module):
        def forward(self, x):
            return F.relu(x) if float(x.sum()) > 0 else -x

    with pytest.warns(UserWarning):
        module = trace_module(Branching(), tensor(np.ones(3, np.float32)))
    graph = module.graph
    call = graph.outputs[0].expr
    call.disable_remove()
    graph.get_node_by_name("x").as_unique().expr.meta["passes"] = ["One", "Two"]
    module.set_watch_points(graph.outputs[0])
    module.set_end_points([graph.outputs[0]])
    loaded = again(module, tmp_path)
    assert loaded.specializations == module.specializations and len(loaded.specializations) == 1
    assert [e.meta for e in loaded.graph.exprs()] == [e.meta for e in graph.exprs()]
    assert [n.name for n in loaded.watch_points] == [n.name for n in loaded.end_points] == [graph.outputs[0].name]
    assert loaded.graph.outputs[0].expr._disable_remove
    assert isinstance(loaded(tensor(np.ones(3, np.float32))), list)


def test_points_in_submodules_are_saved(tmp_path):
    """Of a shared module and of one in a list, with the graph that they are in."""

    class Part(M.Module):
        def forward(self, x, scale=1):
            return F.relu(x) * scale

    class Parts(M.Module):
        def __init__(self):
            super().__init__()
            self.one, self.several = Part(), [Part(), Part()]

        def forward(self, x):
            return self.several[1](self.several[0](self.one(self.one(x), 2))) - 1

    x = tensor(np.array([-1, 2], np.float32))
    module = trace_module(Parts(), x)
    paths = ["one[0].relu_out", "several.1.relu_out", "sub_out"]
    module.set_watch_points(paths)
    loaded = again(module, tmp_path)
    assert loaded.watch_points == [loaded.graph.node(path) for path in paths]
    loaded(x), module(x)
    got, want = ([v.numpy().tolist() for v in m.watch_node_value.values()] for m in (loaded, module))
    assert got == want and len(got) == 3
    loaded.clear_watch_points()
    loaded.set_end_points(loaded.one.graphs[1].node("relu_out"))
    assert again(loaded, tmp_path)(x)[0].numpy().tolist() == [0, 2]


def test_a_point_that_was_taken_out_says_how_it_is_cleared(tmp_path):
    module = trace_module(M.Sequential(M.ReLU(), M.Sigmoid()), tensor(np.ones(3, np.float32)))
    module.set_watch_points(module.graph.outputs[0])
    module.graph.reset_outputs([module.graph.outputs[0].expr.inputs[1]])
    module.graph.compile()
    with pytest.raises(FileFormatError, match=r"is not a node of the module any more; take .* clear_watch_points\(\)"):
        again(module, tmp_path)
    module.clear_watch_points()
    again(module, tmp_path)


class Block(M.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = M.QuantStub(), M.DequantStub()
        self.conv, self.add = M.ConvBnRelu2d(3, 4, 3), M.Elemwise("FUSE_ADD_RELU")

    def forward(self, x):
        y = self.conv(self.quant(x))
        return self.dequant(self.add(y, y))


def test_quantized_layers_keep_their_state(tmp_path):
    x = tensor(np.random.default_rng(1).standard_normal((1, 3, 9, 9)).astype(np.float32))
    trained = Q.quantize_qat(Block())
    trained(x)
    trained.eval()
    integer = Q.quantize(trained)
    for module in (trace_module(trained, x), trace_module(integer, x)):
        loaded = again(module, tmp_path)
        assert type(loaded.conv) is type(module.conv)
        assert_same_results(loaded(x), module(x))
        assert [repr(m) for m in loaded.modules()][1:] == [repr(m) for m in module.modules()][1:]


@register_as_builtin
class Twice(M.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.factor, self.inner = factor, M.Linear(8, 8)

    def forward(self, x):
        return self.inner(x) * self.factor


class UsesTwice(M.Module):
    def __init__(self):
        super().__init__()
        self.twice = Twice(3.0)

    def forward(self, pair):
        return Pair(self.twice(pair.first), pair.second)


def test_classes_of_the_user_are_allowed_by_name(tmp_path):
    pair = Pair(tensor(X), tensor(X + 1))
    module = trace_module(UsesTwice().eval(), pair)
    loaded = again(module, tmp_path, allow=[Twice, Pair])
    assert type(loaded.twice) is Twice and loaded.twice.factor == 3.0
    assert type(loaded(pair)) is Pair
    assert_same_results(tuple(loaded(pair)), tuple(module(pair)))
    with pytest.raises(FileFormatError, match=r"Twice'.* not on the list of classes .* allow=\[TheClass\]"):
        files.load(tmp_path / "a.mgt")
    with pytest.raises(FileFormatError, match=r"Pair'; declare it .*, or pass it: allow=\[TheClass\]"):
        files.load(tmp_path / "a.mgt", allow=[Twice])


def test_wrapped_functions_are_found_where_they_were_wrapped(tmp_path):
    @wrap
    def doubled(x):
        return x * 2

    class Net(M.Module):
        def forward(self, x):
            return doubled(x)

    loaded = again(trace_module(Net(), tensor(X)), tmp_path)
    np.testing.assert_array_equal(loaded(tensor(X)).numpy(), X * 2)


def test_save_and_load_by_suffix(tmp_path):
    module = traced("res_plain")
    assert mge.save(module, str(tmp_path / "net.mgt")) == str(tmp_path / "net.mgt")
    loaded = mge.load(tmp_path / "net.mgt")
    assert listing(loaded) == listing(module)
    with (tmp_path / "net.mgt").open("rb") as file:
        assert listing(mge.load(file)) == listing(module)
    assert loaded.graph.undo() is False
    with loaded.graph.insert_exprs():
        loaded.graph.replace_node({loaded.graph.outputs[0]: loaded.graph.outputs[0] * 2})
    assert loaded.graph.undo()
    files.save(loaded, tmp_path / "undone.mgt")
    assert (tmp_path / "undone.mgt").read_bytes() == (tmp_path / "net.mgt").read_bytes()


def test_the_command_and_plans_take_it(tmp_path):
    module, path = traced("res_plain"), tmp_path / "net.mgt"
    files.save(module, path)
    assert listing(load_calls(str(path))) == listing(module)
    assert {e.kind for e in load_model(str(path)).graph.exprs()} == {"Input", "Constant", "Apply"}
    x = inputs_of("res_plain")[0]
    (found,) = plan.load(path)(x)
    np.testing.assert_allclose(found, module(tensor(x)).numpy(), rtol=1e-4, atol=1e-4)


def test_graphs_of_ops_stay_in_the_first_version(tmp_path):
    """The file was written by the program before it knew traced modules."""
    old = Path(__file__).parents[1] / "data" / "graphs" / "version1.mgt"
    loaded = mge.load(old)
    assert [e.kind for e in loaded.graph.exprs()] == ["Input", "Constant", "Apply", "Apply", "Apply", "Constant"]
    files.save(loaded, tmp_path / "a.mgt")
    assert (tmp_path / "a.mgt").read_bytes() == old.read_bytes()
    module = traced("res_plain")
    files.save(lower(module), tmp_path / "ops.mgt")
    files.save(module.graph, tmp_path / "graph.mgt")
    assert (tmp_path / "ops.mgt").read_bytes() == (tmp_path / "graph.mgt").read_bytes()


# ------------------------------------------------------------------ sizes


class Chain(M.Module):
    def __init__(self, length):
        super().__init__()
        self.length = length

    def forward(self, x):
        for _ in range(self.length):
            x = x + 1
        return x


def calls_of(run) -> int:
    """Calls of functions, Python's and C's, that a program makes."""
    count = 0

    def hear(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(hear)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("suffix", ["mgt", "tm"])
def test_a_long_chain_takes_work_in_proportion_to_its_length(suffix, tmp_path):
    counts = {}
    for length in (300, 1200):
        module, path = trace_module(Chain(length), tensor(X)), tmp_path / f"net.{suffix}"
        counts[length] = (calls_of(lambda: mge.save(module, path)), calls_of(lambda: mge.load(path)))  # noqa: B023
    for short, long in zip(counts[300], counts[1200], strict=True):
        assert long < 4.4 * short


def test_a_chain_of_ten_thousand(tmp_path):
    module = trace_module(Chain(10_000), tensor(X))
    files.save(module, tmp_path / "net.mgt")
    loaded = files.load(tmp_path / "net.mgt")
    assert len(loaded.graph.exprs()) == len(module.graph.exprs()) > 10_000
    assert loaded.graph.outputs[0].name == module.graph.outputs[0].name
    files.save(loaded, tmp_path / "again.mgt")
    assert (tmp_path / "again.mgt").read_bytes() == (tmp_path / "net.mgt").read_bytes()


# ------------------------------------------------------------------ wrong values, wrong files


def test_what_has_no_place_is_named_and_the_old_file_stays(tmp_path):
    path = tmp_path / "net.mgt"
    path.write_text("old")
    module = trace_module(Mixed().eval(), tensor(X))
    cases = [
        (lambda m: setattr(m.attention, "extra", print), r"attention\.extra is a builtin_function"),
        (lambda m: setattr(m.attention, "extra", m.attention), "contains itself"),
        (lambda m: m.attention.register_forward_hook(print), "has hooks"),
        (lambda m: m.register_forward_hook(print), "the module has hooks"),
        (lambda m: setattr(m.attention, "extra", np.array(["text"])), r"attention\.extra has elements of <U4"),
        (lambda m: m.graph.outputs[0].expr.meta.update(note=object()), r"note is a object"),
    ]
    for change, message in cases:
        module = trace_module(Mixed().eval(), tensor(X))
        change(module)
        with pytest.raises(mge.core.errors.MegEngineError, match=message):
            files.save(module, path)
    nested = []
    for _ in range(200):
        nested = [nested]
    module = trace_module(Mixed().eval(), tensor(X))
    module.attention.extra = nested
    with pytest.raises(FileFormatError, match="nested deeper than 100"):
        files.save(module, path)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def changed(tmp_path, change) -> Path:
    """A file whose graph.json was changed by a program, checksums right."""
    path = tmp_path / "a.mgt"
    files.save(traced("call_mix"), path)
    with zipfile.ZipFile(path) as archive:
        described, weights = json.loads(archive.read(files.GRAPH)), archive.read(archives.WEIGHTS)
    change(described)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(files.GRAPH, json.dumps(described))
        archive.writestr(archives.WEIGHTS, weights)
    return path


def of_kind(described, kind):
    return next(e for m in described["modules"] for g in m.get("graphs", ()) for e in g["exprs"] if e["kind"] == kind)


def graph_of(described):
    return described["modules"][0]["graphs"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=3), "version is 3; .*written by a newer megengine"),
        (lambda d: d.update(version="2"), "version is '2'"),
        (lambda d: d["layers"][0].update(type="subprocess.Popen"), "'subprocess.Popen', which is not on the list"),
        (lambda d: d["layers"][0].update(type="megengine.tensor.Tensor", state={}), "without an array"),
        (lambda d: d["layers"][0]["state"].update(forward=1), "with an attribute 'forward'"),
        (lambda d: d["layers"][0]["state"].update(__class__=1), "with an attribute '__class__'"),
        (lambda d: of_kind(d, "CallMethod").update(method="__class__"), "no such method"),
        (lambda d: of_kind(d, "CallFunction").update(function="os.system"), "unknown function 'os.system'"),
        (lambda d: of_kind(d, "GetAttr").update(attribute="__init__.x"), "not the name of a submodule"),
        (lambda d: of_kind(d, "GetAttr").update(attribute=""), "'' is not a path of submodules; one of its names is"),
        (lambda d: of_kind(d, "GetAttr").update(attribute="a..b"), r"'a\.\.b' is not a path of submodules"),
        (lambda d: of_kind(d, "GetAttr").update(attribute="nothing"), "has no attribute 'nothing'"),
        (lambda d: of_kind(d, "Apply").update(op="Popen"), "unknown op"),
        (lambda d: of_kind(d, "Input").update(kind="Odd"), "unknown kind 'Odd'"),
        (lambda d: d["modules"][0]["state"].update(_graphs=1), "'_graphs' is not the name"),
        (lambda d: d["modules"][0]["state"].update(__class__={"layer": 0}), "'__class__' is not the name"),
        (lambda d: d["modules"][0]["state"].update(training=3), "'training' of a module is 3"),
        (lambda d: d["modules"][0]["state"].update(x={"module": 99}), "index out of range"),
        (lambda d: d["modules"][0]["state"].update(x={"module": -1}), "-1 where a number"),
        (lambda d: d["modules"][0]["state"].update(x={"tensor": True}), "True where a number from 0 on"),
        (lambda d: d["modules"][0]["state"].update(x={"a": 1, "b": 2}), "expected one tag"),
        (lambda d: d["modules"][0]["state"].update(x={"code": 1}), "unknown kind 'code'"),
        (lambda d: d["modules"][0]["state"].update(x={"type": "os.PathLike"}), "names the class 'os.PathLike'"),
        (lambda d: d["modules"][0]["state"].update(x={"function": "os.system"}), "unknown function 'os.system'"),
        (lambda d: d["modules"][0]["state"].update(x={"array": ["gain", "float32"]}), "missing, or stands in two"),
        (lambda d: d["modules"][0]["state"].update(x={"dict": [[{"tuple": [{"tuple": []}]}, 1]]}), "nested tuple"),
        (lambda d: d["tensors"][0].update(array="none"), "'none' is missing"),
        (lambda d: d["tensors"][0].update(dtype="int8"), "expected int8"),
        (lambda d: graph_of(d)["outputs"].clear(), "not made of its outputs|returns nothing"),
        (lambda d: graph_of(d).update(outputs=["self"]), "returns a module; expected tensors"),
        (lambda d: graph_of(d)["inputs"].reverse(), "not its inputs in order|those of its expressions"),
        (lambda d: graph_of(d)["inputs"].pop(), "are not those of its expressions"),
        (lambda d: graph_of(d)["exprs"][-1]["outputs"][0].update(name="self"), "names two nodes"),
        (lambda d: graph_of(d)["exprs"][-1]["outputs"][0].update(name="a b"), "is no name"),
        (lambda d: graph_of(d)["exprs"][-1]["outputs"][0].update(shape=[-1]), "-1 where a number"),
        (lambda d: graph_of(d)["exprs"][-1]["outputs"][0].pop("shape"), "is a module; only attributes"),
        (lambda d: graph_of(d)["exprs"].reverse(), "not consistent"),
        (lambda d: d["modules"][0]["graphs"].append(graph_of(d)), "take the same arguments"),
        (lambda d: d["modules"].clear(), "holds no module"),
        (lambda d: d["modules"][0]["graphs"].clear(), "has no graph"),
        (lambda d: d.pop("counters"), "not consistent"),
        (lambda d: d["modules"][0].update(watch_points=[[0, "self"]]), "a node that is no tensor"),
    ],
)
def test_inconsistent_files(tmp_path, change, message):
    with pytest.raises(FileFormatError, match=message) as caught:
        files.load(changed(tmp_path, change))
    assert "a.mgt" in str(caught.value)


def test_json_that_nests_without_end(tmp_path):
    path = changed(tmp_path, lambda d: None)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(files.GRAPH, "[" * 100_000)
        archive.writestr(archives.WEIGHTS, b"")
    with pytest.raises(FileFormatError, match="damaged or not a graph file"):
        files.load(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(files.GRAPH, "[[],[]," * 1_000_000)
        archive.writestr(zipfile.ZipInfo(archives.WEIGHTS), b"")
    with pytest.raises(FileFormatError, match="unpacks to 7000000 bytes; refused"):
        files.load(path)


def test_random_damage_is_one_error_or_a_module(tmp_path):
    path, rng = tmp_path / "a.mgt", random.Random(5)
    for name in ("multi_io", "call_mix"):
        files.save(traced(name), path)
        with zipfile.ZipFile(path) as archive:
            text, weights = archive.read(files.GRAPH), archive.read(archives.WEIGHTS)
        for _ in range(100):
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(files.GRAPH, damaged_bytes(text, rng))
                archive.writestr(archives.WEIGHTS, weights)
            try:
                repr(files.load(path))
            except FileFormatError as error:
                assert str(path) in str(error)


def test_a_file_does_not_hide_what_a_module_does(tmp_path):
    """Layers under names of methods are kept, and the methods are what is called."""

    def add(described):
        described["modules"][0]["state"].update(forward={"layer": 0}, run={"layer": 0}, state_dict={"layer": 0})

    again = files.load(changed(tmp_path, add))
    assert isinstance(object.__getattribute__(again, "__dict__")["forward"], M.Module)
    assert again.forward.__func__ is TracedModule.forward and not isinstance(again.state_dict, M.Module)
