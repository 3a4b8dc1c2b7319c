"""Calls that are right, of everything public: what the tests of wrong calls start from. None of them is written by
hand where another table has it: functions and methods come from the recorded cases, layers from the recorded layers.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from recorded_calls import Listener

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import amp, data, optimizer
from megengine.autodiff import Function, GradManager, jvp
from megengine.core import hooks
from megengine.core.errors import MegEngineError
from megengine.dispatch.public import watched_function
from megengine.utils.module_stats import module_stats

os.sys.path.insert(0, str(Path(__file__).parents[1] / "recording"))
import nn_cases  # noqa: E402, F401
import tensor_cases  # noqa: E402, F401
import vision_cases  # noqa: E402, F401
from cases import CASES  # noqa: E402

LAYERS = json.loads((Path(__file__).parents[1] / "data" / "megengine" / "layers.json").read_text())


@dataclass(frozen=True)
class Call:
    """A call; `make()` gives what is called, fresh, since some of it has a state."""

    name: str
    make: Callable[[], Callable[..., Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def fresh(self) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of its own: tensors are copied, since wrong calls may write to them."""
        return [_copied(a) for a in self.args], {k: _copied(v) for k, v in self.kwargs.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, mge.Tensor):
        return type(value)(value)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_copied(v) for v in value)
    return value


class _Heard(Listener):
    """Hears the calls of public functions, and keeps what the arguments were before."""

    def function(self, record: Any, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        call = record, tuple(map(_copied, args)), {k: _copied(v) for k, v in kwargs.items()}
        out = run()
        self.calls.append(call)  # what fails is no call to start from
        return out


def function_calls(of_each: int = 2) -> Iterator[Call]:
    """Calls of public functions and tensor methods, as the recorded cases make them."""
    heard, seen = _Heard(), {}
    for entry in CASES.values():
        if sum(np.size(x) for x in entry.inputs) > 5000:
            continue
        with hooks.listening(heard):  # type: ignore[arg-type]
            try:
                entry.call(F, *[mge.tensor(x, dtype=x.dtype) for x in entry.inputs])
            except MegEngineError:
                continue
    for record, args, kwargs in heard.calls:
        shape = len(args), *sorted(kwargs)
        have = seen.setdefault(record.qualified, set())
        if len(have) < of_each and shape not in have:
            have.add(shape)
            owner = mge.Tensor if record.is_method else None
            function = getattr(owner, record.name) if owner else watched_function(record)
            yield Call(record.name, lambda function=function: function, args, kwargs)


def _literal(call: str) -> tuple[str, tuple, dict]:
    """(class, arguments, keyword arguments) of a call as text."""
    tree = ast.parse(call, mode="eval").body
    assert isinstance(tree, ast.Call)
    names = {"M": M}

    def value(node: ast.expr) -> Any:
        return eval(compile(ast.Expression(node), "layers.json", "eval"), names)

    return ast.unparse(tree.func), tuple(map(value, tree.args)), {k.arg: value(k.value) for k in tree.keywords}


def layer_calls() -> Iterator[Call]:
    """Constructors of layers."""
    for text in LAYERS:
        name, args, kwargs = _literal(text)
        yield Call(name, lambda name=name: getattr(M, name), args, kwargs)


_SHAPES = [
    (2, 4),
    (2, 3),
    (3, 6),
    (1, 8),
    (2, 3, 4),
    (2, 4, 5),
    (1, 4, 8, 7),
    (1, 3, 6, 6),
    (2, 4, 6, 6),
    (1, 4, 4, 5, 5),
]


def _inputs() -> Iterator[tuple]:
    """Inputs of which each layer takes one."""
    made = [mge.tensor(np.linspace(0, 1, int(np.prod(s)), dtype=np.float32).reshape(s)) for s in _SHAPES]
    yield from ((x,) for x in made)
    yield (mge.tensor([[0, 1], [2, 3]]),)
    yield from ((x, x) for x in made)
    yield ([made[0], made[0]],)
    yield (mge.tensor(np.ones((2, 3, 32), np.float32)),) * 3
    yield (mge.tensor(np.ones((1, 8), np.float32)), mge.tensor(np.ones((1, 16), np.float32)))
    yield made[6], mge.tensor(np.ones((1, 18, 6, 5), np.float32)), mge.tensor(np.ones((1, 9, 6, 5), np.float32))
    region = mge.tensor(np.zeros((1, 8, 7), np.int32))
    yield made[6], region
    yield made[6], region, mge.tensor(np.zeros((1, 6, 5), np.int32))
    yield (
        mge.tensor(np.ones((1, 4, 8, 8), np.float32)),
        mge.tensor([[0.0, 0, 0, 5, 5]]),
        mge.tensor(np.zeros((1, 2, 7, 7), np.float32)),
    )
    yield (mge.tensor(np.ones((5, 2, 8), np.float32)),)
    yield (mge.tensor(np.ones((1, 2, 6, 6, 3, 3), np.float32)),)


def forward_calls() -> Iterator[Call]:
    """Calls of layers, with the first input that each takes."""
    for text in LAYERS:
        name, args, kwargs = _literal(text)

        def make(name=name, args=args, kwargs=kwargs) -> M.Module:
            return getattr(M, name)(*args, **kwargs)

        for inputs in _inputs():
            try:
                make()(*inputs)
            except MegEngineError:
                continue
            yield Call(name, make, inputs, {})
            break


def _trained() -> M.Module:
    layer = M.Linear(3, 2)
    for p in layer.parameters():
        p.grad = mge.tensor(np.ones(p.shape, np.float32))
    return layer


def _recording() -> tuple[GradManager, Any]:
    """A manager that has recorded, and what it recorded; nobody hears what comes after."""
    return copy_context().run(_recorded)


def _recorded() -> tuple[GradManager, Any]:
    w = mge.Parameter([1.0, 2.0])
    manager = GradManager().attach([w])
    manager.record()
    return manager, (w * 2).sum()


def optimizers() -> dict[str, Any]:
    """The classes by their names, without the base."""
    named = {name: getattr(optimizer, name) for name in optimizer.__all__}
    base = optimizer.Optimizer
    return {n: k for n, k in named.items() if isinstance(k, type) and issubclass(k, base) and k is not base}


def training_calls() -> Iterator[Call]:
    """Optimizers, schedules, limits on gradients, initialisers, gradients."""
    for name, kind in optimizers().items():
        defaults = {p.name: p.default for p in inspect.signature(kind).parameters.values() if p.default is not p.empty}
        yield Call(
            name,
            lambda kind=kind: kind,
            (list(_trained().parameters()), 0.1),
            {k: v for k, v in defaults.items() if k != "lr"},
        )
        yield Call(
            f"{name}.add_param_group",
            lambda kind=kind: kind(_trained().parameters(), lr=0.1).add_param_group,
            ({"params": [mge.Parameter(1.0)]},),
            {},
        )
        yield Call(
            f"{name}.load_state_dict",
            lambda kind=kind: kind(_trained().parameters(), lr=0.1).load_state_dict,
            (kind(_trained().parameters(), lr=0.1).state_dict(),),
            {},
        )
    sgd = optimizer.SGD(_trained().parameters(), lr=0.1)
    yield Call("MultiStepLR", lambda: optimizer.MultiStepLR, (sgd, [1, 3], 0.1, -1), {})
    yield Call("step", lambda: optimizer.MultiStepLR(sgd, [1, 3]).step, (3,), {})
    yield Call("clip_grad_norm", lambda: optimizer.clip_grad_norm, (list(_trained().parameters()), 1.0, 2.0), {})
    yield Call("clip_grad_value", lambda: optimizer.clip_grad_value, (list(_trained().parameters()), -1.0, 1.0), {})
    weight = mge.Parameter(np.ones((4, 3, 2, 2), np.float32))
    for name, function in sorted(vars(M.init).items()):
        if name.endswith("_") and not name.startswith("_"):
            defaults = {
                p.name: p.default for p in inspect.signature(function).parameters.values() if p.default is not p.empty
            }
            yield Call(
                name, lambda function=function: function, (weight, *([0.5] if name == "fill_" else [])), defaults
            )
    yield Call("calculate_gain", lambda: M.init.calculate_gain, ("leaky_relu", 0.1), {})
    yield Call("calculate_correct_fan", lambda: M.init.calculate_correct_fan, (weight, "fan_in"), {})
    yield Call("attach", lambda: GradManager().attach, ([weight], [lambda t, g: g]), {})
    yield Call("backward", lambda: _recording()[0].backward, (_recording()[1], mge.tensor(1.0)), {})
    yield Call("jvp", lambda: jvp, (F.sin, [weight], [weight]), {})
    yield Call(
        "einsum",
        lambda: F.einsum,
        ("ij,jk->ik", mge.tensor(np.ones((2, 3), np.float32)), mge.tensor(np.ones((3, 4), np.float32))),
        {},
    )


def random_calls() -> Iterator[Call]:
    """Distributions, of the process and of a generator."""
    x = mge.tensor([1.0, 2.0])
    for owner in (lambda: mge.random, lambda: mge.random.RNG(seed=3)):
        yield Call("uniform", lambda o=owner: o().uniform, (0, 1, (2, 3)), {})
        yield Call("normal", lambda o=owner: o().normal, (0, 1, (2, 3)), {})
        yield Call("gamma", lambda o=owner: o().gamma, (x, 1.5, (2, 3)), {})
        yield Call("beta", lambda o=owner: o().beta, (x, 1.5, (2, 3)), {})
        yield Call("poisson", lambda o=owner: o().poisson, (x, (2, 3)), {})
        yield Call("permutation", lambda o=owner: o().permutation, (5,), {"dtype": "int32"})
        yield Call("permutation", lambda o=owner: o().permutation, (x,), {})
        yield Call("shuffle", lambda o=owner: o().shuffle, (x,), {})
        yield Call("seed", lambda o=owner: o().seed, (3,), {})
    yield Call("RNG", lambda: mge.random.RNG, (3, "cpu0"), {})


def tensor_calls() -> Iterator[Call]:
    """What tensors have beside the methods of ops."""
    x = mge.tensor([[1.0, 2, 3], [4, 5, 6]])
    yield Call("tensor", lambda: mge.tensor, ([[1.0, 2], [3, 4]], "float32", "cpu0"), {"format": "default"})
    yield Call("Parameter", lambda: mge.Parameter, ([1.0, 2],), {"dtype": "float32"})
    yield Call("set_value", lambda: mge.tensor(x).set_value, (x,), {})
    yield Call("item", lambda: x.item, (1, 2), {})
    for key in (
        0,
        (0, 1),
        (slice(None), slice(0, 3, 2)),
        (None, slice(None)),
        mge.tensor([1, 0]),
        x > 2,
        ([0, 1], [1, 2]),
        (Ellipsis, 1),
    ):
        yield Call("__getitem__", lambda: x.__getitem__, (key,), {})
        yield Call("__setitem__", lambda: mge.tensor(x).__setitem__, (key, 1.5), {})


def service_calls(folder: Path) -> Iterator[Call]:
    """Files, repositories, devices, state dicts."""
    (folder / "hubconf.py").write_text("def net(size=2):\n    'A net.'\n    return size\n")
    mge.save({"a": mge.tensor([1.0])}, folder / "a.pkl")
    yield Call("load", lambda: mge.load, (str(folder / "a.pkl"),), {"map_location": "cpu0"})
    yield Call("save", lambda: mge.save, ({"a": mge.tensor([1.0])}, str(folder / "b.pkl")), {})
    yield Call("list", lambda: mge.hub.list, (str(folder),), {"trust": True})
    yield Call("help", lambda: mge.hub.help, (str(folder), "net"), {"trust": True})
    yield Call("load", lambda: mge.hub.load, (str(folder), "net"), {"trust": True})
    yield Call("set_default_device", lambda: mge.set_default_device, ("cpu0",), {})
    yield Call("get_device_count", lambda: mge.get_device_count, ("cpu",), {})
    yield Call(
        "load_state_dict", lambda: M.Linear(3, 2).load_state_dict, (M.Linear(3, 2).state_dict(),), {"strict": True}
    )


class _Counting(data.dataset.StreamDataset):
    def __init__(self) -> None:
        super().__init__()

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def _class_calls(owner: Any, *given: tuple[str, tuple, dict]) -> Iterator[Call]:
    for name, args, kwargs in given:
        yield Call(name, lambda name=name: getattr(owner, name), args, kwargs)


def data_calls() -> Iterator[Call]:
    """Data sets, samplers, transforms and what they are given, loaders; scaled gradients; costs."""
    rows, picture = data.dataset.ArrayDataset(np.zeros((10, 3)), np.arange(10)), np.zeros((5, 6, 3), np.uint8)
    order, parts = ("image", "mask", "boxes"), (picture, picture[..., :1], np.array([[0.0, 1, 3, 4]]))
    common, ranks = {"drop_last": True}, {"world_size": 2, "rank": 1}
    yield from _class_calls(
        data,
        ("SequentialSampler", (rows, 2), {**common, "indices": [1, 2, 3], **ranks}),
        ("RandomSampler", (rows, 2), {**common, "indices": [1, 2, 3], **ranks, "seed": 1}),
        ("ReplacementSampler", (rows, 2), {**common, "num_samples": 3, "weights": [0.1] * 10, **ranks, "seed": 1}),
        ("StreamSampler", (2,), {}),
        ("Infinite", (data.SequentialSampler(rows),), {}),
        ("DataLoader", (rows, data.SequentialSampler(rows)), {"collator": data.Collator(), "timeout": 0}),
        ("DataLoader", (_Counting(), data.StreamSampler(2)), {"transform": data.transform.PseudoTransform()}),
    )
    yield Call("apply", lambda: data.Collator().apply, ([(picture, 1), (picture, 2)],), {})
    yield from _class_calls(
        data.dataset,
        ("ConcatDataset", ([rows, rows],), {}),
        ("VisionDataset", ("folder",), {"order": ("image",), "supported_order": ("image",)}),
    )
    made = {
        "CenterCrop": ((2, 3),),
        "Compose": ([data.transform.ToMode(), data.transform.Normalize()], False, [(1, 2)]),
        "Normalize": ([1.0, 2.0, 3.0], 2.0),
        "Pad": ((1, 2, 3, 4), (1, 2, 3), 9),
        "RandomCrop": (4, 1, (0, 0, 0), 9),
        "RandomHorizontalFlip": (0.5,),
        "ToMode": ("CHW",),
    }
    yield from _class_calls(data.transform, *((name, args, {"order": order}) for name, args in made.items()))
    for name, args in made.items():
        kind = getattr(data.transform, name)
        yield Call("apply", lambda k=kind, a=args: k(*a, order=order).apply, (parts,), {})
    yield Call("GradScaler", lambda: amp.GradScaler, (16.0, 2.0, 0.5, 2000), {})
    yield Call("backward", _scaled, (_recording()[1], mge.tensor(1.0)), {"unscale_grad": True})
    yield Call("unscale", lambda: amp.GradScaler().unscale, ([mge.Parameter(1.0)],), {})
    yield Call("update", lambda: amp.GradScaler().update, (2.0,), {})
    yield Call("load_state_dict", lambda: amp.GradScaler().load_state_dict, (amp.GradScaler().state_dict(),), {})
    options = {"input_shapes": (1, 3), "logging_to_stdout": False, "bar_length_max": 20}
    yield Call("module_stats", lambda: module_stats, (M.Linear(3, 2),), options)


def _scaled() -> Any:
    """`GradScaler.backward` of a manager that has recorded."""
    manager, _ = _recording()
    return lambda *args, **kwargs: amp.GradScaler().backward(manager, *args, **kwargs)


def every_call() -> Iterator[Call]:
    """All of the above."""
    sources = function_calls, layer_calls, forward_calls, training_calls, data_calls, random_calls, tensor_calls
    for calls in sources:
        yield from calls()
    with tempfile.TemporaryDirectory() as folder:
        yield from service_calls(Path(folder))


__all__ = ["Call", "Function", "every_call"]
