"""Downloads: complete files, or none."""

import pytest
from local_server import serving

from megengine.utils.http_download import Bar, HTTPDownloadError, download_from_url


def test_a_file_arrives_whole(tmp_path):
    content = bytes(range(256)) * 1000
    with serving({"/a": content, "/empty": b""}) as (address, _):
        download_from_url(f"{address}/a", tmp_path / "a")
        download_from_url(f"{address}/empty", tmp_path / "empty")
    assert (tmp_path / "a").read_bytes() == content
    assert (tmp_path / "empty").read_bytes() == b""


@pytest.mark.parametrize(
    ("path", "text"), [("/none", "cannot be fetched.*404"), ("/short", "ended after|cannot be fetched")]
)
def test_what_fails_leaves_the_old_file(tmp_path, path, text):
    (tmp_path / "a").write_bytes(b"old")
    with serving({"/short": b"abc"}) as (address, _), pytest.raises(HTTPDownloadError, match=text):
        download_from_url(address + path, tmp_path / "a")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.parametrize("address", ["file:///etc/hostname", "nothing", "ftp://x/y", ""])
def test_only_addresses_of_the_web(tmp_path, address):
    with pytest.raises(HTTPDownloadError, match="is no address; expected http"):
        download_from_url(address, tmp_path / "a")


def test_a_server_that_is_not_there(tmp_path):
    with serving({}) as (address, _):
        pass
    with pytest.raises(HTTPDownloadError, match="check address and network"):
        download_from_url(address + "/a", tmp_path / "a")


def test_bars_count():
    bar = Bar(200)
    bar(50)
    bar(400)
    assert bar.done == 450
    Bar(0)(3)
