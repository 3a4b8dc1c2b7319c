"""Products of rows with the weights of their experts, against products of the parts."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from megengine.convert.torch_experts import expert_decompositions  # noqa: E402

OP = torch.ops.aten._grouped_mm.default
RNG = np.random.default_rng(0)
ROWS, WEIGHTS = (torch.tensor(RNG.standard_normal(shape).astype(np.float32)) for shape in ((7, 4), (3, 4, 5)))


@pytest.mark.parametrize("ends", [(2, 5, 7), (0, 7, 7), (3, 3, 7), (0, 0, 7)])
def test_each_row_has_the_weight_of_its_expert(ends):
    made = expert_decompositions(torch)[OP](ROWS, WEIGHTS, torch.tensor(ends, dtype=torch.int32))
    starts = (0, *ends)
    wanted = torch.cat([ROWS[a:b] @ w for a, b, w in zip(starts, ends, WEIGHTS, strict=False)])
    torch.testing.assert_close(made, wanted)


def test_other_groups_are_left():
    assert expert_decompositions(torch)[OP](WEIGHTS, WEIGHTS.transpose(1, 2)) is NotImplemented
