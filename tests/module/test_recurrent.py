"""Recurrent layers against a float64 recurrence, torch, and gradients of both."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine.autodiff import GradManager
from megengine.core.errors import OptionError, ShapeError
from megengine.tensor import tensor


def numbers(*shape):
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def to_torch(layer, twin):
    """Give a torch layer the weights of ours."""
    torch = pytest.importorskip("torch")
    names = [f"l{k}{'_reverse' * d}" for k in range(layer.num_layers) for d in range(layer.num_directions)]
    for name, weights in zip(names, layer._weights(), strict=True):
        for kind, w in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), weights, strict=True):
            if w is not None:
                getattr(twin, f"{kind}_{name}").data = torch.from_numpy(w.numpy().copy())
    return twin


KINDS = [
    ("RNN", {}),
    ("RNN", {"nonlinearity": "relu", "num_layers": 2, "bias": False}),
    ("RNN", {"bidirectional": True, "batch_first": True}),
    ("LSTM", {}),
    ("LSTM", {"num_layers": 2, "bidirectional": True}),
    ("GRU", {}),
    ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("GRU", {"bias": False}),
]


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_sequences_equal_torchs(name, options):
    torch = pytest.importorskip("torch")
    layer = getattr(M, name)(3, 4, **options)
    twin = to_torch(layer, getattr(torch.nn, name)(3, 4, **options))
    x = numbers(5, 2, 3)
    out, states = layer(tensor(x))
    wanted, wanted_states = twin(torch.from_numpy(x))
    np.testing.assert_allclose(out.numpy(), wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
    pairs = zip(states, wanted_states, strict=True) if name == "LSTM" else [(states, wanted_states)]
    for have, want in pairs:
        np.testing.assert_allclose(have.numpy(), want.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_gradients_through_time_equal_torchs(name):
    torch = pytest.importorskip("torch")
    layer = getattr(M, name)(3, 4)
    twin = to_torch(layer, getattr(torch.nn, name)(3, 4))
    x, ct = numbers(6, 2, 3), numbers(6, 2, 4)
    with GradManager().attach(layer._flatten_weights) as manager:
        manager.backward(F.sum(layer(tensor(x))[0] * tensor(ct)))
    (twin(torch.from_numpy(x))[0] * torch.from_numpy(ct)).sum().backward()
    flat = layer._flatten_weights.grad.numpy().reshape(-1)
    wanted = np.concatenate([p.grad.numpy().reshape(-1) for p in twin.parameters()])
    np.testing.assert_allclose(flat, wanted, rtol=1e-4, atol=1e-5)


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def test_cells_are_one_step():
    cell, x, h, c = M.LSTMCell(3, 4), numbers(2, 3), numbers(2, 4), numbers(1, 2, 4)[0]
    w = [p.numpy().astype(np.float64) for p in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)]
    i, f, g, o = np.split(x @ w[0].T + w[2] + h @ w[1].T + w[3], 4, 1)
    new_c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    got_h, got_c = cell(tensor(x), (tensor(h), tensor(c)))
    np.testing.assert_allclose(got_c.numpy(), new_c, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got_h.numpy(), sigmoid(o) * np.tanh(new_c), rtol=1e-5, atol=1e-6)
    assert cell(tensor(x))[0].shape == (2, 4)
    plain = M.RNNCell(3, 4, bias=False)
    w = [plain.weight_ih.numpy(), plain.weight_hh.numpy()]
    np.testing.assert_allclose(plain(tensor(x), tensor(h)).numpy(), np.tanh(x @ w[0].T + h @ w[1].T), rtol=1e-5)
    np.testing.assert_allclose(plain(tensor(x)).numpy(), np.tanh(x @ w[0].T), rtol=1e-5, atol=1e-6)


def test_gated_recurrent_units_are_their_formula():
    """In float64, a cell and a layer of two steps."""
    cell, x, h = M.GRUCell(3, 4), numbers(2, 2, 3), numbers(2, 4)

    def step(x, h, w):
        (xr, xz, xn), (hr, hz, hn) = (np.split(v @ m.T + b, 3, 1) for v, m, b in ((x, w[0], w[2]), (h, w[1], w[3])))
        z, n = sigmoid(xz + hz), np.tanh(xn + sigmoid(xr + hr) * hn)
        return (1 - z) * n + z * h

    w = [p.numpy().astype(np.float64) for p in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)]
    np.testing.assert_allclose(cell(tensor(x[0]), tensor(h)).numpy(), step(x[0], h, w), rtol=1e-5, atol=1e-6)
    assert cell(tensor(x[0])).shape == (2, 4)
    layer = M.GRU(3, 4)
    w = [p.numpy().astype(np.float64) for p in layer._weights()[0]]
    first = step(x[0], h, w)
    out, last = layer(tensor(x), tensor(h[None]))
    np.testing.assert_allclose(out.numpy(), np.stack([first, step(x[1], first, w)]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(last.numpy()[0], out.numpy()[1])
    assert layer.get_output_from_hidden(last) is last


def test_given_states_and_dropout():
    layer = M.LSTM(3, 4)
    x = numbers(4, 2, 3)
    whole, last = layer(tensor(x))
    _, half = layer(tensor(x[:2]))
    rest, end = layer(tensor(x[2:]), half)
    np.testing.assert_allclose(rest.numpy(), whole.numpy()[2:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(end[1].numpy(), last[1].numpy(), rtol=1e-5, atol=1e-6)
    assert layer.get_output_from_hidden(end) is end[0]
    noisy = M.RNN(3, 4, num_layers=2, dropout=0.5)
    assert (noisy(tensor(x))[0].numpy() != noisy(tensor(x))[0].numpy()).any()
    noisy.eval()
    np.testing.assert_array_equal(noisy(tensor(x))[0].numpy(), noisy(tensor(x))[0].numpy())


def test_batch_matmul_activation():
    layer, x = M.BatchMatMulActivation(2, 3, 4, nonlinear_mode="relu"), numbers(2, 3, 4)
    layer.bias._reset(tensor(numbers(4)))
    expected = np.maximum(layer.weight.numpy() @ x + layer.bias.numpy(), 0)
    np.testing.assert_allclose(layer(tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_sync_batch_norm_in_one_process_is_batch_norm():
    x = numbers(4, 3, 5)
    np.testing.assert_array_equal(M.SyncBatchNorm(3)(tensor(x)).numpy(), M.BatchNorm1d(3)(tensor(x)).numpy())


def test_wrong_arguments():
    with pytest.raises(OptionError, match="nonlinearity is 'gelu'; expected one of"):
        M.RNN(3, 4, nonlinearity="gelu")
    with pytest.raises(OptionError, match=r"dropout is 2; expected a probability"):
        M.LSTM(3, 4, dropout=2)
    with pytest.raises(ShapeError, match=r"LSTM: input is \(5, 2, 7\); expected \(time, batch, 3\)"):
        M.LSTM(3, 4)(tensor(numbers(5, 2, 7)))
    with pytest.raises(ShapeError, match="none of them 0"):
        M.RNN(3, 4, batch_first=True)(tensor(np.zeros((2, 0, 3))))
    with pytest.raises(ShapeError, match=r"LSTMCell: input is \(2, 5\); expected \(batch, 3\)"):
        M.LSTMCell(3, 4)(tensor(numbers(2, 5)))
    with pytest.raises(OptionError, match="expected one of .*identity"):
        M.BatchMatMulActivation(1, 1, 1, nonlinear_mode="tanh")
    with pytest.raises(NotImplementedError, match="use RNN, LSTM or GRU"):
        M.rnn.RNNBase(3, 4)


def test_the_states_of_an_lstm_may_be_a_list():
    layer, x, states = M.LSTM(3, 4), tensor(numbers(2, 1, 3)), [tensor(numbers(1, 1, 4)) for _ in range(2)]
    (y, last), (wanted, _) = layer(x, states), layer(x, tuple(states))
    np.testing.assert_array_equal(y.numpy(), wanted.numpy())
    assert [t.shape for t in last] == [(1, 1, 4), (1, 1, 4)]
