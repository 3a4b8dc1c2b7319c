"""The examples of the documents run: each alone, and all of a page one after the other."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest

from megengine.core import _engine, effectless

PROJECT = Path(__file__).parent.parent.parent
PAGES = ["README.md", "docs/names.md", "docs/onnx.md", "docs/traced-module.md"]


def snippets(page):
    return re.findall(r"```python\n(.*?)```", (PROJECT / page).read_text(), re.DOTALL)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs snippets in one namespace, in a folder from which they can import what they write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(effectless, "_warned", set())  # what was warned of once

    def call(given):
        namespace: dict = {"__name__": "snippet"}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for snippet in given:
                exec(snippet, namespace)

    yield call
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]  # the next snippet writes its own file of that name


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run_one_after_the_other(run, page):
    assert snippets(page)
    run(snippets(page))


@pytest.mark.parametrize(("page", "at"), [(page, i) for page in PAGES for i in range(len(snippets(page)))])
def test_an_example_runs_alone(run, page, at):
    run([snippets(page)[at]])


GIVEN = """
import numpy as np
import megengine.module as M
from megengine import Tensor
from megengine.traced_module import trace_module

batches = np.random.default_rng(0).standard_normal((12, 1, 3, 8, 8)).astype("float32")
held_out = batches[8:]
layers = M.Conv2d(3, 8, 3), M.BatchNorm2d(8), M.ReLU(), M.Conv2d(8, 8, 3), M.ReLU(), M.Conv2d(8, 4, 4)
traced = trace_module(M.Sequential(*layers).eval(), Tensor(batches[0]))
graph = traced.graph
"""


@pytest.mark.slow
def test_the_page_of_quantization_runs(run):
    """Its blocks speak of a network and of data that the reader has."""
    given = snippets("docs/quantization.md")
    assert len(given) == 4
    run([GIVEN, *given])


def test_the_page_of_gpus_runs_on_the_processor(run):
    block, step = snippets("docs/gpu.md")
    run([GIVEN, "net = traced", block.replace("gpu0", "cpu0")])
    given = """
import megengine.functional as F
from megengine import jit, optimizer as rules
from megengine.autodiff import GradManager

net = M.Linear(3, 2)
gm = GradManager().attach(net.parameters())
optimizer = rules.SGD(net.parameters(), lr=0.1)
"""
    call = 'assert step(Tensor(np.ones((4, 3), "float32")), Tensor(np.array([0, 1, 1, 0], "int32"))).shape == ()'
    run([GIVEN, given, step, call])


def test_every_page_with_python_is_run():
    """By this file, or by the test of that page."""
    tests = "".join(path.read_text() for path in (PROJECT / "tests").rglob("test_*.py"))
    for path in sorted((PROJECT / "docs").glob("*.md")):
        page = f"docs/{path.name}"
        assert not snippets(page) or page in PAGES or path.name in tests, page


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


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package, to which files are added."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(PROJECT / "megengine", folder / "megengine", ignore=shutil.ignore_patterns("csrc", "__pycache__"))
    built = Path(_engine.__file__).parent.parent
    for library in built.rglob("*.so*"):
        (folder / "megengine" / library.relative_to(built)).symlink_to(library)
    return folder


def passed(package, *arguments):
    """The number of tests that pass with the copy; the editable install is out of sight."""
    paths = [package, Path(np.__file__).parent.parent]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-S", "-m", "pytest", "-p", "no:cacheprovider", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=package)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(re.search(r"(\d+) passed", done.stdout)[1])


@pytest.mark.slow
def test_the_page_of_ops_adds_an_op(package):
    (source,) = snippets("docs/adding-an-op.md")
    (package / "megengine/ops/thresholded_relu.py").write_text(source)
    assert passed(package, PROJECT / "tests/ops/test_contract.py", "-k", "thresholded_relu") >= 4


def edited(package, file, page):
    """Make the changes of a file that a page shows; each diff that fits it."""
    path, edits = package / "megengine" / file, re.findall(r"^-(.*\n)((?:\+.*\n)+)", (PROJECT / page).read_text(), re.M)
    fitting = [(before, after.replace("\n+", "\n")[1:]) for before, after in edits if before in path.read_text()]
    assert fitting
    for before, after in fitting:
        assert path.read_text().count(before) == 1, before
        path.write_text(path.read_text().replace(before, after))


@pytest.mark.slow
def test_the_page_of_extensions_adds_each(package):
    layer, try_layer, one_pass, try_pass, observer, try_observer, operator, try_operator = snippets("docs/extending.md")
    parts = {
        "module/hard_shrink.py": layer,
        "traced_module/passes/square_roots.py": one_pass,
        "quantization/ranges/quiet.py": observer,
    }
    for file, source in parts.items():
        (package / "megengine" / file).write_text(source)
    for file in ("module/__init__.py", "traced_module/passes/__init__.py", "quantization/observer.py"):
        edited(package, file, "docs/extending.md")
    with (package / "megengine/convert/onnx/contrib_rules.py").open("a") as file:
        file.write(f"\n\n{operator}")
    tries = (try_layer, try_pass, try_observer, try_operator)
    bodies = (f"def test_{i}():\n{textwrap.indent(one, '    ')}" for i, one in enumerate(tries))
    (package / "test_extensions.py").write_text("\n\n".join(bodies))
    assert passed(package, "test_extensions.py") == 4


@pytest.mark.slow
def test_the_page_of_kernels_adds_a_kernel(package):
    source, test = snippets("docs/adding-a-kernel.md")
    (package / "megengine/kernels/small_relu6.py").write_text(source)
    lists = package / "megengine/kernels/lists.py"
    for before, after in re.findall(r"```diff\n-(.*\n)\+(.*\n)```", (PROJECT / "docs/adding-a-kernel.md").read_text()):
        assert lists.read_text().count(before) == 1, before
        lists.write_text(lists.read_text().replace(before, after))
    (package / "test_small_relu6.py").write_text(test)
    assert passed(package, "test_small_relu6.py", PROJECT / "tests/kernels/test_lists.py") > 12
