"""Plans with several threads: the same bits for any number, one set of workers, idle workers, forks."""

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan, tensor
from megengine.quantization import quantize_model
from megengine.traced_module import trace_module

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def convolution(c, o, k=1, stride=1, groups=1):
    return M.Sequential(M.Conv2d(c, o, k, stride, k // 2, groups=groups), M.ReLU())


NETS = {
    "rows of one picture": (convolution(3, 32, 3, 2), (1, 3, 64, 64)),
    "channels of few rows": (convolution(96, 130), (1, 96, 7, 7)),
    "channels of one pixel": (convolution(256, 160), (1, 256, 1, 1)),
    "another order in the library": (convolution(256, 96, 5), (1, 256, 15, 15)),
    "images": (convolution(24, 40, 3), (5, 24, 9, 9)),
    "depthwise": (convolution(48, 48, 3, groups=48), (1, 48, 14, 14)),
    "own activation": (M.Sequential(M.Conv2d(64, 128, 1), M.SiLU()), (1, 64, 7, 7)),
    "linear, one row": (M.Linear(1280, 1000), (1, 1280)),
    "linear, few rows": (M.Linear(256, 1000), (9, 256)),
    "linear, many rows": (M.Linear(96, 200), (320, 96)),
}


class Residual(M.Module):
    def __init__(self):
        super().__init__()
        self.conv = M.Conv2d(128, 128, 3, 1, 1)

    def forward(self, x):
        return self.conv(x) + x


NETS["residual beside channels"] = (M.Sequential(convolution(16, 128), Residual(), M.ReLU()), (1, 16, 5, 5))


def same_bits(traced, *inputs):
    one, *others = [plan.compile(traced, threads=n)(*inputs)[0] for n in (1, 2, 3, 8)]
    for other in others:
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


@pytest.mark.parametrize("name", NETS)
def test_any_number_of_threads_gives_the_same_bits(name):
    net, shape = NETS[name]
    x = draw(*shape)
    same_bits(trace_module(net.eval(), tensor(x)), x)


class LinearAttention(M.Module):
    def forward(self, q, k, v):
        q, k, v = (x.reshape(*x.shape[:2], 1, -1).transpose(0, 2, 1, 3) for x in (q, k, v))
        return F.matmul(q, F.matmul(k, v, transpose_a=True)).transpose(0, 2, 1, 3)


class Product(M.Module):
    def __init__(self, turned_a, turned_b):
        super().__init__()
        self.turned = {"transpose_a": turned_a, "transpose_b": turned_b}

    def forward(self, a, b):
        return F.matmul(a, b, **self.turned)


PRODUCTS = [
    (LinearAttention(), [(1, 64, 8)] * 3),
    (Product(False, False), [(4, 20, 64), (4, 64, 20)]),
    (Product(False, True), [(100, 16), (3, 16)]),
    (Product(True, False), [(100, 100), (100, 16)]),
    (Product(True, False), [(1, 1, 256, 7), (1, 1, 256, 256)]),
]


@pytest.mark.parametrize(("net", "shapes"), PRODUCTS)
def test_products_of_computed_values_have_the_same_bits(net, shapes):
    inputs = [draw(*shape) for shape in shapes]
    same_bits(trace_module(net, *map(tensor, inputs)), *inputs)


@pytest.mark.parametrize("name", ["rows of one picture", "residual beside channels", "linear, few rows"])
def test_any_number_of_threads_gives_the_same_integers(name):
    net, shape = NETS[name]
    traced = trace_module(net.eval(), tensor(draw(*shape)))
    same_bits(quantize_model(traced, [(draw(*shape),) for _ in range(2)]).traced(), draw(*shape))


BEGIN = """
import json, os, sys, time
import numpy as np
from megengine import plan, tensor
import megengine.module as M
from megengine.traced_module import trace_module
def tasks(): return len(os.listdir("/proc/self/task"))
x = np.ones((1, 64, 28, 28), "float32")
traced = trace_module(M.Conv2d(64, 64, 3), tensor(x))
def compiled(n): return plan.compile(traced, threads=n)
wanted, before, seen = compiled(1)(x)[0], tasks(), {}
"""
WORKERS = """
for p in [compiled(2) for _ in range(3)]: p(x); p(x)
seen["of three plans"] = tasks() - before
time.sleep(0.05); begin = time.process_time(); time.sleep(0.2); seen["seconds"] = time.process_time() - begin
if os.fork() == 0:
    before = tasks(); same = (p(x)[0] == wanted).all()
    os._exit(10 * same + tasks() - before)
seen["of a child"] = os.waitstatus_to_exitcode(os.wait()[1])
seen["right"] = bool((p(x)[0] == wanted).all() and (compiled(64)(x)[0] == wanted).all())
seen["of a plan for 64"] = tasks() - before
print(json.dumps(seen))
"""
ONE_CPU = """
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
seen["right"] = bool((compiled(4)(x)[0] == wanted).all())
print(json.dumps({**seen, "workers": tasks() - before}))
"""


def printed(code: str) -> dict:
    command, environment = [sys.executable, "-c", BEGIN + code], {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="one CPU, or no /proc")
def test_plans_share_workers_that_sleep_between_runs_and_stay_behind_at_a_fork():
    seen = printed(WORKERS)
    assert seen.pop("seconds") < 0.05  # of CPU time in 0.2 s without a run
    assert 1 <= seen.pop("of a plan for 64") <= len(os.sched_getaffinity(0)) - 1
    assert seen == {"of three plans": 1, "of a child": 11, "right": True}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_there_are_no_workers_where_the_process_may_use_one_cpu():
    assert printed(ONE_CPU) == {"right": True, "workers": 0}


def test_plans_run_in_several_python_threads_at_once():
    x = draw(1, 64, 20, 20)
    traced = trace_module(convolution(64, 64, 3), tensor(x))
    wanted, wrong = plan.compile(traced)(x)[0], []

    def work():
        compiled = plan.compile(traced, threads=2)
        wrong.extend(i for i in range(50) if not np.array_equal(compiled(x)[0], wanted))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
