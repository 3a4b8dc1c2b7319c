"""Names of MegEngine that do not exist here: the reason, and what to use instead."""

from __future__ import annotations

import opcode
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from megengine.core import late
from megengine.core.errors import MissingImportError, MissingModuleError, MissingNameError, nearest
from megengine.core.old_names import OLD_NAMES
from megengine.core.paths import Paths

_PRIVATE = "a part of MegEngine's inside; what models need is in megengine and megengine.functional"

# prefix of a name -> why it does not exist here; the longest one counts
REASONS: dict[str, str] = {
    "megengine.optim": "it is called megengine.optimizer",
    "megengine.data.dataset.": "make a Dataset with __init__, __getitem__, __len__, or an ArrayDataset of arrays",
    "megengine.data.transform.": "make a VisionTransform with _apply_image, or prepare the pictures with PIL or NumPy",
    "megengine.distributed.Server": "training runs in one process",
    "megengine.distributed.Client": "training runs in one process",
    "megengine.distributed.server": "training runs in one process",
    "megengine.distributed.Group.": "training runs in one process, which is the group megengine.distributed.WORLD",
    **{
        f"megengine.distributed.{name}": "training runs in one process, which sends no messages"
        for name in (
            *("functional.collective_comm", "functional.remote_recv", "functional.remote_send"),
            *("helper.TensorFuture", "helper.pack_allreduce_split"),
        )
    },
    "megengine.data.DataLoader.": "batches are made in this process",
    "megengine.data.signal_handling": "batches are made in this process",
    "megengine.data.tools": "batches are made in this process",
    "megengine.jit.trace.": "functions run as they are written, and megengine.plan.compile makes models fast",
    "megengine.jit.xla_trace": "megengine.plan.compile makes models fast",
    "megengine.jit.xla_backend": "megengine.plan.compile makes models fast",
    "megengine.traced_module.TracedModule": "trace_module makes it, and megengine.load reads it",
    "megengine.traced_module.checker.": "megengine.traced_module.comparing compares graphs, and lint checks one",
    "megengine.traced_module.expr.": "a Graph makes its expressions and changes them: insert_exprs, replace_node",
    "megengine.traced_module.node.": "a Graph makes its nodes: see insert_exprs and add_input_node",
    "megengine.traced_module.utils.replace_container_with_module_container": "lists and dicts of modules are traced",
    "megengine.lite": "megengine.plan runs models",
    "megenginelite": "a package of its own, of which nothing is here; megengine.plan runs models",
    "megengine.tools": "the tools are commands of mge-quantize: inspect, draw, bench",
    "megengine.tools.network_visualize": "megengine.traced_module.pictures draws graphs, and so does mge-quantize draw",
    "megengine.xla": "jit.trace and megengine.plan compile graphs",
    "megengine.experimental": "what became useful of it is in megengine.quantization",
    "megengine.version.": "it is megengine.__version__",
    "megengine.core.": _PRIVATE,
    "megengine.core._wrap": "devices are names such as 'cpu0'; megengine.device.CompNode is a class of them",
    "megengine.core.device": "it is megengine.device",
    "megengine.core.graph": "functions run as they are called; megengine.traced_module holds graphs",
    "megengine.core.serialization": "it is megengine.serialization",
    "megengine.core.tensor.core": "apply is in megengine.core._imperative_rt.core2, Tensor in megengine",
    "megengine.core.tensor.function": "Function is in megengine.autodiff",
    "megengine.core.tensor.indexing": "write x[key] and x[key] = value",
    "megengine.core.tensor.multipledispatch": "functions take tensors of one kind; nothing is to be dispatched",
    "megengine.core.tensor.tensor": "it is megengine.Tensor",
    "megengine.core.tensor.tensor_wrapper": "it is megengine.Tensor",
    "megengine.core.tensor_nn": "Parameter is in megengine; a Tensor that is an attribute of a Module is a buffer",
    "megengine._internal": "of MegEngine 0.x; what models need is in megengine and megengine.functional",
    "megengine.core._imperative_rt.utils": "of MegEngine's processes and memory; nothing here needs it",
    "megengine.trace": "it is called megengine.jit.trace",
    "megengine.check_misc": "there is no installation to check: what is missing says so when it is used",
    "megengine.utils.": "a helper of MegEngine's own tools; models and training do not use it",
    "megengine.utils.comp_graph_tools.": "graphs are those of traced_module.lower, which run and edit themselves",
    "megengine.utils.network.": "graphs are those of traced_module.lower, which insert, replace, rename and erase",
    "megengine.utils.profile_analyzer.": "profiles are files for trace viewers, made by megengine.utils.profiler",
}


def reason(name: str) -> str:
    """Why a full name does not exist here, by the longest prefix in the table; empty if there is none."""
    if name in OLD_NAMES:
        return OLD_NAMES[name]
    best = max((p for p in REASONS if f"{name}.".startswith(p.rstrip(".") + ".")), key=len, default=None)
    return "" if best is None else REASONS[best]


def missing(module: str, name: str, known: Callable[[], Any] | None = None) -> MissingNameError | MissingImportError:
    """The error for a name that a module lacks, with the reason if it is a name of MegEngine, else the nearest name.

    The `__getattr__` of the module, or `part_or_error`, raises it. `known()` are names to search, by default the
    module's public ones.
    """
    known = known or (lambda: [n for n in dir(sys.modules[module]) if not n.startswith("_")])
    inside = module.startswith("megengine.core") and not name.startswith("__")
    why = reason(f"{module}.{name}") if inside or not name.startswith("_") else ""
    # `from module import name` replaces an AttributeError by an error without this text
    frame = sys._getframe(2)
    if frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM:
        text = f"cannot import name {name!r} from {module!r}"
        return MissingImportError(f"{text}: {why}" if why else text + nearest(name, known()), name=name)
    text = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_") and not why:
        return MissingNameError(text)
    return MissingNameError(f"{text}: {why}") if why else MissingNameError(text, name, known)


def part_or_error(module: str, name: str) -> ModuleType:
    """The part of a package that is imported when it is first named; for another name, the error of `missing`.

    A module sets `__getattr__ = partial(part_or_error, __name__)`.
    """
    part = late.part(module, name) if "__path__" in vars(sys.modules[module]) else None
    if part is None:
        raise missing(module, name)
    return part


_IMPORT_FROM = opcode.opmap["IMPORT_FROM"]


class _Reasons:
    """The last finder of modules: for one of MegEngine that does not exist here it raises the reason."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        name = fullname.rpartition(".")[2]
        if fullname.partition(".")[0] not in ("megengine", "megenginelite") or name.startswith("__"):
            return
        why = reason(fullname) or (_PRIVATE if name.startswith("_") else "")
        if why:
            raise MissingModuleError(f"No module named {fullname!r}: {why}", name=fullname)


def explain_modules() -> None:
    """Let the error of importing a module of MegEngine that does not exist here state the reason."""
    if not any(isinstance(finder, _Reasons) for finder in sys.meta_path):
        sys.meta_path += [Paths(), _Reasons()]


# names that other engines have, or that MegEngine had -> what to do here
MODULE_WORDS = {
    "cuda": "use .to('gpu0')",
    "cpu": "use .to('cpu0')",
    "half": "for t in net.tensors(): t.set_value(t.astype('float16'))",
    "float": "for t in net.tensors(): t.set_value(t.astype('float32'))",
    "register_buffer": "assign a Tensor: self.name = tensor",
    "register_parameter": "assign a Parameter: self.name = Parameter(value)",
    "add_module": "assign the module: self.name = module",
    "register_module": "assign the module: self.name = module",
    "register_forward_pre_hooks": "it is called register_forward_pre_hook",
    "requires_grad_": "give the parameters that are trained to GradManager.attach",
    "named_params": "it is called named_parameters",
    "weights": "see parameters() or state_dict()",
    "backward": "record within `with GradManager().attach(net.parameters()) as gm:` and call gm.backward(loss)",
}
TENSOR_WORDS = {
    "backward": "record within `with GradManager().attach(parameters) as gm:` and call gm.backward(loss)",
    "cuda": "use .to('gpu0')",
    "cpu": "use .to('cpu0'), or .numpy() for an array",
    "requires_grad_": "give the tensor to GradManager.attach",
    "grad_fn": "gradients are recorded by a GradManager",
    "float": "use .astype('float32')",
    "half": "use .astype('float16')",
    "double": "use .astype('float64')",
    "long": "use .astype('int64')",
    "int": "use .astype('int32')",
    "bool": "use .astype('bool')",
    "dimshuffle": "use .transpose, and megengine.functional.expand_dims for new axes",
    "broadcast": "use megengine.functional.broadcast_to",
    "clone": "use Tensor(x), or copy.copy(x)",
    "contiguous": "there is nothing to do: values have no strides",
    "unsqueeze": "use megengine.functional.expand_dims(x, axis)",
    "masked_fill": "use megengine.functional.where(mask, value, x)",
    "repeat": "use megengine.functional.repeat or megengine.functional.tile",
    "expand": "use megengine.functional.broadcast_to",
    "data": "use .detach(), or .numpy() for an array",
    "nelement": "use .size",
}


def attribute(owner: object, name: str, words: Mapping[str, str]) -> MissingNameError:
    """The error for an attribute that an object lacks: what to use instead, or the nearest name."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in words:
        return MissingNameError(f"{text}: {words[name]}")
    return MissingNameError(text, "" if name.startswith("_") else name, lambda: dir(owner))


class Absent:
    """An attribute that other engines have: reading it raises an error with the remedy; it can be assigned."""

    def __init__(self, name: str, words: Mapping[str, str]) -> None:
        self._name, self._words = name, words

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        if owner is None:
            return self
        raise attribute(owner, self._name, self._words)
