"""Layers around models compiled for other engines: named so that imports work, refused when made."""

from __future__ import annotations

from typing import Any, NoReturn

from megengine.core.exports import own_names
from megengine.functional.external import refuse
from megengine.module.module import Module


class _Refused(Module):
    _engine = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
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


class AtlasRuntimeSubgraph(_Refused):
    """Refused: raises OptionError."""

    _engine = "Atlas"


class MagicMindRuntimeSubgraph(_Refused):
    """Refused: raises OptionError."""

    _engine = "MagicMind"


class ExternOprSubgraph(_Refused):
    """Refused: raises OptionError."""

    _engine = "external loader"


__all__ = own_names(globals())
