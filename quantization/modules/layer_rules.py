"""One table: the kinds of layers that have a QAT and a quantized form. Both families of classes are made from it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType

from megengine import module as float_modules
from megengine.module import Module


@dataclass(frozen=True, slots=True)
class LayerRule:
    """A kind of layer, by its class name in `megengine.module`, `.qat` and `.quantized`.

    `home` is the module below the latter two that files store; `layer` is MegEngine's word for a convolution or linear
    layer, as in `calc_conv`.
    """

    name: str
    home: str
    layer: str = ""

    @property
    def float_class(self) -> type[Module]:
        return getattr(float_modules, self.name)

    @property
    def op(self) -> str:
        """The op of a convolution or linear layer, "" for others."""
        return {"conv": "conv2d", "linear": "matmul"}.get(self.layer, self.layer)

    @property
    def relu(self) -> bool:
        return "Relu" in self.name

    @property
    def part(self) -> str:
        """Attribute with the layer that holds the weights; "" where the module itself does."""
        return self.layer if "Bn" in self.name else ""

    @property
    def calc(self) -> str:
        """MegEngine's method for the result before the activation; the quantized one ends in "_quantized"."""
        return f"calc_{self.layer}{'_bn' if self.part else ''}"


BATCH_NORMS = ("BatchNorm1d", "BatchNorm2d", "SyncBatchNorm")
"""Batch norms that are part of no layer. MegEngine leaves them in float, and then they refuse quantized tensors."""

LAYER_RULES = (
    LayerRule("Conv2d", "conv", "conv"),
    LayerRule("ConvRelu2d", "conv", "conv"),
    LayerRule("ConvBn2d", "conv_bn", "conv"),
    LayerRule("ConvBnRelu2d", "conv_bn", "conv"),
    LayerRule("ConvTranspose2d", "conv", "conv_transpose2d"),
    LayerRule("ConvTransposeRelu2d", "conv", "conv_transpose2d"),
    LayerRule("ConvTransposeBn2d", "conv_transpose_bn", "conv_transpose2d"),
    LayerRule("ConvTransposeBnRelu2d", "conv_transpose_bn", "conv_transpose2d"),
    LayerRule("Linear", "linear", "linear"),
    LayerRule("LinearRelu", "linear", "linear"),
    LayerRule("LinearBn1d", "linear_bn", "linear"),
    LayerRule("LinearBnRelu1d", "linear_bn", "linear"),
    LayerRule("BatchMatMulActivation", "batch_matmul_activation"),
    *(LayerRule(name, "batchnorm") for name in BATCH_NORMS),
    LayerRule("Elemwise", "elemwise"),
    LayerRule("Concat", "concat"),
    LayerRule("QuantStub", "quant_dequant"),
    LayerRule("DequantStub", "quant_dequant"),
)


def placed(cls: type, family: str, rule: LayerRule) -> type:
    """The class with the name and place that MegEngine's files know: `megengine.module.<family>.<home>.<name>`."""
    cls.__name__ = cls.__qualname__ = rule.name
    cls.__module__ = f"megengine.module.{family}.{rule.home}"
    return cls


def provide_homes(package: str, classes: Mapping[str, type]) -> dict[str, ModuleType]:
    """Make the modules below a package where MegEngine has these classes; base classes are in `module`.

    Returns the modules by their names in the package.
    """
    homes = {rule.name: rule.home for rule in LAYER_RULES}
    modules: dict[str, ModuleType] = {}
    for name, cls in classes.items():
        home = homes.get(name, "module")
        if home not in modules:
            modules[home] = module_from_spec(ModuleSpec(f"{package}.{home}", None))
            modules[home].__doc__ = sys.modules[package].__doc__
        setattr(modules[home], name, cls)
    sys.modules.update((module.__name__, module) for module in modules.values())
    return modules
