"""Convolutions whose kernels the network computes: mixed from experts, modulated by a style, one filter a place."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import Parameter, plan, tensor
from megengine.convert.onnx.exporter import to_model
from megengine.quantization import quantize_model, verify
from megengine.quantization.pipeline.canonicalize import canonicalize
from megengine.traced_module import interpret, lower, open_batch, trace_module
from megengine.traced_module.ir.expr import Apply
from tests.helpers.onnx_runtime import answers, session_of

RNG = np.random.default_rng(0)
KERNEL = 6  # input channels of the kernels that are computed


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


class Computed(M.Module):
    """Two layers of fixed weights, and between them one whose kernel is a mix of experts, a different one a sample."""

    def __init__(self, outputs, per_group, taps, kind=F.conv2d, *, bias=False, **window):
        super().__init__()
        self.first, self.last = M.Conv2d(3, KERNEL, 3, padding=1), M.Conv2d(outputs, 4, 1)
        self.mix = M.Linear(KERNEL, 4)
        self.shape = (KERNEL, per_group, *taps) if kind is F.conv_transpose2d else (outputs, per_group, *taps)
        self.experts = Parameter(normal(4, int(np.prod(self.shape))) / 4)
        self.biases = Parameter(normal(4, outputs)) if bias else None
        self.kind, self.window, self.outputs = kind, dict(window), outputs
        self.groups = self.window.pop("groups", 1)

    def forward(self, x):
        x = F.relu(self.first(x))
        n, height, width = x.shape[0], x.shape[2], x.shape[3]
        shares = F.softmax(self.mix(x.mean(axis=(2, 3))), axis=1)
        weight = F.matmul(shares, self.experts).reshape(n * self.shape[0], *self.shape[1:])
        bias = None if self.biases is None else F.matmul(shares, self.biases).reshape(n * self.outputs)
        x = x.reshape(1, n * KERNEL, height, width)
        y = self.kind(x, weight, bias, groups=n * self.groups, **self.window)
        return self.last(F.relu(y.reshape(n, self.outputs, y.shape[2], y.shape[3])))


CASES = {
    "one tap": Computed(8, KERNEL, (1, 1)),
    "nine taps": Computed(8, KERNEL, (3, 3), padding=1, bias=True),
    "one filter a channel": Computed(KERNEL, 1, (3, 3), padding=2, dilation=2, groups=KERNEL),
    "groups and steps": Computed(4, 3, (3, 2), stride=(2, 3), padding=(1, 0), groups=2, bias=True),
    "transposed": Computed(8, 8, (4, 3), F.conv_transpose2d, stride=2, padding=1),
    "transposed in groups": Computed(4, 2, (2, 2), F.conv_transpose2d, stride=(2, 1), groups=2, bias=True),
}


def decibels(got, wanted):
    return 10 * np.log10(np.mean(np.square(wanted)) / np.mean((np.asarray(got) - wanted) ** 2))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_every_product_is_in_integers(name, batch):
    net, batches = CASES[name].eval(), [normal(batch, 3, 9, 8) for _ in range(4)]
    traced = trace_module(net, tensor(batches[0]))
    wanted = net(tensor(batches[0])).numpy()
    opened = canonicalize(lower(traced).graph)
    np.testing.assert_allclose(interpret(opened, batches[:1])[0].numpy(), wanted, rtol=1e-4, atol=1e-5)
    quantized = quantize_model(traced, batches)
    assert not sum(one.macs for one in quantized.report.floating)
    ops = {expr.op for expr in quantized.integer_graph.exprs() if isinstance(expr, Apply)}
    assert not {"conv2d", "conv_transpose2d", "ordered_matmul"} & ops
    assert verify(quantized, batches[:1], threads=(1,)).exact
    got = plan.compile(quantized.integer_graph)(batches[0])[0]
    assert decibels(got, wanted) > 25
    written = session_of(to_model(quantized.integer_graph))
    np.testing.assert_array_equal(answers(written, batches[:1])[0], got)


def test_a_batch_of_kernels_is_opened():
    """Groups hold the batch: a group for each sample of the trace, and of every other batch."""
    net, rows = CASES["nine taps"].eval(), normal(5, 3, 9, 8)
    opened = open_batch(trace_module(net, tensor(rows[:2])))
    for count in (1, 2, 5):
        wanted = np.concatenate([net(tensor(row[None])).numpy() for row in rows[:count]])
        np.testing.assert_allclose(plan.compile(opened)(rows[:count])[0], wanted, rtol=1e-4, atol=1e-5)
    quantized = quantize_model(opened, [(rows[:2],), (rows[2:],)])
    assert not sum(one.macs for one in quantized.report.floating)
    assert verify(quantized, [(rows,), (rows[:1],)], threads=(1,)).exact
    written = session_of(to_model(quantized.integer_graph))
    np.testing.assert_array_equal(answers(written, [rows])[0], plan.compile(quantized.integer_graph)(rows)[0])


@pytest.mark.parametrize("name", ["nine taps", "groups and steps", "transposed in groups"])
def test_a_kernel_for_one_sample_is_one_for_each(name):
    """Ops of a batch of one: the reshapes that bring a batch into the groups change nothing there."""
    net, rows = CASES[name].eval(), normal(3, 3, 9, 8)
    opened = open_batch(lower(trace_module(net, tensor(rows[:1]))).graph)
    wanted = np.concatenate([net(tensor(row[None])).numpy() for row in rows])
    for count in (1, 3):
        np.testing.assert_allclose(plan.compile(opened)(rows[:count])[0], wanted[:count], rtol=1e-4, atol=1e-5)
    opened.graph.lint()


class Painter(M.Module):
    """A constant picture under two kernels that a style scales, of which the first has the constant alone."""

    def __init__(self):
        super().__init__()
        self.picture = Parameter(normal(1, 4, 6, 6))
        self.styles = M.Linear(5, 4)
        self.first, self.last = Parameter(normal(4, 4, 3, 3) / 4), Parameter(normal(3, 4, 1, 1) / 2)

    def forward(self, z):
        style = self.styles(z).reshape(-1, 1, 4, 1, 1) + 1
        n, y = z.shape[0], F.broadcast_to(self.picture, (z.shape[0], 4, 6, 6))
        for weight in (self.first, self.last):
            kernel = (F.expand_dims(weight, 0) * style).reshape(-1, *weight.shape[1:])
            y = F.conv2d(y.reshape(1, n * 4, 6, 6), kernel, padding=weight.shape[2] // 2, groups=n)
            y = F.relu(y.reshape(n, -1, 6, 6))
        return y


def test_a_constant_picture_under_a_computed_kernel():
    """As StyleGAN begins: the windows of the constant are a constant operand of the product."""
    net, rows = Painter().eval(), normal(4, 5)
    wanted = np.concatenate([net(tensor(row[None])).numpy() for row in rows])
    traced = lower(trace_module(net, tensor(rows[:1])))
    np.testing.assert_allclose(open_batch(traced)(tensor(rows)).numpy(), wanted, rtol=1e-4, atol=1e-5)
    quantized = quantize_model(traced, [row[None] for row in rows])
    assert not sum(one.macs for one in quantized.report.floating)
    assert verify(quantized, [rows[:1]], threads=(1,)).exact
    assert decibels(quantized(tensor(rows[:1])).numpy(), wanted[:1]) > 25


def test_a_kernel_of_many_taps_stays_in_float():
    """Each tap would be a part of the input of its own."""
    net = Computed(4, KERNEL, (9, 9), padding=4).eval()
    batches = [normal(1, 3, 12, 12) for _ in range(2)]
    quantized = quantize_model(trace_module(net, tensor(batches[0])), batches)
    assert [one.op for one in quantized.report.floating if one.macs] == ["conv2d"]
    assert verify(quantized, batches[:1], threads=(1,)).exact
