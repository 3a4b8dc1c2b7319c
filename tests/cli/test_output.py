"""Files appear whole or not at all; hostile text is made printable."""

import json
import stat
from pathlib import Path

import pytest

from megengine.cli.output import Output, OutputError, output_file, printable
from megengine.core.errors import WriteError
from megengine.core.files import replacing


def test_the_file_appears_only_at_the_end(tmp_path):
    target = tmp_path / "a.svg"
    target.write_text("old")
    with output_file(target) as temporary:
        assert temporary.suffix == ".svg" and temporary.parent == tmp_path
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_a_failure(tmp_path, error):
    with pytest.raises(error), output_file(tmp_path / "a.svg") as temporary:
        temporary.write_text("half")
        raise error
    assert not list(tmp_path.iterdir())


def test_a_new_file_has_ordinary_permissions(tmp_path):
    with output_file(tmp_path / "a") as temporary:
        temporary.touch()
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) & 0o600 == 0o600


@pytest.mark.parametrize(
    ("path", "message"),
    [("none/a.svg", "the folder .*none does not exist"), (".", "is a folder"), ("file/x", "folder")],
)
def test_paths_that_cannot_be_written(tmp_path, path, message):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=message), output_file(tmp_path / path):
        pytest.fail("the body must not run")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_file_that_cannot_be_written_is_named(tmp_path):
    """A state beside the output, for example."""
    named = pytest.raises(WriteError, match="^/dev/full: cannot be written")
    with named, output_file(tmp_path / "a"), replacing("/dev/full") as file:
        file.write(b"x")
    with pytest.raises(OutputError, match="^output .*/a: cannot be written"), output_file(tmp_path / "a") as temporary:
        temporary.unlink()
        temporary.symlink_to("/dev/full")
        with replacing(temporary) as file:
            file.write(b"x")


def test_text_from_files_cannot_steer_the_terminal(capsys):
    assert printable("a\x1b[31mb\x07é\n") == "a\\x1b[31mb\\x07é\n"
    out = Output(as_json=False)
    out.say("[red]x[/red]\x1b[0m")
    out.table("t[b]", ("a", "b"), [("[bold]n\x1b", 1.0), ("m", None)])
    shown = capsys.readouterr().out
    assert "[red]x[/red]\\x1b[0m" in shown and "[bold]n\\x1b" in shown and "\x1b" not in shown


@pytest.mark.parametrize("width", [24, 40, 60, 80])
def test_a_narrow_table_breaks_no_word(capsys, monkeypatch, width):
    """Where its columns do not fit side by side, each row stands on lines of its own."""
    monkeypatch.setenv("COLUMNS", str(width))
    columns = ("layer", "op", "SQNR dB", "noise from")
    rows = [("body_conv_relu_out", "conv2d", 35.92, "weights and edges before"), ("x", "input", None, "its own steps")]
    Output(as_json=False).table("t", columns, rows)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width + 1 for line in lines), lines
    words = " ".join(lines).replace(",", " ").split()
    expected = ("body_conv_relu_out", "conv2d", "35.92", "SQNR", "noise", "weights", "before", "input", "-", "steps")
    assert {*expected} <= {*words}
    assert ("op conv2d" in " ".join(" ".join(lines).split())) == (width < 60)


def test_json_has_only_the_result_on_stdout(capsys):
    out = Output(as_json=True)
    out.say("note")
    out.table("t", ("a",), [(1,)])
    out.result({"x": None, "y": 1.5})
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"x": None, "y": 1.5}
    assert "note" in shown.err
