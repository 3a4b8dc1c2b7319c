"""Values of Python's own classes in checkpoints: options, dates, counts, paths. `pickle` reads and writes beside us."""

import argparse
import collections
import datetime
import io
import pathlib
import pickle
import types
from pathlib import Path

import numpy as np
import pytest

import megengine
from megengine.core.errors import DTypeError, FileFormatError

UTC = datetime.UTC
VALUES = [
    argparse.Namespace(lr=0.1, layers=[64, 128], resume=None),
    types.SimpleNamespace(a=(1, "b")),
    datetime.date(2021, 4, 5),
    datetime.datetime(2021, 4, 5, 6, 7, 8, 9, tzinfo=UTC),
    datetime.timedelta(days=1, seconds=3),
    datetime.timezone(datetime.timedelta(hours=8), "CST"),
    collections.Counter("aab"),
    collections.defaultdict(list, a=[1]),
    collections.defaultdict(None, a=1),
    collections.deque([1, 2], 5),
    collections.deque(),
    pathlib.PurePosixPath("runs/1"),
    pathlib.PureWindowsPath("C:/runs"),
    pathlib.Path("runs"),
    3 - 2j,
    slice(1, None, 2),
    range(2, 9, 3),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_values_are_written_and_read_as_pickle_does(value):
    checkpoint = {"value": value, "again": [value]}
    for protocol in (3, 4, 5):
        found = megengine.load(io.BytesIO(pickle.dumps(checkpoint, protocol)))
        assert found == checkpoint and type(found["value"]) is type(value)
    file = io.BytesIO()
    megengine.save(checkpoint, file)
    written = pickle.loads(file.getvalue())
    assert written == checkpoint and type(written["value"]) is type(value) and written["again"][0] is written["value"]


def test_options_hold_tensors_and_themselves_are_held():
    file, options = io.BytesIO(), argparse.Namespace(mean=megengine.tensor([1.0, 2.0]), more=argparse.Namespace(k=1))
    megengine.save([options], file)
    file.seek(0)
    (found,) = megengine.load(file)
    np.testing.assert_array_equal(found.mean.numpy(), [1, 2])
    assert found.more == argparse.Namespace(k=1)


class Options(argparse.Namespace):
    """Of the user's own."""


def test_what_is_derived_and_what_is_made_of_other_classes_is_refused():
    with pytest.raises(DTypeError, match="cannot write a Options"):
        megengine.save(Options(a=1), io.BytesIO())
    file = io.BytesIO()
    megengine.save(collections.defaultdict(Options, a=1), file)  # written as what it holds
    assert pickle.loads(file.getvalue()) == {"a": 1}
    with pytest.raises(FileFormatError, match=r"defaultdict of .*complex.*; expected one of"):
        megengine.load(io.BytesIO(pickle.dumps(collections.defaultdict(complex))))
    text = pickle.dumps(argparse.Namespace(abc=1), 4).replace(b"\x8c\x03abc", b"K\x01")
    with pytest.raises(FileFormatError, match="Namespace of .*; expected values by name"):
        megengine.load(io.BytesIO(text[:2] + text[11:]))  # without its frame, whose length is another now


def test_a_norm_over_a_group_of_processes_is_read():
    """The file is MegEngine 1.13's; the group is that of all processes, which is this one."""
    layer = megengine.load(Path(__file__).parents[1] / "data" / "megengine" / "sync_batch_norm.pkl")
    assert type(layer) is megengine.module.SyncBatchNorm and layer.group is None
    assert layer(megengine.functional.ones((2, 3, 2, 2))).shape == (2, 3, 2, 2)
