"""Ctrl-C in the middle of every stage: one line, exit code 130, no file, no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

# The process interrupts itself when a function of the stage is called, and would go on with the real one.
STRIKE = """
import importlib, os, signal, sys
module, name = sys.argv[1].split(":")
home = importlib.import_module(module)
*path, name = name.split(".")
for one in path:
    home = getattr(home, one)
real = getattr(home, name)
def struck(*args, **kwargs):
    print("stage reached", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    return real(*args, **kwargs)
setattr(home, name, struck)
sys.argv = ["mge-quantize", *sys.argv[2:]]
from megengine.cli import main
main()
"""
LONG = 300  # seconds: it ends a test that hangs, and nothing is measured by it
LINE = "mge-quantize: interrupted; no unfinished file was left"
PTQ = "ptq MODEL --data data.npy -o out.mgt --onnx out.onnx --report out.html"
STAGES = [
    ("import", "megengine.convert.onnx.importer:read_model", PTQ),
    ("lower the import", "megengine.cli.jobs:lower", PTQ),
    ("read data", "megengine.cli.readers:check_batch", PTQ),
    ("canonicalize", "megengine.quantization.pipeline.calibrate:canonicalize", PTQ),
    ("calibrate", "megengine.kernels.counting:count", PTQ),
    ("freeze", "megengine.quantization.pipeline.quantize:freeze", PTQ),
    ("integerize", "megengine.quantization.pipeline.integer_graph:integerize", PTQ),
    ("write the model", "megengine.traced_module.formats.archives:layout", PTQ),
    ("write ONNX", "onnx.checker:check_model", PTQ),
    ("analyze", "megengine.quantization.pipeline.quantize:analyze", PTQ),
    ("report", "megengine.cli.report:render", PTQ),
    ("publish", "os:chmod", PTQ),
    ("inspect", "megengine.cli.inspecting:summary", "inspect MODEL"),
    ("draw", "megengine.traced_module.pictures.drawing:to_svg", "draw MODEL -o out.svg"),
    ("round in turn", "megengine.quantization.pipeline.sequential:compensated", f"{PTQ} --rounding gptaq"),
    ("round up or down", "megengine.quantization.pipeline.adaround:_error", f"{PTQ} --rounding adaround"),
    ("reconstruct", "megengine.quantization.pipeline.reconstruct:_Run._learn", f"{PTQ} --reconstruction 9 --state st"),
    ("advice", "megengine.quantization.pipeline.advice:_proposals", "analyze MODEL --data data.npy --report out.html"),
    ("specification", "megengine.quantization.checks.verify:specification", "verify QUANTIZED --data data.npy"),
    ("eager", "megengine.quantization.checks.verify:eager", "verify QUANTIZED --data data.npy"),
    ("compile", "megengine.plan:compile", "bench MODEL QUANTIZED"),
    ("bench", "time:process_time_ns", "bench MODEL QUANTIZED"),
]


@pytest.fixture(scope="module")
def quantized(run, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized")
    np.save(folder / "data.npy", np.random.default_rng(1).standard_normal((16, 3, 16, 16)).astype(np.float32))
    assert run("ptq", model, "--data", "data.npy", "-o", "q.mgt", cwd=folder).returncode == 0
    return folder


@pytest.mark.parametrize(("place", "words"), [stage[1:] for stage in STAGES], ids=[stage[0] for stage in STAGES])
def test_interrupted_in_every_stage(place, words, model, quantized, tmp_path, python):
    (tmp_path / "data.npy").symlink_to(quantized / "data.npy")
    names = {"MODEL": str(model), "QUANTIZED": str(quantized / "q.mgt")}
    done = python(STRIKE, [place, *(names.get(word, word) for word in words.split())], cwd=tmp_path)
    assert "stage reached" in done.stdout, done.stderr
    assert done.returncode == 130
    assert done.stderr.strip() == LINE
    assert [path.name for path in tmp_path.iterdir()] == ["data.npy"]


EARLY = """
import os, signal, sys
class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == "{name}":
            print("stage reached", flush=True)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Strike())
from megengine.cli import main
main()
"""


@pytest.mark.parametrize("name", ["numpy", "megengine.module", "megengine.cli", "megengine.cli.app", "click"])
def test_interrupted_while_it_is_imported(name, tmp_path):
    """Before anything begins: no traceback, and the code that shells give to an interrupted program."""
    script = tmp_path / "mge-quantize"
    script.write_text(EARLY.format(name=name))
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert "stage reached" in done.stdout and "Usage" not in done.stdout
    assert (done.returncode, done.stderr.strip()) == (130, LINE)


LATE = EARLY.replace("os.kill(os.getpid(), signal.SIGINT)", "os.kill(os.getpid(), signal.{number})")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *((name, "SIGINT") for name in ("onnx", "megengine.traced_module", "PIL.Image", "jinja2")),
        *(("onnx.onnx_cpp2py_export", number) for number in ("SIGINT", "SIGTERM")),
    ],
)
def test_interrupted_while_a_command_imports(name, number, model, quantized, tmp_path):
    """The import goes on to its end: what is half imported ends in other errors, and in C++ the program."""
    script = tmp_path / "mge-quantize"
    script.write_text(LATE.format(name=name, number=number))
    words = ["ptq", model, "--data", quantized / "data.npy", "-o", "out.mgt", "--report", "out.html"]
    done = subprocess.run(
        [sys.executable, script, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "stage reached" in done.stdout
    assert (done.returncode, done.stderr.strip()) == (130, LINE)
    assert [path.name for path in tmp_path.iterdir()] == ["mge-quantize"]


ENDLESS = """
import os, sys
from megengine.cli import main
sys.path.insert(0, os.getcwd())
sys.argv = ["mge-quantize", "inspect", "net.py:build"]
main()
"""


def test_an_import_that_does_not_end_is_ended_by_more_interrupts(tmp_path):
    (tmp_path / "net.py").write_text("import endless\n")
    (tmp_path / "endless.py").write_text(
        "import time\nprint('stage reached', flush=True)\n"
        "end = time.monotonic() + 60\nwhile time.monotonic() < end: pass\n"
    )
    process = subprocess.Popen([sys.executable, "-c", ENDLESS], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "stage reached\n"
    deadline = time.monotonic() + LONG
    while process.poll() is None and time.monotonic() < deadline:  # it has a second in which it may end by itself
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    process.communicate(timeout=LONG)
    assert process.returncode == -signal.SIGINT


def test_other_programs_keep_their_signals():
    program = "import signal, megengine; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_an_old_file_survives(model, quantized, tmp_path, python):
    (tmp_path / "out.mgt").write_text("old")
    words = ["ptq", model, "--data", quantized / "data.npy", "-o", "out.mgt"]
    done = python(STRIKE, ["megengine.traced_module.formats.archives:layout", *words], cwd=tmp_path)
    assert done.returncode == 130
    assert (tmp_path / "out.mgt").read_text() == "old"


def runs(process):
    """A process that has ended but was not yet collected (state Z) does not run."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


HEARD = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # which nohup leaves ignored

# The moment in which the child runs and `Popen` has not returned: on a busy machine it lasts.
POPEN = """
import os, signal, subprocess
class Struck(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        while not os.path.exists("started"):
            pass
        os.kill(os.getpid(), signal.{number})
        for _ in range(1000):
            pass
subprocess.Popen = Struck
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("early", [False, True], ids=["running", "beginning"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_while_a_download_runs(number, early, tmp_path):
    """The child that downloads ends too, and the cache holds nothing."""
    for name in ("apt-get", "dpkg-deb"):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        told = f"echo $$ > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/started"  # at once, with its content
        script.write_text(f"#!/bin/sh\n{told}\nexec sleep 600\n")
        script.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "MEGENGINE_CACHE": f"{tmp_path}/cache"}
    program = (
        HEARD
        + (POPEN.format(number=number.name) if early else "")
        + (
            "from pathlib import Path\nfrom megengine.cli import assets, main\n"
            "assets.STAMPS_INSTALLED = Path('/nonexistent')\nmain()\n"
        )
    )
    command = [sys.executable, "-c", program, "demo", "-o", "out.html"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + LONG
    while not (started := tmp_path / "started").exists() or not started.read_text().strip():
        assert time.monotonic() < deadline and (early or process.poll() is None)
        time.sleep(0.02)
    if not early:
        process.send_signal(number)
    _, err = process.communicate(timeout=LONG)
    assert (process.returncode, err.strip().splitlines()[-1]) == (130, LINE)
    assert "Traceback" not in err
    assert not runs(int(started.read_text()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "cache", "started"]
    assert not list((tmp_path / "cache").iterdir())
