"""One thing is named in the singular, several in the plural."""

import re
from pathlib import Path

from megengine.cli.output import Output

CLI = Path(__file__).resolve().parents[2] / "cli"


def test_no_message_leaves_the_choice_to_its_reader():
    for path in CLI.glob("*.py"):
        assert not re.search(r"[a-z]\(s\)", path.read_text()), path.name


def test_a_title_longer_than_its_table_is_one_line(capsys):
    Output(as_json=False).table("CPU time, 2 threads, median of 2 rounds", ("model", "ms"), [("net", 1)])
    assert capsys.readouterr().out.startswith("CPU time, 2 threads, median of 2 rounds\n")


def test_one_layer_one_thread_one_round(run, tmp_path):
    (tmp_path / "net.py").write_text("import megengine.module as M\ndef build(): return M.ReLU()\n")
    shape = ("--input-shape", "1,3")
    assert "\n1 layer: 1 relu\n" in run("inspect", "net.py:build", *shape, cwd=tmp_path).stdout
    assert "1 of 1 layer matches" in run("inspect", "net.py:build", *shape, "--find", "relu*", cwd=tmp_path).stdout
    shown = run("bench", "net.py:build", *shape, "--rounds", "1", cwd=tmp_path).stdout
    assert "1 thread, median of 1 round" in shown
    shown = run("bench", "net.py:build", *shape, "--rounds", "2", "--threads", "2", cwd=tmp_path).stdout
    assert "2 threads, median of 2 rounds" in shown
