"""Files of MegEngine's `trace.dump` (.mge) where other files are read: the error says what reads them."""

from __future__ import annotations

from megengine.core.errors import FileFormatError

HEAD = 16  # bytes that identify the format
_FIRST = b"MGBC"  # version 1
_WITH_INPUTS = b"mgbtest0"  # files that hold inputs for MegEngine's load_and_run
_SECOND = b"mgv2"  # version 2: FlatBuffers, whose identifier follows one or two lengths
ADVICE = (
    "a graph that MegEngine's trace.dump wrote for its C++ runtime (.mge); read it with "
    "megengine.convert.mge.load('net.mge') (import megengine.convert.mge), or give it to mge-quantize"
)
OLD_ADVICE = (
    "a graph that MegEngine's trace.dump wrote for its C++ runtime (.mge, version 1); it cannot be read here. From the "
    "program that made it save the module, megengine.save(megengine.traced_module.trace_module(net, x), 'net.tm'), or "
    "its weights, megengine.save(net.state_dict(), 'net.pkl'), and load that"
)


def refuse_mge(head: bytes) -> None:
    """Raise FileFormatError if the first bytes of a file are those of a .mge."""
    if head.startswith(_FIRST):
        raise FileFormatError(OLD_ADVICE)
    if head.startswith(_WITH_INPUTS) or _SECOND in (head[4:8], head[8:12]):
        raise FileFormatError(ADVICE)
