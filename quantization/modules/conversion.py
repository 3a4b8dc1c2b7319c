"""Modules become QAT modules, and those become quantized modules: MegEngine's way, child by child."""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from megengine.core.errors import MegEngineError, OptionError, QuantizationError, UnmappedLayerError
from megengine.dispatch.refusal import kinds_named
from megengine.functional import concat
from megengine.module import Module
from megengine.quantization.modules import int_modules, qat_modules
from megengine.quantization.modules.layer_rules import BATCH_NORMS, LAYER_RULES
from megengine.quantization.modules.qat_modules import QATModule
from megengine.quantization.modules.qconfigs import QConfig, ema_fakequant_qconfig
from megengine.quantization.ranges import PassiveObserver
from megengine.tensor import Tensor
from megengine.traced_module.traced import TracedModule

Convert = Callable[[Module], Module | None]


@kinds_named
def quantize_qat(
    module: Module, inplace: bool = True, qconfig: QConfig = ema_fakequant_qconfig, mapping: dict | None = None
) -> Module:
    """Replace float layers by their QAT forms, at any depth; a module used twice stays one module.

    Modules with `quantize_disabled` stay as they are, with all below them. A subclass of such a layer that computes as
    the layer does (it may have its own `__init__` and further methods) becomes the layer's QAT form.

    Args:
        module: float module; a single layer gives its QAT form.
        inplace: change it; False works on a copy.
        qconfig: observers and fake quantizers.
        mapping: float class -> QAT class, beside the built-in kinds.

    Raises:
        OptionError: module or qconfig are of the wrong type.
        UnmappedLayerError: a subclass of a layer has its own `forward`, or a part of it (a KeyError, as in MegEngine).

    Example:
        >>> from megengine.module import Conv2d
        >>> type(quantize_qat(Conv2d(3, 8, 3))).__module__
        'megengine.module.qat.conv'
    """
    _check_module("quantize_qat", module)
    if not isinstance(qconfig, QConfig):
        raise OptionError(
            f"quantize_qat: qconfig is a {type(qconfig).__name__}; expected a QConfig such as ema_fakequant_qconfig"
        )
    table = {rule.float_class: qat_modules.CLASSES[rule.name] for rule in LAYER_RULES} | (mapping or {})
    made: dict[int, Module] = {}

    def convert(child: Module) -> Module | None:
        return child if child.quantize_disabled else made.get(id(child))

    # all are looked up before the first is put in place, so that an error leaves the network as it was
    module = module if inplace else copy.deepcopy(module)
    for path, child in _enabled(module, "", set()):
        if (wanted := _qat_class_of(child, path, table)) is not None:
            made[id(child)] = wanted.from_float_module(child)
    module = _replaced("quantize_qat", module, convert)
    propagate_qconfig(module, qconfig)
    return module


def _enabled(module: Module, path: str, done: set[int]) -> Iterator[tuple[str, Module]]:
    """Path and module of what is quantized at or below a module: nothing that is disabled, or below such a one."""
    if module.quantize_disabled or id(module) in done:
        return
    done.add(id(module))
    yield path, module
    for name, child in module.named_children():
        yield from _enabled(child, f"{path}.{name}".lstrip("."), done)


def _qat_class_of(child: Module, path: str, table: dict[type, Any]) -> Any:
    """The QAT class for a module, by its own class or by the layer that it derives from; None if it is no layer."""
    kind = type(child)
    if kind in table or isinstance(child, (QATModule, int_modules.QuantizedModule)):
        return table.get(kind)
    layers = [c for c in kind.__mro__ if c in table and c.__name__ not in BATCH_NORMS]
    if not layers:
        return None
    own = [name for c in kind.__mro__[: kind.__mro__.index(layers[0])] for name in vars(c)]
    changed = sorted(name for name in own if name == "__call__" or (name[:2] != "__" and hasattr(layers[0], name)))
    if not {*changed} - {"_module_info_string"}:
        return table[layers[0]]
    base = layers[0].__name__
    raise UnmappedLayerError(
        f"quantize_qat: {path or 'the module'} is a {kind.__name__}, a {base} with its own {', '.join(changed)}, "
        f"and has no QAT form; give one with mapping={{{kind.__name__}: QATClass}}, or call its disable_quantize()"
    )


@kinds_named
def quantize(module: Module, inplace: bool = True, mapping: dict | None = None) -> Module:
    """Replace QAT modules by modules that compute with integers, at any depth. Call `.eval()` before running it.

    Args:
        module: the result of `quantize_qat`, calibrated or trained.
        inplace: change it; False works on a copy.
        mapping: QAT class -> quantized class, beside the built-in kinds.

    Raises:
        CalibrationError: an observer saw nothing; a note names its module.
        QuantizationError: a QAT class has no quantized form.
    """
    _check_module(quantize.__name__, module)
    table = {qat_modules.CLASSES[rule.name]: int_modules.CLASSES[rule.name] for rule in LAYER_RULES} | (mapping or {})
    module = module if inplace else copy.deepcopy(module)
    names = {id(m): name for name, m in module.named_modules()}

    def convert(child: Module) -> Module | None:
        if not isinstance(child, QATModule):
            return None
        if type(child) not in table:
            raise QuantizationError(
                f"quantize: {names[id(child)] or 'the module'} is a {type(child).__module__}."
                f"{type(child).__qualname__}, which has no quantized form; "
                "give one with mapping={QATClass: QuantizedClass}"
            )
        try:
            return table[type(child)].from_qat_module(child)
        except QuantizationError as exc:
            exc.add_note(f"in module {names[id(child)] or '(the network itself)'!r}")
            raise

    # all new modules are made before the first is put in place, so that an error leaves the network as it was
    made = {id(m): new for m in module.modules() if (new := convert(m)) is not None}
    return _replaced(quantize.__name__, module, lambda child: made.get(id(child)))


def _get_quantable_module_names() -> list[str]:
    """Names of the layers that have a form for quantization-aware training and one that computes with integers."""
    return [rule.float_class.__name__ for rule in LAYER_RULES]


def _check_module(name: str, module: Any) -> None:
    if not isinstance(module, Module):
        raise OptionError(f"{name}: expected a Module, got {type(module).__name__}")


def _replaced(what: str, module: Module, convert: Convert) -> Module:
    """What stands for a module (`_replacement`); in each traced model that it is or holds, one edit."""
    with ExitStack() as edits:
        for part in module.modules():
            if isinstance(part, TracedModule) and part.graphs:
                edits.enter_context(part.graphs[0].transaction(what))
        return _replacement(module, convert, {})


def _replacement(module: Module, convert: Convert, done: dict[int, tuple[Module, Module]]) -> Module:
    """What stands for a module: the converted one, or itself with its children replaced."""
    if id(module) in done:
        return done[id(module)][1]
    new = convert(module)
    done[id(module)] = (module, module if new is None else new)  # keeps the old one alive, so its id stays its own
    if new is not None:
        return new
    for name, value in list(module.__dict__.items()):
        changed = _replaced_in(value, convert, done)
        if changed is not value:
            setattr(module, name, changed)
    return module


def _replaced_in(value: Any, convert: Convert, done: dict) -> Any:
    if isinstance(value, Module):
        return _replacement(value, convert, done)
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = _replaced_in(item, convert, done)
    elif isinstance(value, list):
        value[:] = [_replaced_in(item, convert, done) for item in value]
    elif type(value) is tuple:
        items = tuple(_replaced_in(item, convert, done) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


def qat_children(module: Module) -> list[QATModule]:
    return [m for m in module.modules() if isinstance(m, QATModule)]


@kinds_named
def hook_qat_module(module: Module, func: Callable) -> list[Any]:
    """Call `func(module, inputs, output)` after every QAT module at or below `module`; gives handles to remove it."""
    return [m.register_forward_hook(func) for m in qat_children(module)]


@kinds_named
def propagate_qconfig(module: Module, qconfig: QConfig) -> None:
    """Give every QAT module at or below `module` new observers and fake quantizers."""
    for m in qat_children(module):
        m.set_qconfig(qconfig)


@kinds_named
def reset_qconfig(module: Module, qconfig: QConfig, inplace: bool = True) -> Module:
    """As `propagate_qconfig`, also on a copy; what takes scales starts from those that are known.

    Passive observers, TQT and LSQ take them: so a network that was calibrated, or trained with moving averages, goes on
    with scales that are searched (`apply_easy_quant`) or learnt. Observers that look for themselves begin anew.

    Raises:
        OptionError: `qconfig` is none, or its integer types are others than those of the known scales. The network is
            as it was.
    """
    module = module if inplace else copy.deepcopy(module)
    layers = qat_children(module)
    known, before = [m.known_qparams() for m in layers], [m.quantizing_parts() for m in layers]
    names = {id(m): name for name, m in module.named_modules()}
    for m, qparams in zip(layers, known, strict=True):
        try:
            m.set_qconfig(qconfig)
            m.take_qparams(qparams)
        except MegEngineError as exc:
            for layer, parts in zip(layers, before, strict=True):
                layer.__dict__.update(parts)
            exc.add_note(f"in module {names[id(m)] or '(the network itself)'!r}")
            raise
    return module


@kinds_named
def enable_observer(module: Module) -> None:
    """Let all observers look at values, also in evaluation mode: this is how a network is calibrated."""
    for m in qat_children(module):
        m.set_observer(True)


@kinds_named
def disable_observer(module: Module) -> None:
    """Keep all ranges as they are."""
    for m in qat_children(module):
        m.set_observer(False)


@kinds_named
def enable_fake_quant(module: Module) -> None:
    """Round values in the forward pass."""
    for m in qat_children(module):
        m.set_fake_quant(True)


@kinds_named
def disable_fake_quant(module: Module) -> None:
    """Compute in float in the forward pass."""
    for m in qat_children(module):
        m.set_fake_quant(False)


@kinds_named
def apply_easy_quant(module: Module, data: Tensor, start: float = 0.8, stop: float = 1.2, num: int = 40) -> Module:
    """Search better scales of passive observers on data, layer by layer (EasyQuant, Wu et al. 2020).

    Of `num` factors from `start` to `stop` of its first scale, each weight, and then each activation, takes the one
    whose rounded result is most similar to the result of the float network: the mean of the cosines of the samples. A
    rounded layer gets what the layers before gave with the scales that they had. For `easyquant_qconfig`; other
    observers stay as they are.

    Args:
        module: QAT network whose passive observers have parameters (`set_qparams`).
        data: one input of the network; its first axis counts samples.

    Raises:
        CalibrationError: a passive observer has no parameters yet.
    """
    factors = np.linspace(start, stop, num)
    twice = concat([data, data], 0)  # samples for the float network, and the same for the rounded one
    for where in ("weight_observer", "act_observer"):
        handles = hook_qat_module(module, lambda layer, inputs, _, at=where: _searched(layer, inputs, at, factors))
        try:
            module(twice)
        finally:
            for handle in handles:
                handle.remove()
    return module


def _searched(layer: QATModule, inputs: tuple, where: str, factors: np.ndarray) -> Tensor | None:
    """Give an observer its best scale; the results of the float and of the rounded layer before, one behind the other.

    None where there is no such observer: the layer gives what it gave, rounded for both.
    """
    observer = getattr(layer, where)
    if not isinstance(observer, PassiveObserver):
        return None
    halves = [_halves(x) for x in inputs]
    layer.set_fake_quant(False)
    exact = layer.forward(*[floats for floats, _ in halves])
    layer.set_fake_quant(True)
    rounded = layer.forward(*[values for _, values in halves])
    first, best, most = observer.scale.numpy(), observer.scale, 0.0
    for factor in factors:
        observer.scale = first * np.float32(factor)
        likeness = _cosine(exact.numpy(), layer.forward(*[values for _, values in halves]).numpy())
        if likeness > most:
            most, best = likeness, observer.scale
    observer.scale = best
    return concat([exact, rounded], 0)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the second half of the samples, of no scale."""
    count = x.shape[0] // 2
    halves = x[:count], x[count:]
    for half in halves:
        half.qparams = None
    return halves


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The mean cosine of the samples along the first axis."""
    x, y = (v.astype(np.float64).reshape(len(v), -1) for v in (a, b))
    length = np.sqrt((x * x).sum(1) * (y * y).sum(1))
    return float(np.where(length > 0, (x * y).sum(1) / np.where(length > 0, length, 1), 0.0).mean())
