"""Graphs that MegEngine's `trace.dump` wrote, where other files are read: the error says what reads them."""

import io

import pytest

import megengine as mge
from megengine import plan
from megengine.cli.models import load_model
from megengine.core.errors import FileFormatError

HEADS = {  # the first bytes of files of MegEngine 1.13 and of its load_and_run
    "version 2": bytes.fromhex("7c0600001c0000006d6776321400200028"),
    "version 2, inputs first": bytes.fromhex("5c3a0000200000006d67763200000000"),
    "with inputs": b"mgbtest0" + bytes(8),
}
TOLD = r"a graph that MegEngine's trace.dump wrote .*read it with megengine.convert.mge.load\('net.mge'\)"


@pytest.mark.parametrize("head", HEADS)
def test_a_mge_file_is_named(head, tmp_path):
    path = tmp_path / "net.mge"
    path.write_bytes(HEADS[head] + bytes(200))
    for read in (lambda: mge.load(path), lambda: mge.load(io.BytesIO(path.read_bytes())), lambda: plan.load(path)):
        with pytest.raises(FileFormatError, match=TOLD):
            read()


def test_the_first_version_is_named():
    told = "a graph that MegEngine's trace.dump wrote .*version 1.*cannot be read here.*'net.tm'.*'net.pkl'"
    with pytest.raises(FileFormatError, match=told):
        mge.load(io.BytesIO(b"MGBC" + bytes(60)))


def test_the_command_needs_the_file():
    with pytest.raises(FileFormatError, match="model 'net.mge': no such file"):
        load_model("net.mge")


def test_short_files_are_none():
    for content in (b"", b"mgv", b"mgv2"):
        with pytest.raises(FileFormatError) as error:
            mge.load(io.BytesIO(content))
        assert "trace.dump" not in str(error.value)
