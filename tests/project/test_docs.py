"""The examples of the documents run."""

import re
import warnings
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("name", ["README.md", "docs/names.md", "docs/traced-module.md"])
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # what an example writes, the next may import
    blocks = re.findall(r"```python\n(.*?)```", (PROJECT / name).read_text(), re.DOTALL)
    assert blocks
    namespace: dict = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks:
            exec(block, namespace)
