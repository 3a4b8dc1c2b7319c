"""DataLoader with worker processes: the batches of one process, in order; errors, ends and Ctrl-C; nothing is left."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import megengine as mge
from megengine import random
from megengine.data import Collator, DataLoader, Infinite, RandomSampler, SequentialSampler, StreamSampler, workers
from megengine.data import transform as T
from megengine.data.dataset import ArrayDataset, Dataset, StreamDataset
from megengine.data.workers import WorkerError

fork_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux")


class Rows(Dataset):
    """Items of 1 kB (small batches go through the pipe) or 400 kB (through memory files); one may do something else."""

    def __init__(self, length=11, size=128, do=None, at=3):
        self.length, self.size, self.do, self.at = length, size, do, at

    def __getitem__(self, index):
        if self.do is not None and index == self.at:
            self.do()
        return np.full(self.size, index, np.float64), {"index": index, "name": f"item {index}"}

    def __len__(self):
        return self.length


class Noise(T.Transform):
    """Adds numbers of all three process-wide generators."""

    def apply(self, item):
        return item[0] + random.generator().random() + np.random.random() + __import__("random").random()


class Counting(StreamDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


def children():
    return {p for p in multiprocessing.active_children() if p.name.startswith("DataLoader")}


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    assert not children()


def refuse():
    raise KeyError("no such picture")


def flat(loader):
    return [(x.tolist(), rest["index"].tolist(), rest["name"]) for x, rest in loader]


@fork_only
@pytest.mark.parametrize("size", [128, 50_000])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_batches_are_those_of_one_process(count, size):
    rows = Rows(size=size)
    found = list(DataLoader(rows, SequentialSampler(rows, 2), num_workers=count))
    assert flat(found) == flat(DataLoader(rows, SequentialSampler(rows, 2)))
    first, second = found[0][0], found[1][0]
    first += 1  # batches belong to the caller
    assert (first[0] == 1).all() and (second[0] == 2).all() and first.dtype == np.float64


@fork_only
def test_random_order_and_random_transforms_do_not_depend_on_the_number_of_workers():
    def passes(count):
        random.seed(5)
        rows = Rows()
        loader = DataLoader(rows, RandomSampler(rows, 2), Noise(), num_workers=count)
        return [np.concatenate(list(loader)) for _ in range(2)]

    one, three, again = passes(1), passes(3), passes(3)
    for a, b, c in zip(one, three, again, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(b, c)
    assert sorted(one[0][:, 0] % 1) != sorted(one[1][:, 0] % 1)  # another pass, other numbers
    assert len(set(one[0][:, 0] % 1)) == 11

    def order(count):
        random.seed(5)
        rows = Rows()
        return [r["index"].tolist() for _, r in DataLoader(rows, RandomSampler(rows, 2), num_workers=count)]

    assert order(0) == order(1) == order(4)


@fork_only
def test_streams_are_read_once_or_by_each_worker():
    def read(**options):
        return [b.tolist() for b in DataLoader(Counting(7), StreamSampler(2), **options)]

    once = [[0, 1], [2, 3], [4, 5], [6]]
    assert read(num_workers=3) == read(num_workers=1, parallel_stream=True) == once
    assert read(num_workers=3, parallel_stream=True) == [b for b in once for _ in range(3)]  # as the real MegEngine
    assert list(DataLoader(Counting(0), num_workers=2)) == []


@fork_only
def test_endless_order_abandoned():
    rows = Rows()
    loader = DataLoader(rows, Infinite(SequentialSampler(rows, 4)), num_workers=2)
    batches = iter(loader)
    names = [next(batches)[1]["index"].tolist() for _ in range(4)]
    assert names == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10], [0, 1, 2, 3]]
    assert len(children()) == 2
    del batches
    assert not children()
    assert flat(DataLoader(rows, SequentialSampler(rows, 4), num_workers=2))[2][1] == [8, 9, 10]


@fork_only
@pytest.mark.parametrize(
    ("do", "message"),
    [
        (refuse, r"worker 1 of 2 .*batch 1 \(items \[2, 3\]\): error in the worker\n\nTraceback[\s\S]*no such picture"),
        (lambda: os._exit(3), r"worker 1 of 2 .*batch 1 .*the process ended with exit code 3; what it printed, or"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "ended by SIGKILL, perhaps for want of memory; take fewer"),
        (lambda: time.sleep(60), r"no answer in 0\.5 s, the timeout; raise it, or take timeout=0"),
    ],
)
def test_errors_of_workers(do, message):
    rows = Rows(do=do)
    seen = []
    with pytest.raises(WorkerError, match=message) as caught:
        for _, rest in DataLoader(rows, SequentialSampler(rows, 2), num_workers=2, timeout=0 if do is refuse else 0.5):
            seen.append(rest["index"].tolist())
    assert seen == [[0, 1]] and isinstance(caught.value, RuntimeError)
    assert (type(caught.value.__cause__) is KeyError) == (do is refuse)


@fork_only
def test_errors_that_cannot_be_sent():
    class OwnError(Exception):
        def __reduce__(self):
            raise TypeError("never")

    def own():
        raise OwnError("mine")

    rows = Rows(do=own)
    with pytest.raises(WorkerError, match="OwnError: mine"):
        list(DataLoader(rows, num_workers=1))


@fork_only
def test_workers_have_no_workers():
    class Nested(Rows):
        def __getitem__(self, index):
            return list(DataLoader(Rows(2), num_workers=1))

    with pytest.raises(WorkerError, match="a worker process cannot have workers of its own; take num_workers=0"):
        list(DataLoader(Nested(), num_workers=1))


@fork_only
def test_values_of_every_kind():
    class Kept(Collator):
        def apply(self, inputs):
            return inputs

    import ml_dtypes

    half = np.arange(40_000).astype(ml_dtypes.bfloat16)
    arrays = [np.zeros((0, 3)), np.arange(6).reshape(2, 3).T, np.arange(9)[::2], np.arange(40_000).astype(np.float16)]
    values = [None, "a", *arrays, half, mge.tensor([1.0, 2.0])]
    ((found,),) = DataLoader([values], collator=Kept(), num_workers=1)
    assert found[:2] == [None, "a"]
    for a, b in zip(found[2:], values[2:], strict=True):
        a, b = (v.numpy() if isinstance(v, mge.Tensor) else v for v in (a, b))
        assert a.dtype == b.dtype and a.shape == b.shape and (a == b).all()


@pytest.mark.parametrize("count", [0, pytest.param(2, marks=fork_only)])
def test_preload_gives_tensors_in_order(count):
    data = ArrayDataset(np.arange(6.0), np.arange(6))
    found = list(DataLoader(data, SequentialSampler(data, 2), num_workers=count, preload=True))
    assert all(type(part) is mge.Tensor for batch in found for part in batch)
    assert [[p.tolist() for p in b] for b in found] == [[[0, 1]] * 2, [[2, 3]] * 2, [[4, 5]] * 2]
    ((first, rest),) = DataLoader(Rows(1), num_workers=count, preload=True)
    assert type(first) is type(rest["index"]) is mge.Tensor and rest["name"] == ["item 0"]
    assert list(DataLoader(Counting(0), preload=True, num_workers=count)) == []


@pytest.mark.parametrize("count", [1.5, "2", -1])
def test_a_number_of_workers_is_an_integer(count):
    with pytest.raises((TypeError, ValueError), match="num_workers"):
        DataLoader(Rows(), num_workers=count)


def test_without_memory_files(monkeypatch):
    monkeypatch.setattr(workers, "_MEMORY_FILES", False)
    monkeypatch.setattr(workers, "_AHEAD", 1)
    rows = Rows(size=50_000)
    assert flat(DataLoader(rows, num_workers=2)) == flat(DataLoader(rows))


SCRIPT = """
    import multiprocessing, os, signal, sys, time
    import numpy as np
    from megengine.data import DataLoader, SequentialSampler
    from megengine.data.dataset import ArrayDataset, Dataset

    class Slow(Dataset):
        def __init__(self): ...
        def __len__(self): return 1000
        def __getitem__(self, i):
            time.sleep(0.05)
            return np.array([os.getpid()])

    if __name__ == "__main__":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
        kind, method = sys.argv[1:]
        multiprocessing.set_start_method(method)
        if kind == "rows":
            rows = ArrayDataset(np.arange(200_000.0).reshape(4, -1))
            print([int(b[0][0, 0]) for b in DataLoader(rows, num_workers=2)])
            try:
                list(DataLoader([lambda: 0], num_workers=1))
            except RuntimeError as error:
                print(error)
        for batch in DataLoader(Slow(), num_workers=2) if kind == "slow" else ():
            print(batch[0, 0], flush=True)
"""


def started(tmp_path, *arguments):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return subprocess.Popen(
        [sys.executable, path, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def gone(pid):
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().split(")")[-1].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


@fork_only
@pytest.mark.parametrize("ending", ["ctrl-c", "kill"])
def test_workers_end_with_the_process(tmp_path, ending):
    process = started(tmp_path, "slow", "fork")
    pids = {int(process.stdout.readline()) for _ in range(4)}
    assert len(pids) == 2
    if ending == "ctrl-c":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.kill()
    errors = process.communicate(timeout=20)[1]
    assert errors.count("Traceback") == (ending == "ctrl-c") and process.returncode == -(2 if ending == "ctrl-c" else 9)
    assert all(map(gone, pids))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods(tmp_path, method):
    out, errors = started(tmp_path, "rows", method).communicate(timeout=120)
    assert not errors
    assert out.startswith("[0, 50000, 100000, 150000]"), out
    assert "cannot be sent to a worker" in out and "at the top of a module" in out
