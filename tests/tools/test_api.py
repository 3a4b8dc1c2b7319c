"""MegEngine's public names and signatures: what differs has a reason, and the comparison itself can fail."""

import importlib
import importlib.util
import json
import re
import sys
from collections import Counter
from pathlib import Path

import public_api as api
import pytest

import megengine as mge
from megengine.core.old_names import OLD_NAMES

LIST = Path(__file__).parents[1] / "data" / "megengine" / "api.json"


def test_every_difference_has_a_reason(capsys):
    assert api.main([str(LIST)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("0 without a reason")


def package(name):
    """Of `megengine.data.Sampler` the first two words; MegEngine Lite is one package."""
    return name.partition(".")[0] if name.startswith("megenginelite") else ".".join(name.split(".")[:2])


def test_few_names_are_missing():
    """At most 6 in 100 of MegEngine's own packages, and none of the parts that models and training use."""
    listed = json.loads(LIST.read_text())
    found = api.compare(listed)
    missing = [f for f in found if f.name in listed and f.problem == "is missing"]
    assert len([f for f in missing if package(f.name) != "megenginelite"]) <= 0.06 * len(listed)
    parts = {package(f.name).rpartition(".")[2] for f in found}
    assert not parts & {"functional", "module", "optimizer", "autodiff", "amp", "quantization"}


def test_the_page_counts_what_the_list_holds():
    """One row a package, the largest first, and the sum: names in the list, and those that are missing."""
    page = (LIST.parents[3] / "docs" / "names.md").read_text()
    rows = [line.strip("|").split("|") for line in page.splitlines() if re.match(r"\| (`megengine|all )", line)]
    stated = [(name.strip().strip("`"), int(names), int(missing)) for name, names, missing in rows]
    listed = json.loads(LIST.read_text())
    names = Counter(map(package, listed))
    missing = Counter(package(f.name) for f in api.compare(listed) if f.name in listed and f.problem == "is missing")
    found = sorted(((package, count, missing[package]) for package, count in names.items()), key=lambda r: -r[1])
    assert sorted(stated[:-1]) == sorted(found)
    assert stated[-1] == ("all", len(listed), missing.total())


def sample(inp, weight=None, *, mode="a"):
    return inp, weight, mode


def open_ended(inp, *args, **kwargs):
    return inp, args, kwargs


@pytest.mark.parametrize(
    ("function", "recorded", "problem"),
    [
        (sample, ["inp", "weight=None"], ""),
        (sample, ["inp", "weight=None", "*", "mode='a'"], ""),
        (sample, ["inp", "bias"], "has no parameter 'bias'"),
        (sample, ["weight", "inp"], "has parameter 'weight' at place 2; expected 1"),
        (sample, ["inp=1", "weight=None"], "needs parameter 'inp', which has a default"),
        (sample, ["weight=None"], "has parameter 'weight' at place 2; expected 1"),
        (sample, ["*args"], ""),
        (open_ended, ["inp", "anything", "more=3"], ""),
        (lambda x, extra: x, ["x"], "needs parameter 'extra', which MegEngine does not have"),
    ],
)
def test_calls_are_compared(function, recorded, problem):
    assert api.accepts(function, recorded).startswith(problem)
    assert bool(api.accepts(function, recorded)) == bool(problem)


def test_what_is_missing_is_found():
    listed = {
        "megengine.module.conv.Conv2d": {
            "sig": ["in_channels"],
            "methods": {"fly": ["self"], "forward": ["self", "x"]},
        },
        "megengine.nothing": {"sig": []},
        "megengine.module.conv.relu": "megengine.functional.nn.relu",
    }
    found = {f.name: f.problem for f in api.compare(listed)}
    assert found["megengine.module.conv.Conv2d.fly"] == "is missing"
    assert found["megengine.module.conv.Conv2d.forward"] == "has no parameter 'x'"
    assert found["megengine.nothing"] == "is missing"
    assert "out_channels" in found["megengine.module.conv.Conv2d"]
    assert [f.reason for f in api.compare({"megengine.nothing": {"sig": []}})] == [""]


def test_a_module_stands_before_a_function_of_its_name():
    """`megengine.quantization.quantize` is a function; what the module of that name holds is found all the same."""
    assert api.resolve("megengine.quantization.quantize.quantize_qat") is mge.quantization.quantize_qat
    assert api.resolve("megengine.quantization.quantize") is mge.quantization.quantize


def test_wrong_use(capsys, tmp_path):
    assert api.main([]) == 2
    assert api.main([str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "list.json").write_text('{"megengine.nothing": {"sig": []}}')
    assert api.main([str(tmp_path / "list.json")]) == 1
    assert "NO REASON GIVEN" in capsys.readouterr().out


def test_names_left_out_say_why():
    with pytest.raises(AttributeError, match="it is called megengine.optimizer"):
        mge.optim


def test_every_missing_name_says_what_to_do_when_it_is_imported():
    """Also in `from module import name`, where Python would replace the text of an AttributeError."""
    listed = json.loads(LIST.read_text())
    for finding in (f for f in api.compare(listed) if f.name in listed and f.problem == "is missing"):
        module, _, name = finding.name.rpartition(".")
        with pytest.raises(ImportError) as caught:
            exec(f"from {module} import {name}", {})
        assert finding.reason in str(caught.value)
        assert name in str(caught.value) or module in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("from megengine.functional import rellu", "did you mean 'relu'"),
        ("from megengine.functional.nn import conv2b", "did you mean 'conv2d'"),
        ("from megengine.data.dataset.vision import Published", "make a Dataset with __init__, __getitem__"),
        ("from megengine import optim", "it is called megengine.optimizer"),
        ("from megengine.optim import SGD", "it is called megengine.optimizer"),
        ("import megengine.optim.sgd", "it is called megengine.optimizer"),
        ("from megengine.core._imperative_rt import Const", "what models need is in"),
        ("from megengine.core.tensor.function import Function", "Function is in megengine.autodiff"),
        ("from megengine.functional import batched_matrix_mul", "use megengine.functional.matmul"),
        ("from megengine.module import ModuleList", "a list of modules that is an attribute does the same"),
        ("from megengine.functional.math import _private", "cannot import name '_private' from 'megengine.functional"),
    ],
)
def test_imports_that_fail_say_why(statement, text):
    with pytest.raises(ImportError, match=text):
        exec(statement, {})
    assert "optim" not in vars(mge)


def test_the_rest_of_importing_is_left_alone():
    assert not hasattr(mge.data, "no_such_sampler")
    assert importlib.util.find_spec("megengine.nothing_at_all") is None
    with pytest.raises(ModuleNotFoundError, match="^No module named 'nothing_at_all'$"):
        importlib.import_module("nothing_at_all")
    before = list(sys.meta_path)
    importlib.import_module("megengine.core.absent").explain_modules()
    assert sys.meta_path == before  # there is one finder, however often it is asked for
    assert {"hub", "dtr", "traced_module", "Tensor"} <= set(dir(mge))


@pytest.mark.parametrize("name", OLD_NAMES)
def test_old_names_say_what_exists(name):
    module, _, last = name.rpartition(".")
    with pytest.raises(AttributeError) as caught:
        getattr(importlib.import_module(module), last)
    assert OLD_NAMES[name] in str(caught.value)
    for mentioned in re.findall(r"megengine(?:\.\w+)+", OLD_NAMES[name]):
        assert api.resolve(mentioned) is not None


def test_old_methods_of_tensors():
    with pytest.raises(AttributeError, match="use .transpose"):
        mge.tensor([1.0]).dimshuffle
