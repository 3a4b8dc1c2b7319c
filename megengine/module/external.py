"""Layers around models compiled for other engines: named so that imports work, refused when made."""

from __future__ import annotations

from typing import Any, NoReturn

from megengine.core.exports import own_names
from megengine.functional.external import refuse
from megengine.module.module import Module


class _Refused(Module):
    """Refused: raises OptionError."""

    _engine = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse(self._engine)

    def forward(self, *inputs: Any) -> NoReturn:
        """Raises OptionError."""
        refuse(self._engine)


def _refused(name: str, engine: str) -> type[Module]:
    return type(name, (_Refused,), {"__doc__": _Refused.__doc__, "__module__": __name__, "_engine": engine})


TensorrtRuntimeSubgraph = _refused("TensorrtRuntimeSubgraph", "TensorRT")
CambriconRuntimeSubgraph = _refused("CambriconRuntimeSubgraph", "Cambricon")
AtlasRuntimeSubgraph = _refused("AtlasRuntimeSubgraph", "Atlas")
MagicMindRuntimeSubgraph = _refused("MagicMindRuntimeSubgraph", "MagicMind")
ExternOprSubgraph = _refused("ExternOprSubgraph", "external loader")
__all__ = own_names(globals())
