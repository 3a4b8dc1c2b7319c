"""What a file of a traced module holds, without writing it: two models of equal content are saved as equal bytes."""

import zlib
from typing import Any

import numpy as np

from megengine.traced_module import TracedModule
from megengine.traced_module.formats.module_writing import ModuleWriter
from megengine.traced_module.formats.values import ValueWriter


def content(model: TracedModule) -> tuple[Any, ...]:
    """Graphs, layers and tensors as they are written, arrays by their checksums."""
    values = ValueWriter()
    lines = list(ModuleWriter(values).all(model))
    arrays = {name: (a.shape, zlib.crc32(np.ascontiguousarray(a).data)) for name, a in values.arrays.items()}
    return lines, values.tensors, values.layers, arrays
