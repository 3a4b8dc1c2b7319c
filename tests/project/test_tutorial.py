"""The tutorial runs as it is printed, Python and commands in their order, in an empty folder."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from megengine.cli.app import group

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()


def blocks():
    """(kind, text) of each block: a module that others import, a program, or lines of the command."""
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        if language == "python":
            yield ("module" if text.startswith('"""') else "program"), text
        elif text.startswith("mge-quantize"):
            yield "commands", text


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tutorial_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    kinds = [kind for kind, _ in blocks()]
    assert kinds.count("program") == 3 and kinds.count("commands") == 7
    for kind, text in blocks():
        if kind == "module":
            (tmp_path / "figures.py").write_text(text)
        elif kind == "program":
            exec(compile(text, "program", "exec"), {"__name__": "program"})
        else:
            for line in text.splitlines():
                done = CliRunner().invoke(group, shlex.split(line)[1:])
                assert done.exit_code == 0, (line, done.output, done.exception)
    sys.modules.pop("figures")
