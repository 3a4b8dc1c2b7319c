"""Data that seems to be unprepared: bytes and recorded samples, in a network that does not scale them itself."""

from megengine.cli.output import Output
from megengine.cli.readers import BYTE, Reader
from megengine.traced_module import InternalGraph
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.node import TensorNode


def tell_unprepared(out: Output, graph: InternalGraph, reader: Reader) -> list[str]:
    """Print a note for each input that gets numbers as they were recorded; gives the notes."""
    notes = []
    for node in graph.inputs:
        seen = reader.recorded.get(node.name)
        if seen is None or not seen.is_raw(node.spec.shape) or not _reaches_a_layer(node):
            continue
        most = BYTE if seen.low >= 0 and seen.high <= BYTE else 1 << 15
        notes.append(
            f"data {reader.name!r} gives input {node.name!r} whole numbers from {seen.low:g} to {seen.high:g} "
            f"({seen.dtype}) as they are, and the network does not scale them: if it was trained with prepared "
            f"numbers, prepare these in the same way, for example (array / {most} - mean) / std"
        )
    for note in notes:
        out.say_once(f"note: {note}")
    return notes


def _reaches_a_layer(node: TensorNode) -> bool:
    """Whether a layer with weights reads a value as it is, or moved."""
    return any(
        _reaches_a_layer(user.outputs[0]) if user.record.rule.moves else user.record.weighted and user.inputs[0] is node
        for user in node.users
        if isinstance(user, Apply)
    )
