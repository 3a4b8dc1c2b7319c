"""Every line of `mge-quantize` in the documents and in the examples of `--help` runs, in the order of the pages."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from PIL import Image

import megengine as mge
import megengine.functional as F
from megengine import models
from megengine.cli.app import COMMANDS, group
from megengine.traced_module import trace_module

ROOT = Path(__file__).resolve().parents[2]
PAGES = {page: (ROOT / page).read_text() for page in ("README.md", "docs/command.md")}


def help_of(name):
    return re.sub(r"^  mge", "mge", group.get_command(click.Context(group), name).epilog or "", flags=re.MULTILINE)


def lines():
    texts = [*PAGES.values(), *map(help_of, COMMANDS)]
    return [line for text in texts for line in re.findall(r"^(?:\$ )?mge-quantize (.*)", text, re.MULTILINE)]


@pytest.fixture(scope="module")
def folder(little, tmp_path_factory):
    """The files of which the lines speak: networks, photographs, a second copy of a network."""
    made = tmp_path_factory.mktemp("documented")
    for name in ("model.onnx", "net.onnx"):
        onnx.save(little(), made / name)
    (made / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(4):
        Image.fromarray(rng.integers(0, 256, (24, 24, 3), np.uint8)).save(made / "photos" / f"{i}.png")
    np.save(made / "x.npy", rng.standard_normal((4, 3, 16, 16)).astype(np.float32))
    traced = trace_module(models.resnet18().eval(), F.zeros((1, 3, 64, 64)))
    for name in ("net.tm", "copy.tm", "other-copy.tm", "net.mgt"):
        mge.save(traced, made / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        assert CliRunner().invoke(group, ["ptq", "net.onnx", "--data", "x.npy", "-o", "int8.mgt"]).exit_code == 0
    return made


@pytest.mark.slow
def test_every_documented_line_runs(folder, monkeypatch):
    monkeypatch.chdir(folder)
    seen = [line for line in dict.fromkeys(lines()) if line.split()[0] != "demo"]  # it fetches networks
    assert len(seen) > 12
    for line in seen:
        words = shlex.split(line, comments=True)
        done = CliRunner().invoke(group, words)
        differs = words[0] == "diff" and done.exit_code == 1  # as of the program diff
        assert done.exit_code == 0 or differs, (line, done.output, done.exception)
        for option, target in pairwise(words):
            if option in ("-o", "--report", "--save-log"):
                assert Path(target).stat().st_size > 0, line
