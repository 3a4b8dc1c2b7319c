"""Observers: modules that watch values and compute quantization parameters. MegEngine's names and state."""

from abc import abstractmethod
from typing import Any

import numpy as np

from megengine.core.errors import CalibrationError, OptionError
from megengine.core.tensor.dtype import QuantDtypeMeta, meta_of
from megengine.module import Module
from megengine.quantization.ranges.histograms import Bins, counted
from megengine.quantization.ranges.qparams import QParams, QParamsModuleMixin, QuantMode, at, create_qparams
from megengine.quantization.ranges.scales import Scheme, scale_and_zero
from megengine.quantization.ranges.statistics import TensorStatistics
from megengine.tensor import Tensor

_HOME = "megengine.quantization.observer"
_LARGEST = float(np.finfo(np.float32).max)


@at(_HOME)
class Observer(Module, QParamsModuleMixin):
    """Base of the observers: returns its input, and observes it while enabled.

    `eval()` disables it, so evaluation never changes a scale; `enable()` after that observes in evaluation mode too,
    which calibrates a network with its batch norms in evaluation mode. `train()` enables it, also after `disable()`,
    as in MegEngine. `dtype` is the integer type, by name or as `QuantDtypeMeta`.
    """

    def __init__(self, dtype: str | QuantDtypeMeta, **kwargs: Any) -> None:
        self.enabled = True
        super().__init__()
        self.dtype = meta_of(dtype)
        self.qmin, self.qmax = self.dtype.qmin, self.dtype.qmax

    @property
    def training(self) -> bool:
        """Training or evaluation mode."""
        return self.__dict__["training"]

    @training.setter
    def training(self, mode: bool) -> None:
        vars(self)["training"] = self.enabled = mode

    def enable(self) -> None:
        """Observe values from now on."""
        self.enabled = True

    def disable(self) -> None:
        """Keep the parameters as they are, until `enable()` or `train()`."""
        self.enabled = False

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """X itself (float32, any shape)."""


@at(_HOME)
class MinMaxObserver(Observer):
    """The smallest and the largest value seen.

    Args:
        mode: symmetric (scale only) or not.
        eps: least scale.
        dtype: the integer type.
        channel_axis: axis with a scale for each index (weights: 0); None for one scale. Symmetric mode only.

    Example:
        >>> observer = MinMaxObserver(dtype="qint8_narrow")
        >>> _ = observer(Tensor([-1.27, 0.5]))
        >>> observer.get_qparams().scale.item()
        0.009999999776482582
    """

    def __init__(
        self,
        mode: QuantMode = QuantMode.SYMMERTIC,
        eps: float = 1e-5,
        dtype: str | QuantDtypeMeta = "qint8",
        *,
        channel_axis: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype, **kwargs)
        if channel_axis is not None and mode is not QuantMode.SYMMERTIC:
            raise OptionError(
                "observer: channel_axis needs QuantMode.SYMMERTIC; expected zero point 0 in every channel"
            )
        self.mode, self.scale_limit = mode, eps
        if channel_axis is not None:
            self.channel_axis = channel_axis
        self.min_val, self.max_val = Tensor(_LARGEST), Tensor(-_LARGEST)

    def get_qparams(self) -> QParams:
        """Scale and zero point of the range seen. Raises CalibrationError if nothing was seen."""
        return self._calculate_qparams(*self._seen_range())

    @property
    def has_seen(self) -> bool:
        """Whether a value was observed."""
        return not np.any(self.min_val.numpy() > self.max_val.numpy())

    def empty_qparams(self) -> QParams:
        """Scale and zero point of a range without extent: the smallest scale."""
        return self._calculate_qparams(np.float32(0), np.float32(0))

    def _seen_range(self) -> tuple[np.ndarray, np.ndarray]:
        lo, hi = self.min_val.numpy(), self.max_val.numpy()
        if np.any(lo > hi):
            raise CalibrationError(
                f"{type(self).__name__}: no value was observed, so there is no scale; run batches in training mode "
                "or after enable_observer, or load a state dict"
            )
        return lo, hi

    def _scheme(self) -> Scheme:
        symmetric = self.mode is QuantMode.SYMMERTIC
        return Scheme(self.dtype.name, symmetric, self.qmin, self.qmax, (self.qmax - self.qmin) / 2)

    def _calculate_qparams(self, inp_min_val: Any, inp_max_val: Any) -> QParams:
        """Scale and zero point of a range (numbers, arrays or tensors): MegEngine's name, which subclasses call."""
        lo, hi = (v.numpy() if isinstance(v, Tensor) else v for v in (inp_min_val, inp_max_val))
        scale, zero = scale_and_zero(lo, hi, self._scheme(), smallest=self.scale_limit)
        zero_point = None if self.mode is QuantMode.SYMMERTIC else Tensor(zero.astype(np.float32))
        return create_qparams(self.mode, self.dtype, Tensor(scale), zero_point)

    def forward(self, x_orig: Tensor) -> Tensor:
        """x_orig itself. Raises CalibrationError if it holds NaN or infinity."""
        if self.enabled and x_orig.size:
            self._update(*self._ends(x_orig.numpy()))
        return x_orig

    def _ends(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        axis = self.__dict__.get("channel_axis")
        over = None if axis is None else tuple(i for i in range(x.ndim) if i != axis % x.ndim)
        lo, hi = x.min(axis=over), x.max(axis=over)
        if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            stats = TensorStatistics(self.name or type(self).__name__)
            stats.update(x)  # raises with the number of bad values
        return lo, hi

    def _update(self, lo: np.ndarray, hi: np.ndarray) -> None:
        self._take(np.minimum(self.min_val.numpy(), lo), np.maximum(self.max_val.numpy(), hi))

    def _take(self, lo: np.ndarray, hi: np.ndarray) -> None:
        self.min_val._reset(Tensor(np.asarray(lo, np.float32)))
        self.max_val._reset(Tensor(np.asarray(hi, np.float32)))


@at(_HOME)
class ExponentialMovingAverageObserver(MinMaxObserver):
    """Moving averages of the batches' smallest and largest values; the first batch counts in full.

    The averages are MegEngine's, and so is their state, which checkpoints hold. `SampleExtrema` gives the first batch
    no such weight, and can be merged.
    """

    def __init__(
        self,
        momentum: float = 0.9,
        mode: QuantMode = QuantMode.SYMMERTIC,
        eps: float = 1e-5,
        dtype: str | QuantDtypeMeta = "qint8",
        **kwargs: Any,
    ) -> None:
        super().__init__(mode, eps, dtype, **kwargs)
        self.momentum, self.runtime_momentum = Tensor(momentum), Tensor(0.0)

    def set_momentum(self, momentum: float) -> None:
        """Weight of the old average from now on."""
        self.momentum._reset(Tensor(momentum))

    def _update(self, lo: np.ndarray, hi: np.ndarray) -> None:
        old = self.runtime_momentum.numpy()
        self._take(
            *(tensor.numpy() * old + (1 - old) * new for tensor, new in ((self.min_val, lo), (self.max_val, hi)))
        )
        self.runtime_momentum._reset(Tensor(self.momentum.numpy()))


@at(_HOME)
class HistogramObserver(MinMaxObserver):
    """The range with the smallest mean squared error over a histogram of all values.

    The histogram, its widening and the search are MegEngine's, and so is the state: `bins` counts between `min_val` and
    `max_val`. `upsample_rate` is the number of parts of a bin by which the histogram is widened.
    """

    def __init__(
        self,
        bins: int = 2048,
        upsample_rate: int = 128,
        mode: QuantMode = QuantMode.SYMMERTIC,
        eps: float = 1e-5,
        dtype: str | QuantDtypeMeta = "qint8",
        **kwargs: Any,
    ) -> None:
        if kwargs.get("channel_axis") is not None:
            raise OptionError("HistogramObserver: it has one scale; leave channel_axis out, or use MinMaxObserver")
        super().__init__(mode, eps, dtype, **kwargs)
        self.bins, self.upsample_rate = bins, upsample_rate
        self.dst_nbins = self.qmax - self.qmin + 1
        self.histogram = Tensor(np.r_[-1.0, np.zeros(bins - 1)])

    def forward(self, x_orig: Tensor) -> Tensor:
        return self.sideeffect_forward(x_orig)

    def sideeffect_forward(self, x_orig: Tensor) -> Tensor:
        """Count the values of x_orig and give it back."""
        if self.enabled and x_orig.size:
            values = x_orig.numpy()
            lo, hi = map(float, self._ends(values))
            seen = self._bins()
            if seen is None:
                seen = Bins(lo, hi, counted(values, self.bins, lo, hi))
            else:
                seen = seen.joined(values, self.upsample_rate)
            self._take(np.asarray(seen.lo), np.asarray(seen.hi))
            self.histogram._reset(Tensor(seen.counts.astype(np.float32)))
        return x_orig

    def _bins(self) -> Bins | None:
        """What was counted; None for nothing."""
        if not self.has_seen:
            return None
        return Bins(float(self.min_val.item()), float(self.max_val.item()), self.histogram.numpy().astype(np.float64))

    def get_qparams(self) -> QParams:
        """Scale and zero point of the best range. Raises CalibrationError if nothing was seen."""
        seen = self._bins()
        lo, hi = self._seen_range() if seen is None else seen.best_range(self.dst_nbins)
        return self._calculate_qparams(np.float32(lo), np.float32(hi))


@at(_HOME)
class SyncMinMaxObserver(MinMaxObserver):
    """MinMaxObserver by the name that distributed training uses. It can be disabled; it sees this process's batches."""


@at(_HOME)
class SyncExponentialMovingAverageObserver(ExponentialMovingAverageObserver):
    """ExponentialMovingAverageObserver by the name that distributed training uses, for this process's batches."""


@at(_HOME)
class PassiveObserver(Observer):
    """Holds parameters that are set from outside."""

    def __init__(self, dtype: str | QuantDtypeMeta, **kwargs: Any) -> None:
        super().__init__(dtype, **kwargs)
        self.qparams: QParams | None = None
        self.orig_scale: np.ndarray | None = None  # no part of state dicts, as in MegEngine

    @property
    def scale(self) -> Tensor:
        """The scale; assignable. Raises CalibrationError before parameters were set."""
        scale = self.get_qparams().scale
        assert scale is not None, "set_qparams takes none without a scale"
        return scale

    @scale.setter
    def scale(self, value: Any) -> None:
        values = np.asarray(value.numpy() if isinstance(value, Tensor) else value)
        if not np.all((values > 0) & np.isfinite(values)):
            raise OptionError(f"PassiveObserver: scale is {values}; expected a positive number")
        self.get_qparams().scale = Tensor(values.astype(np.float32))

    def get_qparams(self) -> QParams:
        """The parameters. Raises CalibrationError before they were set."""
        if self.qparams is None:
            raise CalibrationError("PassiveObserver: it has no parameters yet; give them with set_qparams")
        return self.qparams

    def set_qparams(self, qparams: QParams) -> None:
        """Use these from now on. Raises OptionError if they have no scale or are for another type."""
        if qparams.scale is None or qparams.dtype_meta != self.dtype:
            raise OptionError(
                f"PassiveObserver: got qparams of {qparams.dtype_meta and qparams.dtype_meta.name} with scale "
                f"{qparams.scale}; expected {self.dtype.name} with a scale"
            )
        self.qparams = create_qparams(qparams.mode, qparams.dtype_meta, qparams.scale, qparams.zero_point)
        if self.orig_scale is None:
            self.orig_scale = qparams.scale.numpy().copy()

    def forward(self, x: Tensor) -> Tensor:
        return x
