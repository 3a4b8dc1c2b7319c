"""Names that can be imported, and say at the call what to use: the graph runtime of version 1, caches, servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from megengine.core import absent
from megengine.core.errors import OptionError

_GRAPHS = "graphs of version 1 are not here; trace a module with megengine.traced_module, run it with megengine.plan"
_DUMPS = "write models with megengine.save(traced, 'net.tm'), traced = traced_module.trace_module(net, inputs)"
_LOADS = "read .tm files with megengine.load, .mge files with megengine.convert.mge.load"
_ONE_PROCESS = "training runs in one process"
_CACHES = "kernels are chosen without a cache of measurements; there is nothing to keep"
_PROFILES = "use megengine.utils.profiler.Profiler, or traced_module's profiles"
_TRACES = "functions run as they are called; megengine.traced_module captures modules"

WORDS: dict[str, str] = {
    **dict.fromkeys(("load_graph", "deserialize_infer_option"), _LOADS),
    **dict.fromkeys(("dump_graph", "SerializationMetadata", "CompGraphDumpResult", "CompGraphLoadResult"), _DUMPS),
    **dict.fromkeys(
        (
            *("AsyncExecutable", "ComputingGraph", "DeviceTensorND", "DeviceTensorNDRendezvous", "Graph"),
            *("GraphOptimizeOptions", "GraphInference", "HostTensorND", "HostTensorNDRendezvous", "OperatorNode"),
            *("OperatorNodeConfig", "TensorAttr", "TensorAttrRendezvous", "VarNode", "OpNode", "InputNode"),
            *("OutputNode", "AttrOutputNode", "ValueOutputNode", "VirtualDepNode", "attr_output_callback"),
            *("input_callback", "output_callback", "value_output_callback", "invoke_op", "make_backward_graph"),
            *("make_const", "make_h2d", "make_shared", "modify_opr_algo_strategy_inplace", "optimize_for_inference"),
            *("virtual_dep", "get_info_for_strip", "apply_normal_varnode", "set_priority_to_id", "SubgraphBuilder"),
        ),
        _GRAPHS,
    ),
    **dict.fromkeys(("GraphProfiler", "GraphProfiler2", "start_profile", "stop_profile"), _PROFILES),
    **dict.fromkeys(("create_mm_server", "init_nccl_env", "group_start", "group_end"), _ONE_PROCESS),
    **dict.fromkeys(("PersistentCache", "PersistentCacheOnServer"), _CACHES),
    **dict.fromkeys(("Trace", "begin_record_values", "end_record_values", "name_tensor", "get_marked_tensor"), _TRACES),
}
_classes: dict[str, type] = {}


class Refused:
    """A name of MegEngine's that is not here: it can be imported; calling it raises OptionError."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise OptionError(f"{cls.__name__}: {WORDS[cls.__name__]}")


def expose(face: dict[str, Any], *homes: ModuleType) -> Callable[[str], Any]:
    """Put what other modules define into a face (its `globals()`), with MegEngine's second names, `x_cpp` and `_x`.

    Returns the `__getattr__` of the face.
    """
    for home in homes:
        for name, value in vars(home).items():
            second = name.endswith("_cpp") or (name[0] == "_" and name[1:] in vars(home))
            if second or (name[0] != "_" and getattr(value, "__module__", None) == home.__name__):
                face[name] = value
    return partial(find, face["__name__"])


def find(module: str, name: str) -> Any:
    """For `__getattr__` of a face: the class of a refused name, or the error that says what to use."""
    if name not in WORDS:
        raise absent.missing(module, name)
    if name not in _classes:
        _classes[name] = type(name, (Refused,), {"__doc__": f"Not here: {WORDS[name]}.", "__module__": __name__})
    return _classes[name]
