"""Op classes of MegEngine that name what is not here: they can be made, and say at the call what to use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from megengine.compat.opdef import OpDef, choice
from megengine.core.errors import OptionError
from megengine.tensor import Tensor

_ENGINES = "models of other engines do not run here; convert the original model to ONNX and load that"
_ONE_PROCESS = "training runs in one process; sums and copies between processes have nothing to do"


class _Refused(OpDef):
    why: ClassVar[str] = ""

    def run(self, *inputs: Tensor) -> Any:
        """Raises OptionError that says what to use instead."""
        raise OptionError(f"{self!r}: {self.why}")


class _Engine(_Refused):
    why: ClassVar[str] = _ENGINES
    buf: str = ""
    buf_size: int = 0


class AtlasRuntime(_Engine):
    """A model of Ascend's runtime."""


class MagicMindRuntime(_Engine):
    """A model of MagicMind."""


class TensorRTRuntime(_Engine):
    """A model of TensorRT."""


class CambriconRuntime(_Engine):
    """A model of Cambricon's runtime."""

    symbol: str = ""
    tensor_dim_mutable: bool = False


class ExternOpr(_Refused):
    """An op of a library that was loaded."""

    why: ClassVar[str] = _ENGINES
    output_shapes: Sequence[Sequence[int]] = ()
    name: str = ""
    data: str = ""
    data_len: int = 0
    output_dtypes: Any = None


class CollectiveComm(_Refused):
    """A sum, a copy or the like between processes."""

    why: ClassVar[str] = _ONE_PROCESS
    Mode = choice(
        "CollectiveComm.Mode",
        "REDUCE_SUM BROADCAST ALL_GATHER REDUCE_SCATTER_SUM ALL_REDUCE_SUM ALL_REDUCE_MAX ALL_REDUCE_MIN "
        "ALL_REDUCE_PROD GATHER SCATTER ALL_TO_ALL",
    )
    mode: str = Mode.REDUCE_SUM
    key: str = ""
    nr_devices: int = 0
    rank: int = 0
    is_root: bool = False
    local_grad: bool = False
    addr: str = ""
    port: int = 0
    dtype: Any = None
    backend: str = ""
    comp_node: str = ""


class RemoteSend(_Refused):
    """A tensor sent to another process."""

    why: ClassVar[str] = _ONE_PROCESS
    key: str = ""
    addr: str = ""
    port: int = 0
    rank_to: int = 0
    backend: str = ""


class RemoteRecv(_Refused):
    """A tensor received from another process."""

    why: ClassVar[str] = _ONE_PROCESS
    key: str = ""
    addr: str = ""
    port: int = 0
    rank_from: int = 0
    cn: str = ""
    shape: Sequence[int] = ()
    dtype: Any = None
    backend: str = ""


class Barrier(_Refused):
    """Waits for a device."""

    why: ClassVar[str] = "calls are synchronous, so nothing is to be waited for"
    comp_node: str = ""
    nr_outputs: int = 0
