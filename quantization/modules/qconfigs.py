"""QConfig and its presets: which observers and fake quantizers a QAT module gets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from megengine.core.errors import OptionError
from megengine.module import Module
from megengine.quantization.modules.fake_quant import TQT, FakeQuantize
from megengine.quantization.ranges import (
    ExponentialMovingAverageObserver,
    HistogramObserver,
    MinMaxObserver,
    Observer,
    PassiveObserver,
    SyncExponentialMovingAverageObserver,
    SyncMinMaxObserver,
    at,
)

Factory = Callable[..., Any] | None


class _Factories(NamedTuple):
    weight_observer: Factory
    act_observer: Factory
    weight_fake_quant: Factory
    act_fake_quant: Factory


@at("megengine.quantization.qconfig")
class QConfig(_Factories):
    """How a module is quantized: factories (classes or partials) of its observers and fake quantizers, or None.

    Two configs are equal if they make the same classes with the same arguments. Raises OptionError for an observer that
    is made already, which all modules would share.

    Example:
        >>> min_max_fakequant_qconfig.act_observer.keywords
        {'dtype': 'qint8'}
    """

    __slots__ = ()

    def __new__(
        cls, weight_observer: Factory, act_observer: Factory, weight_fake_quant: Factory, act_fake_quant: Factory
    ) -> QConfig:
        for name, factory in (("weight_observer", weight_observer), ("act_observer", act_observer)):
            if isinstance(factory, Observer):
                kind = type(factory).__name__
                raise OptionError(
                    f"QConfig: {name} is {kind} that is made already; expected what makes one for each module: {kind}, "
                    f"or functools.partial({kind}, dtype=...)"
                )
        return super().__new__(cls, weight_observer, act_observer, weight_fake_quant, act_fake_quant)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple) or len(other) != len(self):
            return NotImplemented
        return all(_parts(a) == _parts(b) for a, b in zip(self, other, strict=True))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(getattr(factory, "func", factory) for factory in self))


def _parts(factory: Any) -> Any:
    return (factory.func, factory.args, factory.keywords) if isinstance(factory, partial) else factory


def _preset(
    weight: Callable[..., Module] | None,
    activation: Callable[..., Module] | None,
    fake: Callable[..., Module] | None = FakeQuantize,
    dtypes: tuple[str, str] = ("qint8_narrow", "qint8"),
    **weight_options: Any,
) -> QConfig:
    observers = (
        weight and partial(weight, dtype=dtypes[0], **weight_options),
        activation and partial(activation, dtype=dtypes[1]),
    )
    return QConfig(*observers, *(fake and partial(fake, dtype=d) for d in dtypes))


min_max_fakequant_qconfig = _preset(MinMaxObserver, MinMaxObserver)
ema_fakequant_qconfig = _preset(MinMaxObserver, ExponentialMovingAverageObserver)
sync_ema_fakequant_qconfig = _preset(SyncMinMaxObserver, SyncExponentialMovingAverageObserver)
ema_lowbit_fakequant_qconfig = _preset(MinMaxObserver, ExponentialMovingAverageObserver, dtypes=("qint4", "qint4"))
calibration_qconfig = _preset(MinMaxObserver, HistogramObserver, None)
tqt_qconfig = _preset(None, None, TQT)
passive_qconfig = _preset(PassiveObserver, PassiveObserver)
easyquant_qconfig = passive_qconfig
per_channel_fakequant_qconfig = _preset(MinMaxObserver, ExponentialMovingAverageObserver, channel_axis=0)
