"""The shape of the project: layers, links, one copy of every module, texts free of machine paths."""

import ast
import graphlib
import importlib
import io
import os
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest
from layer_table import LAYERS, LINKED, is_face, package_of
from source_modules import MODULES

ROOT = Path(__file__).resolve().parents[2]


def imported_names(tree: ast.AST):
    """Absolute names a module imports; `from a import b` gives both a and a.b (b may be a module)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield node.lineno, base
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def violations(name: str, source: str) -> list[str]:
    mine, found = package_of(name), []
    for line, target in imported_names(ast.parse(source)):
        if target.startswith("."):
            found.append(f"{name}:{line}: relative import {target!r}; write it absolutely")
        elif target.split(".")[0] in LINKED:
            found.append(f"{name}:{line}: imports {target!r}: a second copy; write megengine.{target}")
        elif target.startswith("megengine.") and not is_face(name):
            other = package_of(target)
            if is_face(target) and not target.startswith(f"{name}."):  # a package shows its own
                found.append(f"{name}:{line}: imports the face {target!r}")
            elif mine is not None and other not in (None, mine) and LAYERS[other] >= LAYERS[mine]:
                found.append(f"{name}:{line}: level {LAYERS[mine]} imports {target!r} of level {LAYERS[other]}")
    return found


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[n for n, _ in MODULES])
def test_module_imports_only_lower_layers(name, path):
    assert violations(name, path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    ["from megengine.ops import x", "def f():\n    import megengine.quantization", "import kernels", "from . import y"],
)
def test_layer_check_can_fail(source):
    assert violations("megengine.core.something", source)


def import_graph(sources):
    """Module -> the modules it imports, also inside functions and under TYPE_CHECKING."""
    graph = {}
    for name, source in sources.items():
        nodes = list(ast.walk(ast.parse(source)))
        froms = [(n.module or "", a.name) for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names]
        modules = sources.keys() | LAYERS  # the table names the native module of the engine too
        found = {f"{base}.{alias}" if f"{base}.{alias}" in modules else base for base, alias in froms}
        found |= {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
        graph[name] = (found & sources.keys()) - {name}
    return graph


def circle(graph):
    """Modules that import each other in a circle; empty if there are none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_no_circle_of_imports():
    assert circle(import_graph({name: path.read_text() for name, path in MODULES})) == []


def test_a_circle_is_seen():
    """Of imports inside functions and under TYPE_CHECKING too; the package of a module does not count."""
    sources = {
        "m": "",
        "m.a": "from m import b\nimport m",
        "m.b": "def f():\n    from m.c import x",
        "m.c": "if TYPE_CHECKING:\n    from m import d, a",
        "m.d": "import math",
    }
    assert set(circle(import_graph(sources))) == {"m.a", "m.b", "m.c"}
    assert circle(import_graph(sources | {"m.c": "from m import d"})) == []


def test_every_module_has_a_layer():
    unknown = [name for name, _ in MODULES if package_of(name) is None and not is_face(name)]
    assert unknown == [], "name a level for these in LEVELS"
    assert set(LAYERS) <= {name for name, _ in MODULES} | {"megengine.core._engine"}


def test_the_page_shows_the_table():
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    shown = {f"megengine.{name}": int(level) for level, names in rows for name in re.findall(r"`([^`]+)`", names)}
    assert shown == LAYERS


@pytest.mark.parametrize("folder", LINKED)
def test_links_are_links(folder):
    link = ROOT / "megengine" / folder
    assert link.is_symlink()
    assert os.readlink(link) == f"../{folder}"


@pytest.mark.parametrize("name", ["quantization", "kernels.lists"])
def test_no_second_copy_can_be_imported(name):
    code = f"import sys, megengine as a; sys.path.insert(0, sys.argv[1])\nimport {name}"
    done = subprocess.run([sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode != 0
    assert "No module named 'kernels.lists'" in done.stderr or "import megengine.quantization" in done.stderr


@pytest.mark.parametrize("installed", [False, True])
def test_programs_that_ask_for_the_package_kernels_are_told_the_truth(tmp_path, installed):
    """In a checkout the folder `kernels` stands where PyPI's package of this name is looked for."""
    if installed:
        (tmp_path / "kernels").mkdir()
        (tmp_path / "kernels" / "__init__.py").write_text("__version__ = '1.0'")
        (tmp_path / "kernels" / "below.py").write_text("number = 3")
    code = "import sys; sys.path[:0] = sys.argv[1:]; import kernels as k; print(getattr(k, '__version__', None))\n"
    code += "print(getattr(k, '__file__', None) is None)\n"
    code += "import kernels.below as b; print(b.number)" if installed else "from kernels import lists"
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT), str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.split() == (["1.0", "False", "3"] if installed else ["None", "True"])
    assert ("cannot import name 'lists' from 'kernels'" in done.stderr) == (not installed)


@pytest.mark.parametrize("folder", LINKED)
def test_import_names_are_one_module(folder):
    module = importlib.import_module(f"megengine.{folder}")
    assert module.__name__ == f"megengine.{folder}"
    assert folder not in sys.modules


TEXTS = {".py", ".cpp", ".h", ".inc", ".cu", ".md", ".toml", ".txt", ".sh", ".json", ""}
FOREIGN = re.compile("|".join(["/" + d + "/" for d in ("work", "root", "farm")] + ["python" + "hosted", "npm" + "js"]))


def test_no_machine_paths():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    bad = []
    for name in listed:
        path = ROOT / name
        if path.is_file() and not path.is_symlink() and path.suffix in TEXTS:
            text = path.read_bytes().decode("utf-8", errors="ignore")
            if FOREIGN.search(text):
                bad.append(name)
    assert bad == []


SILENCED = 5  # comments that silence the type checkers: the number only falls


def silencing(source: str) -> list[str]:
    """The comments of a module that silence the type checkers."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [t.string for t in tokens if t.type == tokenize.COMMENT and re.match(r"#\s*type:\s*ignore", t.string)]


def test_few_comments_silence_the_type_checkers_and_each_gives_its_reason():
    found = [(name, comment) for name, path in MODULES for comment in silencing(path.read_text())]
    bare = [(name, comment) for name, comment in found if not re.match(r"# type: ignore\[[\w, -]+\]  # \w", comment)]
    assert len(found) <= SILENCED, f"state the type in place of: {found}"
    assert not bare, f"write the reason, `# type: ignore[rule]  # reason`, behind: {bare}"


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[n for n, _ in MODULES])
def test_files_have_500_lines_at_most_and_functions_60(name, path):
    source = path.read_text()
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    sizes = {n.name: n.end_lineno - n.lineno + 1 for n in functions}
    assert source.count("\n") <= 500
    assert {function: lines for function, lines in sizes.items() if lines > 60} == {}


def test_no_script_of_a_bench_has_the_name_of_a_package():
    """torch and CuPy import `cuda`; the folder of a script comes before the packages that are installed."""
    packages = {*sys.stdlib_module_names, "cuda", "cupy", "torch", "onnx", "onnxruntime", "openvino", "nncf", "timm"}
    assert packages.isdisjoint(path.stem for path in (ROOT / "bench").glob("*.py"))
