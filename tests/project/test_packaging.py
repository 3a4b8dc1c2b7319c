"""What is built from the sources: a source archive, a wheel, and what a user has who installs it."""

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import stubs
from layer_table import LINKED

ROOT = Path(__file__).resolve().parents[2]
BUILT_FROM = ("CMakeLists.txt", "LICENSE", "README.md", "cmake", "licenses", "megengine", "pyproject.toml", *LINKED)
pytestmark = pytest.mark.timeout(900)  # wheels are compiled, perhaps on a busy machine
NOTICES = {"LICENSE", "libgomp.txt", "nanobind.txt", "onednn.txt", "onednn-third-party.txt", "robin_map.txt"}


def build(*arguments, cwd):
    """Run Python where sources lie; a compiler cache that is in use finds them again in another folder."""
    environment = {**os.environ, "CCACHE_BASEDIR": str(cwd), "CCACHE_NOHASHDIR": "1"}
    if shutil.which("ccache") and Path(shutil.which("c++") or "").resolve().name != "ccache":
        environment["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def make_wheel(source: Path, folder: Path, *options: str) -> Path:
    build("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", *options, "-w", folder, ".", cwd=source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def files_of(wheel: Path) -> set[str]:
    """Python and data files of the package, without what the build makes."""
    names = zipfile.ZipFile(wheel).namelist()
    return {n for n in names if n.startswith("megengine/") and not n.endswith(("/", ".pyi")) and ".so" not in n}


def make_archive(made: Path) -> None:
    """Unpack the source archive of a copy of the repository into a folder."""
    copy = made / "copy" / "megengine"
    copy.mkdir(parents=True)
    for name in BUILT_FROM:
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyi")
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy / name)
    build("-c", f"import scikit_build_core.build as b; b.build_sdist({str(made)!r})", cwd=copy)
    (file,) = made.glob("*.tar.gz")
    with tarfile.open(file) as packed:
        assert not [m.name for m in packed if m.issym() or m.islnk()]
        packed.extractall(made / "archive", filter="data")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the unpacked archive and its wheel, built once for all processes that run these tests.

    Native files are not optimized: what is looked at does not depend on it, and they compile sooner.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "packaging"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            making = folder.with_suffix(".making")
            shutil.rmtree(making, ignore_errors=True)
            make_archive(making)
            (archive,) = (making / "archive").iterdir()
            make_wheel(archive, making / "wheel", "-C", "cmake.define.MGE_OPTIMIZE=-O0")
            making.rename(folder)
    return folder


@pytest.fixture(scope="module")
def archive(made):
    """The unpacked source archive."""
    (folder,) = (made / "archive").iterdir()
    return folder


@pytest.fixture(scope="module")
def wheel(made):
    """The wheel that was built from the archive."""
    (file,) = (made / "wheel").iterdir()
    return file


@pytest.mark.slow
def test_a_wheel_of_the_source_archive_holds_every_file_once(wheel):
    expected = {
        f"{'megengine/' if top in LINKED else ''}{path.relative_to(ROOT)}"
        for top in ("megengine", *LINKED)
        for path in (ROOT / top).rglob("*")
        if path.is_file()
        and not {"csrc", "__pycache__"} & {*path.parts}
        and ".so" not in path.name
        and path.suffix != ".pyi"
    }
    assert files_of(wheel) == expected
    libraries = [n for n in zipfile.ZipFile(wheel).namelist() if "libdnnl" in n]
    assert libraries == ["megengine/kernels/libdnnl.so.3"]


@pytest.mark.slow
def test_sources_on_a_disk_without_links_give_the_same_files(archive, wheel, tmp_path):
    """Where there are no links, version control writes small files with the target's name in their place."""
    copy = tmp_path / "megengine"
    shutil.copytree(archive, copy, ignore=shutil.ignore_patterns("build"))
    for name in LINKED:
        assert not (copy / "megengine" / name).exists()
        (copy / "megengine" / name).write_text(f"../{name}")
    assert files_of(make_wheel(copy, tmp_path, "-C", "wheel.cmake=false")) == files_of(wheel)


@pytest.mark.slow
def test_the_wheel_has_type_stubs(wheel):
    """Written while it was built: the archive has none."""
    packed = zipfile.ZipFile(wheel)
    assert {n for n in packed.namelist() if n.endswith(".pyi")} == {*stubs.files()}
    for name, text in stubs.files().items():
        assert packed.read(name).decode() == text, name


@pytest.mark.slow
def test_the_wheel_carries_the_notices_of_what_it_is_linked_with(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.rsplit("/", 1)[-1] for n in names if "/licenses/" in n and not n.endswith("/")} == NOTICES
    metadata = zipfile.ZipFile(wheel).read(next(n for n in names if n.endswith("/METADATA"))).decode()
    assert "Classifier: Typing :: Typed" in metadata
    assert "Project-URL:" in metadata
    assert "Requires-Dist: onednn" not in metadata.split("Provides-Extra")[0]


def run_installed(target: Path, code: str) -> subprocess.CompletedProcess:
    """Run code with the package from a folder; without site, no editable install is found."""
    packages = Path(np.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), str(packages)])}
    command = [sys.executable, "-S", "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=target)


@pytest.mark.slow
def test_a_wheel_installed_into_a_folder_has_all_its_native_parts(wheel, tmp_path):
    """`pip install --target`, and the folder moved afterwards."""
    build("-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "first", wheel, cwd=tmp_path)
    (tmp_path / "first").rename(tmp_path / "second")
    code = (
        "import megengine; from megengine.kernels import onednn\n"
        "assert onednn.available(), onednn.unavailable_reason()\n"
        "maps = {line.split()[-1] for line in open('/proc/self/maps') if 'dnnl' in line}\n"
        "print(megengine.__file__, *maps)\n"
    )
    done = run_installed(tmp_path / "second", code)
    assert done.returncode == 0, done.stderr
    kernels = tmp_path / "second" / "megengine" / "kernels"
    assert done.stdout.split()[0] == str(tmp_path / "second" / "megengine" / "__init__.py")
    assert {Path(p).parent for p in done.stdout.split()[1:] if p.endswith(".so.3")} == {kernels}


@pytest.mark.slow
def test_auditwheel_accepts_the_wheel_and_adds_the_openmp_library_alone(wheel, tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "auditwheel", "repair", "-w", str(tmp_path), str(wheel)]
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (repaired,) = tmp_path.glob("*.whl")
    assert "manylinux" in repaired.name
    names = zipfile.ZipFile(repaired).namelist()
    assert [n.split("/")[1].split("-")[0] for n in names if ".libs/" in n and not n.endswith("/")] == ["libgomp"]
    assert sum("libdnnl" in n for n in names) == 1


def test_a_missing_onednn_is_one_warning_that_names_the_consequence():
    code = (
        "import sys, warnings\n"
        "sys.modules['megengine.kernels._onednn'] = None\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    import megengine, numpy as np\n"
        "    import megengine.functional as F\n"
        "    F.matmul(megengine.tensor(np.ones((64, 64), 'float32')), megengine.tensor(np.ones((64, 64), 'float32')))\n"
        "(one,) = [w for w in seen if w.category is RuntimeWarning]\n"
        "print(one.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the oneDNN module does not load: ")
    assert "about 7 times slower; install megengine again" in done.stdout
