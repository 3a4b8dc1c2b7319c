"""Layers around models compiled for other engines: named so that imports work, refused when made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from megengine.functional.external import refuse
from megengine.module.module import Module


class _Refused(Module):
    _engine = ""

    def __init__(self, data: bytes, **kwargs: Any) -> None:
        refuse(self._engine)

    def forward(self, *inputs: Any) -> NoReturn:
        """Raises OptionError."""
        refuse(self._engine)


class TensorrtRuntimeSubgraph(_Refused):
    """Refused: raises OptionError."""

    _engine = "TensorRT"


class CambriconRuntimeSubgraph(_Refused):
    """Refused: raises OptionError."""

    _engine = "Cambricon"

    def __init__(self, data: bytes, symbol: str, tensor_dim_mutable: bool, **kwargs: Any) -> None:
        refuse(self._engine)


class AtlasRuntimeSubgraph(_Refused):
    """Refused: raises OptionError."""

    _engine = "Atlas"


class MagicMindRuntimeSubgraph(_Refused):
    """Refused: raises OptionError."""

    _engine = "MagicMind"


class ExternOprSubgraph(_Refused):
    """Refused: raises OptionError."""

    _engine = "external loader"

    def __init__(
        self, output_shapes: Sequence[Any], dump_name: str, dump_data: bytes, output_dtypes: Any = None, **kwargs: Any
    ) -> None:
        refuse(self._engine)


__all__ = [
    "AtlasRuntimeSubgraph",
    "CambriconRuntimeSubgraph",
    "ExternOprSubgraph",
    "MagicMindRuntimeSubgraph",
    "TensorrtRuntimeSubgraph",
]
