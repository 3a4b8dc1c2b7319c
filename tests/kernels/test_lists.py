"""The lists of kernels: every kernel that a file defines is in one, under its own name, and every list is an op's."""

import importlib
import pkgutil
from types import ModuleType

import pytest

from megengine import kernels
from megengine.dispatch import registry
from megengine.kernels import large
from megengine.kernels.kernel import EagerKernel, FlatKernel, StepKernel
from megengine.kernels.lists import LISTS

KINDS = (EagerKernel, FlatKernel, StepKernel)
FILES = [importlib.import_module(f"megengine.kernels.{m.name}") for m in pkgutil.iter_modules(kernels.__path__)]


def faults(files, lists, ops):
    """What is wrong between the kernels of files, the lists and the ops."""
    defined = [(file, name, value) for file in files for name, value in vars(file).items() if isinstance(value, KINDS)]
    listed = [kernel for entries in lists.values() for kernel in entries]
    names = [kernel.name for kernel in {id(kernel): kernel for kernel in listed}.values()]
    return [
        *(f"{f.__name__}.{n}: named {k.name!r}" for f, n, k in defined if n != k.name),
        *(f"{f.__name__}.{n}: no list names it" for f, n, k in defined if not any(k is one for one in listed)),
        *(f"{n}: no file defines it" for n in names if n not in {name for _, name, _ in defined}),
        *(f"{n}: the name of two kernels" for n in sorted({n for n in names if names.count(n) > 1})),
        *(f"{op}: {k.name} stands there twice" for op, ks in lists.items() for k in set(ks) if ks.count(k) > 1),
        *(f"{op}: no such op" for op in lists if op not in ops),
    ]


def test_kernels_lists_and_ops_agree():
    assert sum(len(entries) for entries in LISTS.values()) > 70
    assert faults(FILES, LISTS, registry) == []


SPARE = EagerKernel("spare", abs)


def module(**members):
    made = ModuleType("planted")
    vars(made).update(members)
    return made


@pytest.mark.parametrize(
    ("files", "lists", "fault"),
    [
        ([module(spare=SPARE)], {}, "planted.spare: no list names it"),
        ([module(other=SPARE)], {"exp": (SPARE,)}, "planted.other: named 'spare'"),
        ([], {"exp": (SPARE,)}, "spare: no file defines it"),
        ([large], {"add": LISTS["add"][:1] * 2}, "add: numpy_large_add stands there twice"),
        ([], {"exp": (SPARE, EagerKernel("spare", max))}, "spare: the name of two kernels"),
        ([module(spare=SPARE)], {"no_such_op": (SPARE,)}, "no_such_op: no such op"),
    ],
)
def test_every_fault_is_seen(files, lists, fault):
    assert fault in faults(files, lists, registry)
