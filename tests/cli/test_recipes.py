"""A file sets what options set; keys and values that a command does not have are wrong usage; a result is repeated."""

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from megengine.cli.app import COMMANDS, group
from megengine.cli.recipes import settable
from megengine.cli.records import METADATA
from megengine.traced_module.formats import native
from tests.helpers.command import call


@pytest.fixture
def folder(tmp_path, model, monkeypatch):
    """Arrays, the little network, and a recipe."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.standard_normal((12, 3, 16, 16)).astype(np.float32))
    (tmp_path / "net.onnx").write_bytes(model.read_bytes())
    (tmp_path / "r.toml").write_text(
        '[ptq]\nmodel = "net.onnx"\ndata = "x.npy"\nexclude = "op:matmul"\nbias-correction = false\noutput = "q.mgt"\n'
        '[bench]\nmodels = ["q.mgt", "net.onnx"]\nrounds = 1\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_sets_arguments_options_and_flags_and_options_replace_it(folder):
    found = json.loads(call("ptq", "--recipe", "r.toml", "--onnx", "q.onnx", "--json"))
    kept = found["record"]["recipe"]
    assert (kept["exclude"], kept["bias-correction"], kept["effort"]) == (["op:matmul"], False, "fast")
    assert found["written"] == ["q.mgt", "q.onnx"] and found["floating"][0]["op"] == "matmul"
    assert len(json.loads(call("bench", "--recipe", "r.toml", "--json"))["models"]) == 2
    changed = json.loads(call("ptq", "--recipe", "r.toml", "--bias-correction", "-o", "other.mgt", "--json"))
    assert changed["record"]["recipe"]["bias-correction"] is True and changed["written"] == ["other.mgt"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ptq]\nexclud = 'a'", "ptq has no option 'exclud'; did you mean 'exclude'?"),
        ("[ptq]\neffort = 'balansed'", "did you mean 'balanced'?"),
        ("[ptq]\neffort = ['fast']", "effort is ['fast']; expected a single value"),
        ("[ptq]\nsamples = true", "samples is True; expected a whole number"),
        ("[ptq]\nsamples = 2.5", "samples is 2.5; expected a whole number"),
        ("[ptq]\nequalize = 7", "equalize is 7; expected true or false"),
        ("[ptq]\nequalize = 'maybe'", "'maybe' is not a valid boolean"),
        ("[ptq]\npercentile = true", "percentile is True; expected a number"),
        ("[ptq]\nexclude = ['a', true]", "exclude is True; expected text"),
        ("[ptq]\neffort = 2024-01-01", "effort is datetime.date(2024, 1, 1); expected text"),
        ("[ptq]\nonnx = 5", "onnx is 5; expected a path"),
        ("[ptq]\nheld-out = -1", "-1 is not in the range x>=0"),
        ("ptq = 3", "ptq is 3; expected a table [ptq]"),
        ("[verify]\n", "no table [ptq], it holds [verify]"),
        ("", "no table [ptq], it holds nothing"),
        ("[ptq", "not a TOML file"),
    ],
)
def test_a_wrong_file_is_wrong_usage(text, message, folder):
    (folder / "bad.toml").write_text(text)
    said = call("ptq", "net.onnx", "--data", "x.npy", "-o", "q.mgt", "--recipe", "bad.toml", code=2)
    assert message in " ".join(said.split())
    assert not (folder / "q.mgt").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("qat --seed -1", "-1 is not in the range x>=0"),
        ("qat --lr nan", "nan is no finite number"),
        ("search --max-mb inf", "inf is no finite number"),
        ("search --min-sqnr nan", "nan is no finite number"),
        ("ptq --percentile inf", "inf is not in the range 50<x<=100"),
        ("ptq --percentile nan", "nan is no finite number"),
        ("search --min-sqnr inf", "inf is no finite number"),
    ],
)
def test_numbers_that_cannot_be_are_wrong_usage(line, message, folder):
    assert message in call(*line.split(), "net.onnx", "--data", "x.npy", "-o", "q.mgt", code=2)


def test_every_command_but_edit_takes_a_file():
    import click

    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert any("--recipe" in p.opts for p in command.params) == (name != "edit"), name
        assert all(p.name not in ("as_json", "debug") for p in settable(command).values())


@pytest.mark.parametrize("kind", ["mgt", "onnx"])
def test_a_result_is_repeated_to_the_same_bytes_from_files_at_another_place(kind, folder):
    call("ptq", "--recipe", "r.toml", "--onnx", "q.onnx")
    (folder / "moved").mkdir()
    for name in ("net.onnx", "x.npy"):
        (folder / name).rename(folder / "moved" / name)
    places = ("--model", "moved/net.onnx", "--data", "moved/x.npy")
    found = json.loads(call("replay", f"q.{kind}", "-o", f"again.{kind}", *places, "--json"))
    assert found["same"] and (folder / f"again.{kind}").read_bytes() == (folder / f"q.{kind}").read_bytes()
    assert METADATA in {entry.key for entry in onnx.load("q.onnx").metadata_props}


def test_processes_make_no_difference(folder):
    """The number of processes, and of threads, is no part of a result."""
    call("ptq", "net.onnx", "--data", "x.npy", "-o", "q.mgt")
    call("ptq", "net.onnx", "--data", "x.npy", "-o", "two.mgt", "--workers", "2")
    assert (folder / "q.mgt").read_bytes() == (folder / "two.mgt").read_bytes()
    assert "the same bytes as q.mgt" in call("replay", "q.mgt", "-o", "again.mgt", "--workers", "2")
    call("qat", "net.onnx", "--data", "x.npy", "-o", "t.mgt", "--epochs", "1")
    error = call("replay", "t.mgt", "-o", "again.mgt", "--workers", "2", "--overwrite", code=1)
    assert "workers: qat made this model, which runs in one process" in error


def test_other_data_and_another_model_are_refused(folder):
    call("ptq", "--recipe", "r.toml")
    np.save(folder / "y.npy", np.load("x.npy") + 1)
    assert "the data differs from what the record was made with" in call(
        "replay", "q.mgt", "-o", "again.mgt", "--data", "y.npy", code=1
    )
    assert not (folder / "again.mgt").exists()


def test_a_result_of_another_version_is_repeated_with_a_warning(folder):
    call("ptq", "--recipe", "r.toml")
    made = native.load("q.mgt")
    record = json.loads(made.graph.metadata[METADATA])
    record["versions"]["numpy"] = "0.1"
    made.graph.metadata[METADATA] = json.dumps(record, sort_keys=True)
    native.save(made, "q.mgt")
    done = CliRunner().invoke(group, ["replay", "q.mgt", "-o", "again.mgt"])
    assert done.exit_code == 1 and "warning: made with other versions (numpy 0.1, now" in done.stdout
    assert "other bytes than q.mgt" in done.stderr


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (None, "stores no record of its making"),
        ("{", "its record is damaged"),
        ('{"command": "ptq"}', "its record is damaged (command, recipe, versions, counts, digests are expected)"),
        (
            '{"command": "ptk", "recipe": {}, "versions": {}, "counts": {}, "digests": {}}',
            "names the command 'ptk'; did you mean 'ptq'?",
        ),
    ],
)
def test_what_cannot_be_repeated_is_refused(record, message, folder):
    call("ptq", "--recipe", "r.toml")
    made = native.load("q.mgt")
    del made.graph.metadata[METADATA]
    made.graph.metadata.update({} if record is None else {METADATA: record})
    native.save(made, "bad.mgt")
    for output in ("again.mgt", "nowhere/again.mgt"):  # the record comes first
        assert message in call("replay", "bad.mgt", "-o", output, code=1)
