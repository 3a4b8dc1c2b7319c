"""The examples of the documents run: each alone, and all of a page one after the other."""

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from megengine.core import effectless

PROJECT = Path(__file__).parent.parent.parent
PAGES = ["README.md", "docs/names.md", "docs/traced-module.md"]


def snippets(page):
    return re.findall(r"```python\n(.*?)```", (PROJECT / page).read_text(), re.DOTALL)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs snippets in one namespace, in a folder from which they can import what they write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))  # what a snippet wrote before is no longer imported
    monkeypatch.setattr(effectless, "_told", set())  # what was warned of once

    def call(given):
        namespace: dict = {"__name__": "snippet"}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for snippet in given:
                exec(snippet, namespace)

    return call


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run_one_after_the_other(run, page):
    assert snippets(page)
    run(snippets(page))


@pytest.mark.parametrize(("page", "at"), [(page, i) for page in PAGES for i in range(len(snippets(page)))])
def test_an_example_runs_alone(run, page, at):
    run([snippets(page)[at]])


def test_the_picture_of_the_readme_is_what_its_script_draws(tmp_path):
    script = PROJECT / "docs" / "pictures" / "quantized.py"
    subprocess.run([sys.executable, script, tmp_path / "new.svg"], check=True)
    numbers = re.compile(r"\(0\.\d+")  # scales: random numbers and sums may differ from one machine to another
    old, new = (numbers.sub("(", path.read_text()) for path in (script.with_suffix(".svg"), tmp_path / "new.svg"))
    assert old == new


def test_what_the_page_of_graphs_has_to_show():
    """How values are found by path, cuts with their import, inputs that are dropped, operators in patterns."""
    text = "".join(snippets("docs/traced-module.md"))
    for shown in (
        "graph.node(",
        "editing.extracting import drop_unused_inputs, extract",
        "drop_unused_inputs(",
        'call("+"',
    ):
        assert shown in text, shown
