"""Fork while other threads run kernels: `fork_rounds.py KINDS ROUNDS`; children that do not end within 20 s are hung.

Prints the number of children that did what all threads do, and ends with 1 if one hung or failed.
"""

import faulthandler
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.autodiff import GradManager
from megengine.data import DataLoader
from megengine.data.dataset import ArrayDataset
from megengine.data.sampler import SequentialSampler
from megengine.traced_module import trace_module

rng = np.random.default_rng(0)
x = mge.tensor(rng.standard_normal((2, 16, 48, 48)).astype(np.float32))
net = M.Sequential(M.Conv2d(16, 32, 3, padding=1), M.ReLU(), M.Conv2d(32, 32, 3, padding=1))
square = mge.tensor(rng.standard_normal((400, 400)).astype(np.float32))
compiled = plan.compile(trace_module(net, x), threads=2)


class Inverse(M.Module):
    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return net(F.matinv(x))  # without a native kernel


with_python_steps = plan.compile(trace_module(Inverse(), x))


def loader() -> None:
    pictures = ArrayDataset(x.numpy().repeat(4, 0), np.arange(8))
    for batch, _ in DataLoader(pictures, SequentialSampler(pictures, 2)):
        net(mge.tensor(batch)).numpy()


def eager() -> None:
    net(x).numpy()


def in_a_thread(run: Callable[[], None]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def train() -> None:
    with GradManager().attach(net.parameters()) as gm:
        gm.backward(net(x).mean())


KINDS = {
    "plan": lambda: compiled(x.numpy()),
    "python": lambda: with_python_steps(x.numpy()),
    "eager": eager,
    "matmul": lambda: F.matmul(square, square).numpy(),
    "svd": lambda: F.svd(square[:100, :100]),
    "loader": loader,
    "train": train,
    "threads": lambda: in_a_thread(eager),
}


def do_all(kinds: list[str]) -> None:
    for kind in kinds:
        KINDS[kind]()


def fork_one(kinds: list[str]) -> bool:
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(20, exit=True)
        do_all(kinds)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def pool(kinds: list[str]) -> bool:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        workers.map_async(do_all, [kinds] * 2).get(timeout=20)
    return True


def main() -> None:
    faulthandler.enable()
    kinds, rounds = sys.argv[1].split(","), int(sys.argv[2])
    do_all(kinds)
    stop = threading.Event()

    def work(kind: str) -> None:
        while not stop.is_set():
            KINDS[kind]()

    threads = [threading.Thread(target=work, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    good = 0
    for i in range(rounds):
        time.sleep(0.002 * (i % 5))
        good += (pool if i % 8 == 7 else fork_one)(kinds)
        if good <= i - 1:
            break
    stop.set()
    for thread in threads:
        thread.join()
    print(f"{good} of {rounds}")
    sys.exit(good != rounds)


if __name__ == "__main__":
    main()
