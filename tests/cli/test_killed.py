"""`kill -9` behind each thing that a command keeps: what is there is whole, and the same line goes on."""

import signal

import numpy as np
import pytest

from megengine.traced_module.formats import native

# The process kills itself behind the n-th call of a function.
KILL = """
import importlib, os, signal, sys
module, _, names = sys.argv[1].partition(":")
home, left = importlib.import_module(module), [int(sys.argv[2])]
*path, name = names.split(".")
for one in path:
    home = getattr(home, one)
real = getattr(home, name)
def struck(*args, **kwargs):
    done = real(*args, **kwargs)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
setattr(home, name, struck)
sys.argv = ["mge-quantize", *sys.argv[3:]]
from megengine.cli import main
main()
"""
QAT = "qat MODEL --data x.npy --epochs 3 --batch 4 -o q.mgt"
SEARCH = "search MODEL --data x.npy --effort fast --min-sqnr 70 -o q.mgt"


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((20, 3, 16, 16)).astype(np.float32))
    return tmp_path


@pytest.fixture
def killed(python, model, folder):
    """Runs a command that is killed behind the n-th call of `place`; its words."""

    def run(place, number, line):
        words = line.replace("MODEL", str(model)).split()
        done = python(KILL, [place, str(number), *words], cwd=folder)
        assert done.returncode == -signal.SIGKILL, done.stderr
        return words

    return run


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "x.npy")


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("method", ["ste", "lsq"])
def test_training_goes_on_to_the_same_bytes(killed, run, folder, number, method):
    words = killed("megengine.cli.qat:save", number, f"{QAT} --method {method}")
    assert not (folder / "q.mgt").exists() and (folder / "q.mgt.training").exists()
    done = run(*words, "--resume", cwd=folder)
    assert done.returncode == 0, done.stderr
    resumed = (folder / "q.mgt").read_bytes()
    assert files(folder) == ["q.mgt"]  # what the killed process left hidden is gone, too
    assert run(*words, cwd=folder).returncode == 0
    assert (folder / "q.mgt").read_bytes() == resumed


def test_training_that_kept_nothing_begins_anew(killed, run, folder):
    words = killed("megengine.cli.qat:_begin", 1, QAT)
    assert "there is no 'q.mgt.training'" in run(*words, "--resume", cwd=folder).stderr
    assert run(*words, cwd=folder).returncode == 0
    assert files(folder) == ["q.mgt"]


@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_search_goes_on_with_the_best_so_far(killed, run, folder, number):
    words = killed("megengine.quantization.pipeline.search_state:SearchState.save", number, SEARCH)
    assert (folder / "q.json").exists()
    best = native.load(folder / "q.mgt").graph if (folder / "q.mgt").exists() else None
    assert best is None or best.metadata["megengine.record"]
    done = run(*words, cwd=folder)
    assert done.returncode in (0, 1), done.stderr  # 1: no network keeps the budget
    assert "going on from q.json" in done.stdout
    assert files(folder) == ["q.json", "q.mgt", "q.svg"]


def test_a_search_writes_its_best_network_again(run, model, folder):
    words = SEARCH.replace("MODEL", str(model)).split()
    assert run(*words, cwd=folder).returncode in (0, 1)
    best = (folder / "q.mgt").read_bytes()
    (folder / "q.mgt").unlink()
    done = run(*words, cwd=folder)
    assert done.returncode in (0, 1), done.stderr  # 1: no network keeps the budget
    assert (folder / "q.mgt").read_bytes() == best
