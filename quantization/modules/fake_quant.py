"""Fake quantization as modules: values rounded to the integers' grid, gradients that pass through."""

from abc import abstractmethod
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.core.errors import OptionError
from megengine.core.tensor.dtype import QuantDtypeMeta, meta_of
from megengine.module import Module
from megengine.quantization.modules.rounding import fake_quant_tensor, lsq_forward, tqt_forward
from megengine.quantization.ranges import LSQParams, QParams, QParamsModuleMixin, QuantMode, at, create_qparams
from megengine.tensor import Parameter, Tensor

_HOME = "megengine.quantization.fake_quant"


@at(_HOME)
class _FakeQuantize(Module):
    """Base of the fake quantizers: the integer type (by name or as `QuantDtypeMeta`), and whether they round."""

    def __init__(self, dtype: str | QuantDtypeMeta, enable: bool = True, **kwargs: Any) -> None:
        super().__init__()
        self.dtype = meta_of(dtype)
        self.qmin, self.qmax = self.dtype.qmin, self.dtype.qmax
        self.enabled = enable

    def enable(self) -> None:
        """Round from now on."""
        self.enabled = True

    def disable(self) -> None:
        """Give inputs back unchanged from now on."""
        self.enabled = False

    def normal_forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        return inp

    @abstractmethod
    def fake_quant_forward(self, inp: Tensor, qparams: Any = None) -> Tensor:
        """Inp (float32, any shape) rounded; the result carries the qparams used."""

    def forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        """Inp rounded while enabled, else inp itself."""
        return self.fake_quant_forward(inp, qparams) if self.enabled else self.normal_forward(inp, qparams)


@at(_HOME)
class FakeQuantize(_FakeQuantize):
    """Rounds with the scale it is given (that of an observer).

    Example:
        >>> qparams = create_qparams(dtype_meta="qint8", scale=Tensor(0.5))
        >>> FakeQuantize("qint8")(Tensor([0.3, 100.0]), qparams).tolist()
        [0.5, 63.5]
    """

    def fake_quant_forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        """Inp rounded. Raises OptionError if qparams are missing, or for another integer type."""
        if not isinstance(qparams, QParams) or qparams.dtype_meta != self.dtype:
            wanted = f"expected qparams of {self.dtype.name}"
            if qparams is not None and not isinstance(qparams, QParams):
                raise OptionError(f"FakeQuantize: got a {type(qparams).__name__}; {wanted}")
            got = None if qparams is None else qparams.dtype_meta and qparams.dtype_meta.name
            raise OptionError(f"FakeQuantize: got qparams of {got}; {wanted}")
        return fake_quant_tensor(inp, qparams)


@at(_HOME)
class TQT(_FakeQuantize, QParamsModuleMixin):
    """Trained quantization thresholds (Jain et al. 2019): the scale is 2 ** `scale`, which is learnt."""

    def __init__(self, dtype: str | QuantDtypeMeta, enable: bool = True, **kwargs: Any) -> None:
        super().__init__(dtype, enable, **kwargs)
        self.scale = Parameter(0.0)

    def fake_quant_forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        """Inp rounded with the learnt scale."""
        out = tqt_forward(self.qmin, self.qmax, inp, self.scale)
        out.qparams = self.get_qparams()
        return out

    def set_qparams(self, qparams: QParams) -> None:
        """Start from the scale of symmetric qparams. Raises OptionError for others, or if they have no scale."""
        _check_start("TQT", qparams, self.dtype, symmetric=True)
        assert qparams.scale is not None
        self.scale._reset(Tensor(np.log2(qparams.scale.numpy())))

    def get_qparams(self) -> QParams:
        """The learnt scale."""
        return create_qparams(QuantMode.SYMMERTIC, self.dtype, Tensor(np.exp2(self.scale.numpy())), None)


@at(_HOME)
class LSQ(_FakeQuantize, QParamsModuleMixin):
    """Learned step size quantization (Esser et al. 2020): the scale is |step_size| + eps, and `step_size` is learnt.

    Its state has the shapes and values of MegEngine's, which checkpoints hold.
    """

    def __init__(self, dtype: str | QuantDtypeMeta, enable: bool = True, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(dtype, enable, **kwargs)
        self.eps = Tensor(eps)
        self.step_size = Parameter(1.0)
        self.mode: QuantMode | None = None
        self.zero_point, self.grad_scale = Tensor(0.0), Tensor(1.0)

    def set_qparams(self, qparams: LSQParams) -> None:
        """Start from these qparams. Raises OptionError if they are of another type, or have no scale."""
        _check_start("LSQ", qparams, self.dtype, symmetric=False)
        assert qparams.scale is not None
        self.mode = qparams.mode
        self.step_size._reset(Tensor(np.maximum(_number(qparams.scale) - self.eps.numpy(), np.float32(0))))
        if qparams.zero_point is not None:
            self.zero_point._reset(Tensor(_number(qparams.zero_point)))
        grad_scale = getattr(qparams, "grad_scale", None)
        if grad_scale is not None:
            self.grad_scale._reset(Tensor(grad_scale.numpy()))

    def fake_quant_forward(self, inp: Tensor, qparams: LSQParams | None = None) -> Tensor:
        """Inp rounded with the learnt step."""
        out = lsq_forward(self.qmin, self.qmax, inp, self._step(), self.zero_point, self.grad_scale)
        out.qparams = self.get_qparams()
        return out

    def get_qparams(self) -> LSQParams:
        """The learnt step."""
        mode = QuantMode.ASYMMERTIC if self.dtype.zero_points else QuantMode.SYMMERTIC
        zero_point = self.zero_point if self.dtype.zero_points else None
        return LSQParams(self.mode or mode, self.dtype, self._step().detach(), zero_point, self.grad_scale)

    def _step(self) -> Tensor:
        return F.abs(self.step_size) + self.eps


def _number(value: Tensor) -> np.ndarray:
    return value.numpy().reshape(())


def _check_start(name: str, qparams: QParams, dtype: QuantDtypeMeta, *, symmetric: bool) -> None:
    wrong_mode = symmetric and qparams.mode is not QuantMode.SYMMERTIC
    if qparams.scale is None or qparams.dtype_meta != dtype or wrong_mode:
        got = qparams.dtype_meta and qparams.dtype_meta.name
        raise OptionError(
            f"{name}: got qparams of {got}, {qparams.mode.name}, scale {qparams.scale}; expected {dtype.name}"
            f"{', SYMMERTIC' if symmetric else ''} with a scale"
        )
