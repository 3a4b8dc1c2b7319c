"""Float parts of integer networks have the bits of the specification on a GPU, which the emulator stands for."""

import pytest
from emulated_gpu import EmulatedGpu
from zoo import ZOO

from megengine.kernels.cuda.runtime import installed
from megengine.quantization import quantize_model, verify
from megengine.traced_module import trace_module

# networks whose float layers add numbers: sums, means, softmax, norms
SLOW = ("bert", "convnext", "pointnet", "style_block", "transformer")
NETS = ["siamese", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.mark.parametrize("name", NETS)
def test_float_parts_are_equal(name):
    net, given = ZOO[name]()
    traced = trace_module(net, *given)
    values = tuple(v.numpy() for v in (given[0].values() if isinstance(given[0], dict) else given))
    one = values if len(values) > 1 else values[0]
    with installed(EmulatedGpu()):
        result = verify(quantize_model(traced, [one]), [one], devices=["gpu0"], threads=(1,), with_float=False)
    assert result.exact, result
