"""Recurrent layers and their cells."""

from __future__ import annotations

import math
import numbers
from typing import Any, ClassVar

from megengine import functional as F
from megengine.core.calls import shown
from megengine.core.effectless import warn_once
from megengine.core.errors import ArgumentError, MissingMethodError, OptionError, ShapeError
from megengine.core.limits import refuse_oversized
from megengine.module import init
from megengine.module.module import Module
from megengine.ops.common import choice
from megengine.ops.recurrent import recurrent_layer
from megengine.tensor import Parameter, Tensor

_CellWeights = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # of the input, of the state, and their biases


def _reset(layer: Module, hidden_size: int) -> None:
    limit = 1 / math.sqrt(max(hidden_size, 1))
    for parameter in layer.parameters():
        init.uniform_(parameter, -limit, limit)


def _nonlinearity(owner: str, name: str) -> Any:
    functions = {function.__name__: function for function in (F.tanh, F.relu)}
    return functions[choice(owner, "nonlinearity", name, tuple(functions), any_case=True)]


class RNNCellBase(Module):
    """Weights of a cell with `num_chunks` gates: weight_ih [gates, input], weight_hh [gates, hidden], two biases."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool, num_chunks: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        self.gate_hidden_size = num_chunks * hidden_size
        self.weight_ih = init.parameter((self.gate_hidden_size, input_size))
        self.weight_hh = init.parameter((self.gate_hidden_size, hidden_size))
        kind = Parameter if bias else Tensor  # without bias these stay 0, but state dicts hold them
        self.bias_ih = kind(init.parameter((self.gate_hidden_size,)))
        self.bias_hh = kind(init.parameter((self.gate_hidden_size,)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(hidden_size)."""
        _reset(self, self.hidden_size)

    def _shares(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The summands of the gates that come from the input and from the state."""
        if x.ndim != 2 or x.shape[1] != self.input_size:
            raise ShapeError(f"{type(self).__name__}: input is {x.shape}; expected (batch, {self.input_size})")
        return F.linear(x, self.weight_ih, self.bias_ih), F.linear(h, self.weight_hh, self.bias_hh)

    def _gates(self, x: Tensor, h: Tensor) -> Tensor:
        from_input, from_hidden = self._shares(x, h)
        return from_input + from_hidden

    def _zeros(self, x: Tensor) -> Tensor:
        return F.zeros((x.shape[0], self.hidden_size), dtype=x.dtype, device=x.device)


class RNNCell(RNNCellBase):
    """One step of an Elman network: h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or with relu."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh") -> None:
        _nonlinearity("RNNCell", nonlinearity)
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, bias, num_chunks=1)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """[N, input] and the state [N, hidden] (zeros without it) -> the new state."""
        gates = self._gates(input, self._zeros(input) if hx is None else hx)
        return _nonlinearity("RNNCell", self.nonlinearity)(gates)


class LSTMCell(RNNCellBase):
    """One step of a long short-term memory (Hochreiter and Schmidhuber 1997); gates in the order i, f, g, o."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=4)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """[N, input] and the states (h, c), each [N, hidden] (zeros without them) -> the new (h, c)."""
        states = (self._zeros(input), self._zeros(input)) if hx is None else hx
        if not isinstance(states, (tuple, list)) or len(states) != 2:
            raise ArgumentError(f"LSTMCell: hx is {shown(hx)}; expected the states (h, c)")
        i, f, g, o = F.split(self._gates(input, states[0]), 4, axis=-1)
        c = F.sigmoid(f) * states[1] + F.sigmoid(i) * F.tanh(g)
        return F.sigmoid(o) * F.tanh(c), c


class GRUCell(RNNCellBase):
    """One step of a gated recurrent unit (Cho et al. 2014); gates in the order r, z, n.

    The reset gate comes after the product, as in cuDNN and PyTorch.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=3)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """[N, input] and the state [N, hidden] (zeros without it) -> the new state."""
        h = self._zeros(input) if hx is None else hx
        (xr, xz, xn), (hr, hz, hn) = (F.split(share, 3, axis=-1) for share in self._shares(input, h))
        z, n = F.sigmoid(xz + hz), F.tanh(xn + F.sigmoid(xr + hr) * hn)
        return n + z * (h - n)


class RNNBase(Module):
    """Layers of recurrent cells over a sequence, forward or in both directions.

    The weights in use are in `_flatten_weights` [gates, ...]: flattened, cell by cell (layer, then direction), in the
    order weight_ih, weight_hh, bias_ih, bias_hh. State dicts also hold `cells`, as MegEngine's do.
    """

    _cell: ClassVar[str] = "rnn"
    _states: ClassVar[tuple[str, ...]] = ("h",)
    _order: ClassVar[tuple[int, ...]] = (0,)  # our gates in the order of ONNX's

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0,
        bidirectional: bool = False,
        proj_size: int = 0,
    ) -> None:
        super().__init__()
        sizes = (input_size, hidden_size, num_layers)
        if not all(isinstance(n, numbers.Integral) for n in (*sizes, bias, proj_size)) or min(sizes) < 1:
            raise ArgumentError(
                f"{type(self).__name__}: input_size={input_size}, hidden_size={hidden_size}, num_layers={num_layers}, "
                f"bias={bias}, proj_size={shown(proj_size)}; expected integers of at least 1"
            )
        refuse_oversized(type(self).__name__, (num_layers, len(self._order) * hidden_size, hidden_size), 4)
        if not 0 <= dropout <= 1:
            raise OptionError(f"{type(self).__name__}: dropout is {dropout}; expected a probability in [0, 1]")
        if proj_size:
            warn_once(f"{type(self).__name__}(proj_size=...)", "MegEngine ignores it too")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bool(bias), batch_first, float(dropout)
        self.bidirectional, self.num_directions, self.proj_size = bidirectional, 2 if bidirectional else 1, proj_size
        self.cells = [[self.create_cell(layer) for _ in range(self.num_directions)] for layer in range(num_layers)]
        gates = len(self._order) * hidden_size
        total = sum(math.prod(shape) for _, shapes in self._layout() for shape in shapes)
        self._flatten_weights = init.parameter((gates, total // gates))
        self.reset_parameters()

    def _input_size(self, layer: int) -> int:
        return self.input_size if layer == 0 else self.num_directions * self.hidden_size

    def _layout(self) -> list[tuple[int, list[tuple[int, ...]]]]:
        """Per cell: its layer and the shapes of its weights, in the order of `_flatten_weights`."""
        gates = len(self._order) * self.hidden_size
        return [
            (layer, [(gates, self._input_size(layer)), (gates, self.hidden_size), *[(gates,)] * (2 * self.bias)])
            for layer in range(self.num_layers)
            for _ in range(self.num_directions)
        ]

    def _weights(self) -> list[_CellWeights]:
        flat = F.reshape(self._flatten_weights, (-1,))
        cells, start = [], 0
        for _, shapes in self._layout():
            parts: list[Tensor] = []
            for shape in shapes:
                stop = start + math.prod(shape)
                parts.append(F.reshape(flat[start:stop], shape))
                start = stop
            weight_ih, weight_hh, bias_ih, bias_hh = (*parts, None, None)[:4]
            cells.append((weight_ih, weight_hh, bias_ih, bias_hh))
        return cells

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(hidden_size)."""
        _reset(self, self.hidden_size)

    def create_cell(self, layer: int) -> RNNCellBase:
        """A cell with the sizes of a layer."""
        raise MissingMethodError(f"{type(self).__name__} has no create_cell; use RNN, LSTM or GRU")

    def init_hidden(self, batch_size: int = 1) -> Any:
        """A state of zeros [layers * directions, batch, hidden]."""
        shape = (self.num_layers * self.num_directions, batch_size, self.hidden_size)
        return F.zeros(shape, dtype=self._flatten_weights.dtype, device=self._flatten_weights.device)

    def get_output_from_hidden(self, hx: Any) -> Tensor:
        """The part of a state that is the layer's output: here the state itself."""
        return hx

    def _in_order(self, weight: Tensor) -> Tensor:
        """Rows of a weight with the gates in ONNX's order."""
        if len(self._order) == 1:
            return weight
        parts = F.split(weight, len(self._order), axis=0)
        return F.concat([parts[k] for k in self._order], axis=0)

    def _scan(self, x: Tensor, cells: list[_CellWeights], states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One layer over [T,N,I]: outputs [T,directions,N,H] and the last states, each [directions,N,H]."""
        w, r, *biases = ([self._in_order(p) for p in parts if p is not None] for parts in zip(*cells, strict=True))
        optional = {"bias": F.stack([F.concat(pair) for pair in zip(*biases, strict=True)])} if self.bias else {}
        optional |= zip(self._states, states, strict=True)
        direction = "bidirectional" if self.bidirectional else "forward"
        return recurrent_layer(type(self)._cell, x, F.stack(w), F.stack(r), optional, direction, **self._options())

    def _options(self) -> dict[str, Any]:
        return {}

    def apply_op(self, input: Tensor, hx: Any) -> tuple[Tensor, Any]:
        """The layers over [T,N,input] from given states: output [T,N,directions * hidden] and the last states.

        Raises ArgumentError unless an LSTM gets the two states (h, c), and another layer one tensor.
        """
        pair = len(self._states) == 2
        if isinstance(hx, (tuple, list)) != pair or (pair and len(hx) != 2):
            expected = "the states (h, c)" if pair else "one tensor, the state"
            raise ArgumentError(f"{type(self).__name__}: hx is {shown(hx)}; expected {expected}")
        first = tuple(hx) if pair else (hx,)
        weights, last, x = self._weights(), [], input
        for layer in range(self.num_layers):
            here = slice(layer * self.num_directions, (layer + 1) * self.num_directions)
            y, *states = self._scan(x, weights[here], tuple(s[here] for s in first))
            last.append(states)
            x = F.reshape(F.transpose(y, (0, 2, 1, 3)), (*y.shape[::2], -1))
            if self.training and self.dropout and layer + 1 < self.num_layers:
                x = F.dropout(x, self.dropout, True)
        states = tuple(F.concat(parts) for parts in zip(*last, strict=True))
        return x, states if pair else states[0]

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """[T,N,input] (or [N,T,input] with batch_first) -> outputs [T,N,directions * hidden] and the last states.

        Raises ShapeError for another number of axes or features, and for an empty sequence.
        """
        if input.ndim != 3 or input.shape[2] != self.input_size or 0 in input.shape[:2]:
            raise ShapeError(
                f"{type(self).__name__}: input is {input.shape}; expected "
                f"{'(batch, time' if self.batch_first else '(time, batch'}, {self.input_size}), none of them 0"
            )
        x = F.transpose(input, (1, 0, 2)) if self.batch_first else input
        out, states = self.apply_op(x, self.init_hidden(x.shape[1]) if hx is None else hx)
        return F.transpose(out, (1, 0, 2)) if self.batch_first else out, states


class RNN(RNNBase):
    """Elman network of several layers; `nonlinearity` is tanh or relu."""

    def __init__(self, *args: Any, nonlinearity: str = "tanh", **kwargs: Any) -> None:
        _nonlinearity("RNN", nonlinearity)
        self.nonlinearity = nonlinearity
        super().__init__(*args, **kwargs)

    def create_cell(self, layer: int) -> RNNCell:
        """A cell with the sizes of a layer."""
        return RNNCell(self._input_size(layer), self.hidden_size, self.bias, self.nonlinearity)

    def _options(self) -> dict[str, Any]:
        return {"activations": (self.nonlinearity.capitalize(),) * self.num_directions}


class LSTM(RNNBase):
    """Long short-term memory of several layers; states are pairs (h, c)."""

    _cell = "lstm"
    _states = ("h", "c")
    _order = (0, 3, 1, 2)

    def create_cell(self, layer: int) -> LSTMCell:
        """A cell with the sizes of a layer."""
        return LSTMCell(self._input_size(layer), self.hidden_size, self.bias)

    def init_hidden(self, batch_size: int = 1) -> tuple[Tensor, Tensor]:
        """States (h, c) of zeros, each [layers * directions, batch, hidden]."""
        return super().init_hidden(batch_size), super().init_hidden(batch_size)

    def get_output_from_hidden(self, hx: tuple[Tensor, Tensor]) -> Tensor:
        """The h of (h, c)."""
        return hx[0]


class GRU(RNNBase):
    """Gated recurrent units of several layers (MegEngine has none): options, weights and results as of RNN."""

    _cell = "gru"
    _order = (1, 0, 2)

    def create_cell(self, layer: int) -> GRUCell:
        """A cell with the sizes of a layer."""
        return GRUCell(self._input_size(layer), self.hidden_size, self.bias)

    def _options(self) -> dict[str, Any]:
        return {"linear_before_reset": True}
