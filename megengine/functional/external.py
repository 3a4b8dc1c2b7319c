"""Models compiled for other engines (TensorRT, Atlas, ...): the names can be imported; calls are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from megengine.core.errors import OptionError
from megengine.core.exports import own_names


def refuse(engine: str) -> NoReturn:
    """Raises OptionError that says what to do instead."""
    raise OptionError(
        f"{engine}: models compiled for this engine do not run here; convert the original model to ONNX and load it "
        "with megengine.convert.onnx, or run the compiled model with its engine's own runtime"
    )


def tensorrt_runtime_opr(inputs: Sequence[Any], *, data: bytes | None = None) -> NoReturn:
    """Refused: TensorRT engines do not run here. Raises OptionError."""
    refuse("TensorRT")


def cambricon_runtime_opr(inputs: Sequence[Any], data: bytes, symbol: str, tensor_dim_mutable: bool) -> NoReturn:
    """Refused: Cambricon models do not run here. Raises OptionError."""
    refuse("Cambricon")


def atlas_runtime_opr(inputs: Sequence[Any], data: bytes) -> NoReturn:
    """Refused: Atlas models do not run here. Raises OptionError."""
    refuse("Atlas")


def magicmind_runtime_opr(inputs: Sequence[Any], data: bytes) -> NoReturn:
    """Refused: MagicMind models do not run here. Raises OptionError."""
    refuse("MagicMind")


def extern_opr_subgraph(
    inputs: Sequence[Any], output_shapes: Sequence[Any], dump_name: str, dump_data: bytes, output_dtypes: Any
) -> NoReturn:
    """Refused: subgraphs of external loaders do not run here. Raises OptionError."""
    refuse("external loader")


__all__ = [name for name in own_names(globals()) if name != "refuse"]
