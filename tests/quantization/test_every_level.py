"""Whole networks at every instruction set level of the machine: zero steps, and the same result everywhere."""

import json
import os
import subprocess
import sys

import pytest

from megengine.kernels import isa

PROGRAM = """
import hashlib, json, sys
import numpy as np
from megengine import models, random
from megengine.kernels import isa
from megengine.plan import compile
from megengine.quantization import quantize_model, verify
from megengine.traced_module import trace_module
from megengine.tensor import Tensor

name, size = sys.argv[1], int(sys.argv[2])
random.seed(0)
rng = np.random.default_rng(0)
pictures = [rng.standard_normal((1, 3, size, size)).astype(np.float32) for _ in range(3)]
traced = trace_module(getattr(models, name)().eval(), Tensor(pictures[0]))
# float sums differ between levels in the last bits, so one calibration is shared through the file system
from megengine.traced_module.formats import native as files
from pathlib import Path
path = Path(sys.argv[3])
if not path.exists():
    files.save(quantize_model(traced, [(p,) for p in pictures]).traced(), path)
model = files.load(path)
result = verify(model, pictures[:1], threads=(1, 2), with_float=False)
out = compile(model)(pictures[1])[0]
digest = hashlib.sha256(np.ascontiguousarray(out)).hexdigest()
print(json.dumps({"level": isa.active(), "exact": result.exact, "text": str(result), "digest": digest}))
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "size"), [("mobilenet_v2", 224), ("resnet50", 128), ("squeezenet1_1", 227)])
def test_zero_steps_at_every_level(name, size, tmp_path):
    digests = {}
    for level in reversed(isa.available()):
        environment = {**os.environ, "MEGENGINE_MAX_ISA": level}
        environment.pop("ONEDNN_MAX_CPU_ISA", None)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, name, str(size), str(tmp_path / "model.mgt")],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["level"] == level
        assert found["exact"], found["text"]
        digests[level] = found["digest"]
    assert len(set(digests.values())) == 1, digests
