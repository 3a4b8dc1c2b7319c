"""`draw --module PATH` draws the submodule or the calls at a path, from files of calls and of ops."""

import json
import re
import shlex

import numpy as np
import pytest
from click.testing import CliRunner

import megengine.module as M
from megengine.cli.app import group
from megengine.convert import onnx
from megengine.models import resnet18
from megengine.tensor import tensor
from megengine.traced_module import lower, save_tm, trace_module


class Twice(M.Module):
    """A part that is called with two kinds of arguments, so it has two graphs."""

    def __init__(self):
        super().__init__()
        self.part = Part()

    def forward(self, x):
        return self.part(x, None) + self.part(x, x)


class Part(M.Module):
    def forward(self, x, y):
        return x if y is None else x * y


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("parts")
    traced = trace_module(resnet18().eval(), tensor(np.zeros((1, 3, 32, 32), np.float32)))
    save_tm(traced, path / "net.tm")
    onnx.export(lower(traced), path / "net.onnx")
    save_tm(trace_module(Twice(), tensor(np.ones((2, 2), np.float32))), path / "twice.tm")
    return path


def draw(folder, *words):
    return CliRunner().invoke(group, ["draw", *map(str, words), "--overwrite"], catch_exceptions=False)


def page_of(folder, *words):
    done = draw(folder, *words, "-o", folder / "part.html")
    assert done.exit_code == 0, done.stderr
    return json.loads(re.search(r'id="data">(.*?)</script>', (folder / "part.html").read_text(), re.S)[1])


@pytest.mark.parametrize("path", ["layer2", "layer2.1", "layer2.0.downsample"])
def test_calls_of_a_submodule(folder, path):
    page = page_of(folder, folder / "net.tm", "--module", path)
    assert page["graphs"][0]["name"] == f"ResNet.{path}"
    paths = [node["path"] for sheet in page["graphs"] for node in sheet["nodes"] if node["kind"] != "input"]
    assert paths and all(one == path or one.startswith(f"{path}.") for one in paths)


@pytest.mark.parametrize("words", [["net.tm", "--ops"], ["net.onnx"]], ids=["tm", "onnx"])
@pytest.mark.parametrize(
    ("path", "convolutions"), [("layer2", 5), ("layer2.1", 2), ("layer2.0.downsample", 1), ("conv1", 1)]
)
def test_ops_at_a_path(folder, words, path, convolutions):
    page = page_of(folder, folder / words[0], *words[1:], "--module", path)
    titles = [node["title"] for sheet in page["graphs"] for node in sheet["nodes"]]
    assert sum("conv2d" in title for title in titles) == convolutions


@pytest.mark.parametrize("words", [["net.tm"], ["net.tm", "--ops"], ["net.onnx"]], ids=["tm", "ops", "onnx"])
@pytest.mark.parametrize(
    ("pattern", "layers"), [("layer?.0.conv1", 4), ("layer*.downsample.0", 3), ("layer2.*", 5), ("*.conv1", 8)]
)
def test_a_pattern_of_paths(folder, words, pattern, layers):
    page = page_of(folder, folder / words[0], *words[1:], "--module", pattern)
    titles = [node["title"].lower() for sheet in page["graphs"] for node in sheet["nodes"]]
    assert sum("conv2d" in title for title in titles) == layers


@pytest.mark.parametrize(
    ("words", "value", "titles"),
    [
        (["net.tm"], "layer2.1.relu_out", ["input", "relu"]),
        (["net.tm"], "relu_out", ["input", "relu"]),
        (["net.tm"], "ResNet.layer2.0.[method_add]", ["input", "input", "add"]),
        (["net.onnx"], "layer2_1_relu_out", ["input", "relu"]),
    ],
)
def test_the_call_that_makes_a_value(folder, words, value, titles):
    (sheet,) = page_of(folder, folder / words[0], *words[1:], "--module", value)["graphs"]
    assert [node["title"] for node in sheet["nodes"]] == titles


def test_a_layer_is_drawn_as_its_call(folder):
    (sheet,) = page_of(folder, folder / "net.tm", "--module", "layer2.0.conv1")["graphs"]
    assert [node["title"] for node in sheet["nodes"]] == ["input", "Conv2d"]


@pytest.mark.parametrize("suffix", [".svg", ".dot"])
def test_pictures_take_a_path_too(folder, suffix):
    assert draw(folder, folder / "net.tm", "-o", folder / f"a{suffix}", "--module", "layer1.0").exit_code == 0
    text = (folder / f"a{suffix}").read_text()
    assert "conv1_out" in text and "maxpool" not in text


@pytest.mark.parametrize("name", ["net.tm", "net.onnx"])
def test_an_unknown_path_is_refused_with_the_nearest(folder, name):
    done = draw(folder, folder / name, "-o", folder / "b.svg", "--module", "layer2.conv")
    assert (
        done.exit_code == 1
        and "--module 'layer2.conv': " in done.stderr
        and "has no module and no value there; " in done.stderr
    )
    assert "did you mean 'layer2." in done.stderr and not (folder / "b.svg").exists()
    (line,) = re.findall(r"; `mge-quantize (inspect .*)` lists them", done.stderr)
    listed = CliRunner().invoke(group, shlex.split(line))
    assert listed.exit_code == 0 and "layer2.0.conv1" in listed.stdout
    found = CliRunner().invoke(group, ["inspect", str(folder / name), "--find", "layer2.conv"])
    assert found.exit_code == 1 and re.search(
        r"no layer of \S+ matches; .*`mge-quantize inspect .* lists", found.stderr
    )


def test_one_of_several_graphs_is_chosen_by_its_place(folder):
    done = draw(folder, folder / "twice.tm", "-o", folder / "b.svg", "--module", "part")
    assert done.exit_code == 1 and "--module 'part': it has 2 graphs; give one of part[0] to part[1]" in done.stderr
    (sheet,) = page_of(folder, folder / "twice.tm", "--module", "part[1]")["graphs"]
    assert [node["kind"] for node in sheet["nodes"]].count("input") == 2
