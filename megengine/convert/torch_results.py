"""How the results of a torch module nest: tuples, lists and dicts, as `torch.export` keeps them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from megengine.core.pytree import TreeDef, flatten


def nesting_of(torch: Any, program: Any, count: int) -> TreeDef | None:
    """The nesting of the results of an exported program; None for one tensor or a tuple of several.

    Also None where the results are not the tensors that the network gives, or lie in objects of other kinds. Named
    tuples count as tuples, what is like a dict as an `OrderedDict`; what is None has no place in it.
    """
    outputs = program.graph_signature.user_outputs
    tensors = [name for name in outputs if isinstance(name, str)]
    if len(tensors) != count or len(tensors) != sum(name is not None for name in outputs):
        return None
    results = torch.utils._pytree.tree_unflatten(list(outputs), program.call_spec.out_spec)
    try:
        plain = _plain(results)
    except TypeError:
        return None
    if isinstance(plain, str) or (count > 1 and plain == (*tensors,)):
        return None
    return flatten(plain)[1]


def give_tensors(torch: Any, module: Any) -> bool:
    """Let a graph of torch.fx give tensors in the place of numbers, which ONNX cannot give; whether it gave some."""
    end = next(node for node in module.graph.nodes if node.op == "output")
    numbers: list[Any] = []

    def tensor_of(value: Any) -> Any:
        if not isinstance(value, bool | int | float):
            return value
        name = f"given_number_{len(numbers)}"
        numbers.append(value)
        module.register_buffer(name, torch.tensor(value))
        with module.graph.inserting_before(end):
            return module.graph.get_attr(name)

    end.args = torch.utils._pytree.tree_map(tensor_of, tuple(end.args))
    module.recompile()
    return bool(numbers)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return OrderedDict((key, _plain(item)) for key, item in value.items() if item is not None)
    if isinstance(value, (tuple, list)):
        return (list if isinstance(value, list) else tuple)(_present(value))
    raise TypeError(type(value).__name__)


def _present(values: Any) -> Iterator[Any]:
    for value in values:
        if value is None:  # places behind it would be others
            raise TypeError(None)
        yield _plain(value)


__all__ = ["give_tensors", "nesting_of"]
