"""Makes the .pth files beside it; needs torch (2.13.0 was used). The expected values are in expected.npz."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
torch.manual_seed(0)
base = torch.randn(4, 6)
shared = torch.arange(12, dtype=torch.float32)
state = OrderedDict(
    f32=base,
    transposed=base.t(),
    part=base[1:3, ::2],
    f64=torch.randn(3, dtype=torch.float64),
    f16=torch.randn(5).half(),
    bf16=torch.randn(2, 3).bfloat16(),
    i64=torch.tensor([2**40, -1]),
    i32=torch.tensor([[1, -2]], dtype=torch.int32),
    i16=torch.tensor([300], dtype=torch.int16),
    i8=torch.tensor([-128, 127], dtype=torch.int8),
    u8=torch.tensor([0, 255], dtype=torch.uint8),
    boolean=torch.tensor([True, False]),
    scalar=torch.tensor(3.5),
    empty=torch.zeros(0, 3),
    expanded=torch.tensor([[1.0], [2.0]]).expand(2, 3),
    first=shared[:4],
    last=shared[8:],
    parameter=torch.nn.Parameter(torch.ones(2)),
)
torch.save(state, HERE / "zip.pth")
torch.save(state, HERE / "legacy.pth", _use_new_zipfile_serialization=False)
torch.save({"epoch": 3, "model": torch.nn.BatchNorm2d(2).state_dict(), "lr": [0.1, None]}, HERE / "checkpoint.pth")
torch.save(torch.nn.Linear(2, 2), HERE / "module.pth")
np.savez(
    HERE / "expected.npz",
    **{k: v.detach().float().numpy() if k == "bf16" else v.detach().numpy() for k, v in state.items()},
)
