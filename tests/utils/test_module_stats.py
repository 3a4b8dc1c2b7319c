"""module_stats: MegEngine's numbers, tables, modes and hooks restored."""

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import OptionError
from megengine.utils import module_stats as ms
from megengine.utils.stats_tables import printed


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv = M.ConvBn2d(3, 8, 3, padding=1)
        self.c2 = M.Conv2d(8, 8, 3, groups=2, bias=False)
        self.pool, self.ap = M.AvgPool2d(2), M.AdaptiveAvgPool2d(2)
        self.fc, self.ct, self.gn = M.Linear(32, 10), M.ConvTranspose2d(8, 4, 3, stride=2), M.GroupNorm(2, 8)

    def forward(self, x):
        x = self.c2(self.gn(F.relu(self.conv(x))))
        self.ct(x)
        return self.fc(F.flatten(self.ap(self.pool(x)), 1))


def test_as_megengine_counts():
    """What MegEngine 1.13 printed for this network."""
    net = Net()
    net.c2.eval()
    total, rows = ms.module_stats(net, input_shapes=[(1, 3, 16, 16)], logging_to_stdout=False)
    assert total == (4664, 1166, 204206, 46040, 11510)
    assert [r["name"] for r in rows.params] == [
        *("conv.conv-w", "conv.conv-b", "conv.bn-w", "conv.bn-b", "gn-w", "gn-b"),
        *("c2-w", "ct-w", "ct-b", "fc-w", "fc-b", "total"),
    ]
    flops = {r["name"]: r.get("flops_num") for r in rows.flops}
    assert flops == {
        **{"conv.conv": 57344, "conv.bn": 14336, "gn": 14336, "c2": 56448, "ct": 59812},
        **{"pool": 1568, "ap": 32, "fc": 330, "total": None},
    }
    assert [len(r.get("bar", "")) for r in rows.flops] == [19, 4, 4, 18, 20, 0, 0, 0, 0]
    assert rows.flops[0]["flops_cum"] == "57.344 KOPs"
    assert rows.flops[0]["percentage"] == "28.08%"
    assert rows.activations[-1] == {"name": "total", "act_dim": 11510, "size": "44.961 KiB"}
    assert "mean" not in rows.activations[0]  # random inputs say nothing
    assert (net.training, net.c2.training, net.fc.training) == (True, False, True)
    assert not net.fc._forward_hooks


LAYERS = [  # layer, input, what MegEngine 1.13 counts
    (lambda: M.Conv1d(3, 4, 3), (2, 3, 9), 560),
    (lambda: M.Conv3d(3, 4, 3), (1, 3, 5, 5, 5), 8856),
    (lambda: M.Conv2d(3, 4, (3, 2), stride=2), (2, 3, 9, 9), 2432),
    (lambda: M.ConvTranspose2d(4, 6, 3, groups=2, bias=False), (1, 4, 5, 5), 2700),
    (lambda: M.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 5, 5), 5988),
    (lambda: M.LocalConv2d(3, 4, 6, 6, 3), (1, 3, 6, 6), 1728),
    (lambda: M.Linear(3, 4, bias=False), (2, 3), 24),
    (lambda: M.Linear(3, 4), (2, 5, 3), 124),
    (lambda: M.BatchNorm1d(3), (2, 3, 4), 168),
    (lambda: M.LayerNorm(4, affine=False), (2, 4), 56),
    (lambda: M.InstanceNorm(3), (2, 3, 4, 4), 672),
    (lambda: M.MaxPool2d(3, 2), (1, 2, 7, 7), 162),
    (lambda: M.AvgPool2d((2, 3)), (1, 2, 7, 9), 108),
    (lambda: M.AdaptiveAvgPool2d((3, 2)), (2, 2, 10, 12), 24),
    (lambda: M.AdaptiveMaxPool2d(3), (1, 2, 9, 9), 18),
]


@pytest.mark.parametrize(("make", "shape", "expected"), LAYERS)
def test_operations_of_layers(make, shape, expected):
    layer, x = make(), mge.tensor(np.zeros(shape, np.float32))
    assert ms.get_op_stats(layer, [x], [layer(x)])["flops_num"] == expected


def test_batches_of_products_and_unknown_layers():
    layer, x = M.BatchMatMulActivation(2, 3, 4, bias=False), mge.tensor(np.zeros((2, 3, 5), np.float32))
    assert ms.get_op_stats(layer, [x], [layer(x)])["flops_num"] == 2 * 4 * 5 * 3
    assert ms.get_op_stats(M.ReLU(), [x], [x]) is None


class Pair(M.Module):
    def __init__(self):
        super().__init__()
        self.one = M.Linear(3, 4)
        self.extra = mge.Parameter(np.ones(5, np.float32))

    def forward(self, d):
        return {"y": self.one(d["a"]) + self.one(d["b"])}


@pytest.mark.parametrize(
    "given", [{"inputs": {k: np.ones((1, 3), "f") for k in "ab"}}, {"input_shapes": {"a": (1, 3), "b": (1, 3)}}]
)
def test_dicts_and_layers_used_twice(given):
    total, rows = ms.module_stats(Pair(), logging_to_stdout=False, **given)
    assert (total.param_dims, total.flops, total.act_dims) == (16 + 5, 32, 8)
    assert [r["name"] for r in rows.params] == ["one-w", "one-b", "-extra", "total"]


def test_inputs_or_shapes():
    with pytest.raises(OptionError, match="expected inputs or input_shapes"):
        ms.module_stats(M.Linear(3, 4))


def test_hooks_leave_when_the_model_fails():
    net = M.Sequential(M.Linear(3, 4))
    with pytest.raises(ValueError, match="linear"):
        ms.module_stats(net, input_shapes=(1, 5))
    assert not net[0]._forward_hooks
    assert net[0].training


def test_a_part_alone_and_empty_models():
    total, rows = ms.module_stats(
        M.Linear(3, 4), input_shapes=(1, 3), cal_flops=False, cal_activations=False, logging_to_stdout=False
    )
    assert total == (64, 16, 0, 0, 0)
    assert rows.flops == rows.activations == []
    total, _ = ms.module_stats(M.Identity(), input_shapes=(0, 3))
    assert total == (0, 0, 0, 0, 0)


def test_receptive_fields():
    net = M.Sequential(M.Conv2d(1, 2, 3, padding=1), M.ReLU(), M.MaxPool2d(2), M.Conv2d(2, 2, 3, dilation=2))
    ms.enable_receptive_field()
    try:
        _, rows = ms.module_stats(net, inputs=np.zeros((1, 1, 16, 16), np.float32))
    finally:
        ms.disable_receptive_field()
    found = [(r["receptive_field"], r["stride"]) for r in rows.flops[:-1]]
    assert found == [((3, 3), (1, 1)), ((4, 4), (2, 2)), ((12, 12), (2, 2))]
    _, rows = ms.module_stats(net, input_shapes=(1, 1, 16, 16), logging_to_stdout=False)
    assert "stride" not in rows.flops[0]


def test_counters_of_users():
    class Mine(M.Module):
        def forward(self, x):
            return x

    ms.register_hook_module(Mine)
    try:
        ms.register_flops(Mine)(lambda module, inputs, outputs: 7)
        assert ms.module_stats(Mine(), input_shapes=(2,))[0].flops == 7
    finally:
        ms.hook_modules.remove(Mine)
        ms._flops.pop(Mine)


def test_numbers_and_tables():
    values = (0, 1, 1000, 1023, 1024, 1e6, 1e15, 1e25)
    assert [ms.sizeof_fmt(v) for v in values[:6]] == [
        *("0.000 B", "1.000 B", "1000.000 B", "1023.000 B", "1.000 KiB", "976.562 KiB"),
    ]
    assert [ms.sizeof_fmt(v, "OPs") for v in values[2:]] == [
        *("1.000 KOPs", "1.023 KOPs", "1.024 KOPs", "1.000 MOPs", "1.000 POPs", "10.000 YOPs"),
    ]
    table = ms.dict2table([{"a": 1, "b": 2}, {"a": 3}], ["a", "b"])
    assert table == [["a", "b"], [1, 2], [3, ""]]
    assert printed(table) == "-  -\na  b\n-  -\n1  2\n3\n-  -"
