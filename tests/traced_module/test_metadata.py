"""Texts about a model stay with it: through copies, lowering, flattening, quantization and files."""

import copy
import json
import pickle

import numpy as np
import pytest

import megengine as mge
import megengine.module as M
from megengine.convert import onnx
from megengine.core.errors import FileFormatError
from megengine.quantization import quantize_model
from megengine.traced_module import lower, trace_module
from megengine.traced_module.formats import native, tm_writing
from megengine.traced_module.source import save_source

TEXTS = {"author": "somebody", "note": 'line\n"two" \x1b[31m ü'}


@pytest.fixture
def traced():
    made = trace_module(
        M.Sequential(M.Conv2d(3, 4, 3), M.ReLU()).eval(), mge.tensor(np.zeros((1, 3, 8, 8), np.float32))
    )
    made.graph.metadata.update(TEXTS)
    return made


def test_copies_keep_metadata_of_their_own(traced):
    for made in (
        traced.clone(),
        traced.flatten(),
        lower(traced),
        copy.deepcopy(traced),
        pickle.loads(pickle.dumps(traced)),
    ):
        assert made.graph.metadata == TEXTS
        made.graph.metadata["author"] = "somebody else"
    assert traced.graph.metadata == TEXTS


def test_files_keep_metadata(traced, tmp_path):
    for model in (traced, lower(traced)):
        native.save(model, tmp_path / "net.mgt")
        assert native.load(tmp_path / "net.mgt").graph.metadata == TEXTS
    onnx.export(traced, tmp_path / "net.onnx")
    assert onnx.load(tmp_path / "net.onnx").graph.metadata == TEXTS
    for name in ("net.tm", "net.pkl"):
        mge.save(traced, tmp_path / name)
        assert mge.load(tmp_path / name).graph.metadata == TEXTS


def test_modules_traced_again_keep_metadata(traced):
    class Outer(M.Module):
        def __init__(self):
            super().__init__()
            self.inner = traced

        def forward(self, x):
            return self.inner(x) + 1

    x = mge.tensor(np.zeros((2, 3, 8, 8), np.float32))
    assert trace_module(traced, x).graph.metadata == TEXTS
    outer = trace_module(Outer(), x)
    assert (outer.graph.metadata, outer.inner.graph.metadata) == ({}, TEXTS)


def test_source_says_which_metadata_it_leaves_out(traced, tmp_path, caplog):
    save_source(traced, tmp_path / "net.py")
    assert "Python source holds no metadata: 'author', 'note' of the graph is not written" in caplog.text
    caplog.clear()
    traced.graph.metadata.clear()
    save_source(traced, tmp_path / "net.py")
    assert not caplog.text


@pytest.mark.parametrize("metadata", [[1], {"a": 1}, "text", {1: "a"}])
def test_metadata_of_tm_files_is_checked(traced, tmp_path, metadata, monkeypatch):
    monkeypatch.setattr(tm_writing, "texts", lambda written: metadata)
    mge.save(traced, tmp_path / "net.tm")
    with pytest.raises(FileFormatError, match="expected a dict of texts|expected texts"):
        mge.load(tmp_path / "net.tm")


def test_quantized_networks_keep_metadata(traced):
    rng = np.random.default_rng(0)
    made = quantize_model(traced, [rng.standard_normal((1, 3, 8, 8)).astype(np.float32)])
    assert made.integer_graph.metadata == made.qdq_graph.metadata
    assert made.qdq_graph.metadata.items() >= TEXTS.items()


@pytest.mark.parametrize("metadata", [[1], {"a": 1}, "text", {"a": None}])
def test_metadata_that_is_no_text_is_refused(traced, tmp_path, metadata):
    import zipfile

    if isinstance(metadata, dict):
        traced.graph.metadata = metadata
        with pytest.raises(FileFormatError, match="metadata 'a' is .*; expected texts"):
            native.save(traced, tmp_path / "net.mgt")
        with pytest.raises(FileFormatError, match="expected texts"):
            onnx.export(traced, tmp_path / "net.onnx")
    traced.graph.metadata = {"place": "holder"}
    for model in (traced, lower(traced)):
        native.save(model, tmp_path / "net.mgt")
        with zipfile.ZipFile(tmp_path / "net.mgt") as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        parts["graph.json"] = parts["graph.json"].replace(b'{"place": "holder"}', json.dumps(metadata).encode())
        with zipfile.ZipFile(tmp_path / "net.mgt", "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, content)
        with pytest.raises(FileFormatError, match="its graph is not consistent"):
            native.load(tmp_path / "net.mgt")
