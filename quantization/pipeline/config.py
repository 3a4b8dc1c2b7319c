"""What the user chooses: one frozen value, and the rules that select layers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from megengine.core.errors import OptionError, nearest
from megengine.core.text import counted
from megengine.quantization.pipeline.profiles import Profile, profile
from megengine.quantization.ranges import RangeMethod

CHOICES = {
    "weights": ("per_channel", "per_tensor"),
    "weight_method": ("minmax", "mse"),
    "rounding": ("nearest", "gptq"),
}
"""Settings that are one of several words."""


@dataclass(frozen=True, slots=True)
class QuantConfig:
    """Settings of post-training quantization.

    Args:
        weights: "per_channel" or "per_tensor" scales.
        weight_method: "minmax" or "mse".
        activations: how ranges of activations are chosen.
        rounding: "nearest", or "gptq": the integers of a weight are chosen together, by what reaches the layer.
        equalize: scale channels between two convolutions so that all use the whole range (cross-layer equalization).
        bias_correction: subtract the mean error that weight and activation rounding leave per channel.
        profile: target, a name of `megengine.quantization.PROFILES` or a `Profile`.
        exclude: layers left in float. Each entry selects by module path ("features.0", with all below it),
            by node name, by op ("op:sigmoid") or by regular expression over names and paths ("re:.*head.*").

    Example:
        >>> QuantConfig(exclude=("classifier",)).weights
        'per_channel'
    """

    weights: str = "per_channel"
    weight_method: str = "minmax"
    activations: RangeMethod = field(default_factory=RangeMethod)
    rounding: str = "nearest"
    equalize: bool = False
    bias_correction: bool = True
    profile: Profile | str = "x86"
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise OptionError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")
        if isinstance(self.exclude, str):
            raise OptionError(f"exclude: expected a tuple of rules, got the string {self.exclude!r}")

    @property
    def target(self) -> Profile:
        return self.profile if isinstance(self.profile, Profile) else profile(self.profile)

    @property
    def second_reading(self) -> str:
        """Why calibration data is read again after the ranges are known; "" if it is not."""
        settings = {
            "equalization": self.equalize,
            "gptq": self.rounding == "gptq",
            "bias correction": self.bias_correction,
        }
        return next((name for name, chosen in settings.items() if chosen), "")

    @classmethod
    def of(cls, effort: str, **settings: Any) -> QuantConfig:
        """Settings of an effort, a name of `EFFORTS`, of which some are given instead.

        Example:
            >>> QuantConfig.of("balanced", equalize=False).rounding
            'gptq'
        """
        if effort not in EFFORTS:
            raise OptionError(f"effort: expected one of {', '.join(EFFORTS)}, got {effort!r}{nearest(effort, EFFORTS)}")
        return cls(**{**EFFORTS[effort], **settings})

    def changed(self, **settings: object) -> QuantConfig:
        """A copy with some settings changed."""
        return replace(self, **settings)


EFFORTS: dict[str, dict[str, Any]] = {
    "fast": {},
    "balanced": {"activations": RangeMethod("mse"), "rounding": "gptq", "equalize": True},
}
"""Settings by the time that they may take."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What selection rules see of a layer."""

    name: str
    op: str
    module: str = ""

    def matches(self, rule: str) -> bool:
        kind, _, rest = rule.partition(":")
        if kind == "op" and rest:
            return self.op == rest
        if kind == "re" and rest:
            try:
                return any(re.fullmatch(rest, text) for text in (self.name, self.module) if text)
            except re.error as exc:
                raise OptionError(f"exclude: {rule!r} is not a regular expression: {exc}") from exc
        return rule in (self.name, self.module) or self.module.startswith(rule + ".")


def select(rules: Iterable[str], layers: Iterable[Layer]) -> dict[str, str]:
    """Names of the layers that the rules select, each with the first rule that did.

    Raises:
        OptionError: a rule is no regular expression, or selects nothing; the nearest names are given.

    Example:
        >>> select(["head"], [Layer("conv1", "conv2d", "stem"), Layer("fc", "matmul", "head.fc")])
        {'fc': 'head'}
    """
    layers = list(layers)
    chosen: dict[str, str] = {}
    for rule in rules:
        found = [layer.name for layer in layers if layer.matches(rule)]
        if not found:
            raise OptionError(f"exclude: {rule!r} selects no layer{_nearest(rule, layers)}")
        for name in found:
            chosen.setdefault(name, rule)
    return chosen


def _nearest(rule: str, layers: list[Layer]) -> str:
    prefix, _, text = rule.partition(":") if rule.startswith(("op:", "re:")) else ("", "", rule)
    words = {f"op:{x.op}" for x in layers} if prefix == "op" else {n for x in layers for n in (x.name, x.module) if n}
    close = difflib.get_close_matches(rule if prefix == "op" else text, sorted(words), n=3, cutoff=0.4)
    return f"; nearest: {', '.join(close)}" if close else f"; the model has {counted(len(layers), 'layer')}"
