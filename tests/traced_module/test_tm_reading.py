"""`.tm` files that MegEngine 1.13 wrote: same nodes, same outputs, and nothing in a file is run."""

import pickle
import pickletools
import random
import struct

import numpy as np
import pytest
from damage import damaged_bytes
from megengine_graphs import DATA, FILES, check, inputs_of, leaves, listing, wanted, without_ids

import megengine as mge
import megengine.functional as F
from megengine.core.errors import FileFormatError, MegEngineError
from megengine.serialization.pickles import Global, Record, read_records
from megengine.tensor import tensor
from megengine.traced_module import TracedModule
from megengine.traced_module.formats import tm_reading
from megengine.traced_module.formats.tm_reading import read_tm


def outputs_of(name: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"{name}.npz") as stored:
        return {k: stored[k] for k in stored.files if k.startswith("out")}


def flat_outputs(value, path="out") -> dict[str, np.ndarray]:
    if isinstance(value, dict):
        return {k: v for name, x in value.items() for k, v in flat_outputs(x, f"{path}.{name}").items()}
    if isinstance(value, (list, tuple)):
        return {k: v for i, x in enumerate(value) for k, v in flat_outputs(x, f"{path}.{i}").items()}
    return {path: value.numpy()}


LISTED_BEFORE = {"res_plain_opt"}  # it was edited; loading gives new ids, and the listing has those of before


def ids(items) -> list[int]:
    return [item.id for item in items]


def test_ids_of_a_loaded_graph_are_in_its_order(tmp_path):
    edited = mge.load(DATA / "res_plain_opt.tm")
    # as MegEngine 1.13 numbers what it loads
    assert ids(edited.graph._exprs) == [2, 3, 10, 11, 24, 25, 42, 43, 56, 57, 58, 59, 60]
    node = edited.graph.get_node_by_name("pool_out").as_unique()
    with edited.graph.insert_exprs():
        double = node * 2
    edited.graph.replace_node({node: double})
    assert double.expr.id == 61
    mge.save(edited, tmp_path / "edited.tm")
    loaded = mge.load(tmp_path / "edited.tm")
    assert loaded.graph.get_node_by_name("mul_out").as_unique().expr.id == 58
    assert ids(loaded.graph.exprs()) == list(range(62))
    with loaded.graph.insert_exprs():
        assert F.exp(loaded.graph.outputs[0]).expr.id == 62


@pytest.mark.parametrize("name", FILES)
def test_a_file_gives_its_nodes_and_outputs(name):
    traced = mge.load(DATA / f"{name}.tm")
    assert isinstance(traced, TracedModule)
    traced.graph.lint()
    if name in LISTED_BEFORE:
        assert without_ids(listing(traced)) == without_ids(wanted(name))
    else:
        check(traced, name, corrected_edge=False)
    got, want = flat_outputs(traced(*map(tensor, inputs_of(name)))), outputs_of(name)
    assert got.keys() == want.keys()
    for key, value in want.items():
        np.testing.assert_allclose(got[key], value, rtol=0, atol=1e-5 * max(np.abs(value).max(), 0.1))


def test_a_loaded_module_is_edited_and_flattened_as_others_are():
    traced = mge.load(DATA / "res_plain.tm")
    flat = traced.flatten()
    check(flat, "res_plain_flat")
    x = tensor(inputs_of("res_plain")[0])
    np.testing.assert_array_equal(flat(x).numpy(), traced(x).numpy())
    node = traced.graph.get_node_by_name("flatten_out").as_unique()
    with traced.graph.insert_exprs():
        traced.graph.replace_node({node: node * 2})
    assert not np.array_equal(flat(x).numpy(), traced(x).numpy())
    assert traced.graph.undo()
    np.testing.assert_array_equal(flat(x).numpy(), traced(x).numpy())


def edited(name: str, old: bytes, new: bytes) -> bytes:
    """A file with a name replaced by another one of the same length."""
    content = (DATA / f"{name}.tm").read_bytes()
    assert len(old) == len(new) and old in content
    return content.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"transpose", b"__class__", "tensor method '__class__', unknown here"),
        (b"\x07reshape", b"\x07reshapo", "'reshapo', unknown here; did you mean 'reshape'"),
        (b"\x07softmax", b"\x07softmox", "unknown function 'megengine.functional.nn.softmox'; did you mean"),
        (b"megengine.functional.nn", b"subprocess.functionals.", "unknown function"),
        (b"branches.0", b"__init__.0", "not the name of a submodule"),
        (b"megengine.module.conv", b"megengine.module.conx", "not on the list of names"),
        (b"GetVarShape", b"GetVarShapo", "has no counterpart here"),
    ],
)
def test_names_are_only_looked_up(tmp_path, old, new, message):
    (tmp_path / "net.tm").write_bytes(edited("call_mix", old, new))
    with pytest.raises(FileFormatError, match=message):
        mge.load(tmp_path / "net.tm")


def test_a_file_cannot_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    evil = pickle.dumps(Evil(), 4)[2:-1]
    content = (DATA / "call_mix.tm").read_bytes()
    (tmp_path / "net.tm").write_bytes(content[:2] + evil + b"0" + content[2:])
    with pytest.raises(MegEngineError):  # framing is off, or the name is refused: never run
        mge.load(tmp_path / "net.tm")
        raise FileFormatError("dropped unbuilt")
    assert not (tmp_path / "ran").exists()


def fuzz(tmp_path, count: int, seed: int) -> None:
    """Damaged files give one of our errors, or a module that still runs or refuses to."""
    rng = random.Random(seed)
    sources = [(DATA / f"{n}.tm").read_bytes() for n in ("multi_io", "call_mix")]
    for _ in range(count):
        path = tmp_path / "fuzzed.tm"
        path.write_bytes(damaged_bytes(rng.choice(sources), rng))
        try:
            traced = mge.load(path)
        except MegEngineError:
            continue
        if isinstance(traced, TracedModule):
            repr(traced)


def test_damaged_files_are_refused(tmp_path):
    fuzz(tmp_path, 150, seed=3)


def test_truncated_files_are_refused(tmp_path):
    content = (DATA / "multi_io.tm").read_bytes()
    for length in range(0, len(content), 997):
        (tmp_path / "cut.tm").write_bytes(content[:length])
        with pytest.raises(FileFormatError):
            mge.load(tmp_path / "cut.tm")


def records_of(name: str):
    """The records of a file, and those of its expressions that are calls of functions."""
    with (DATA / f"{name}.tm").open("rb") as file:
        root = read_records(file)
    graph = next(iter(root.state["argdef_graph_map"].values()))
    return root, [e for e in graph.state["_exprs"] if str(e.target).endswith(".CallFunction")]


def test_arguments_that_double_at_every_level_are_refused(monkeypatch):
    monkeypatch.setattr(tm_reading, "_MOST_PARTS", 10_000)
    root, calls = records_of("call_mix")
    definition = calls[0].state["arg_def"]
    for _ in range(80):
        pair = {"type": Global("builtins", "tuple"), "aux_data": None, "children_defs": [definition, definition]}
        definition = Record(definition.target, (), pair)
    calls[0].state["arg_def"] = definition
    with pytest.raises(FileFormatError, match="its parts are shared without end"):
        read_tm(root)


def test_an_expression_stands_in_one_place():
    root, calls = records_of("call_mix")
    graph = next(iter(root.state["argdef_graph_map"].values()))
    graph.state["_exprs"].append(calls[0])
    with pytest.raises(FileFormatError, match="CallFunction stands in two places"):
        read_tm(root)
    root, calls = records_of("call_mix")
    calls[1].state["outputs"] = calls[0].state["outputs"]
    with pytest.raises(FileFormatError, match="TensorNode stands in two places"):
        read_tm(root)


def test_a_record_where_a_name_is_expected_is_not_printed_whole():
    """Nodes and expressions refer to each other: printing one of them would print the whole file, many times."""
    for place in ("func", "arg_def"):
        root, calls = records_of("call_mix")
        calls[-1].state[place] = (root, root) if place == "func" else root
        with pytest.raises(FileFormatError) as caught:
            read_tm(root)
        assert len(str(caught.value)) < 300


def test_the_fuzzer_can_find_something():
    """The pickles are real ones: their opcodes are known to Python's own tools."""
    content = (DATA / "multi_io.tm").read_bytes()
    assert sum(1 for _ in pickletools.genops(content)) > 1000
    assert struct.unpack("<B", content[1:2]) == (4,)
    assert len(leaves([1, (2, 3)])) == 3
