"""What the user chooses: one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from megengine.core.errors import OptionError, nearest
from megengine.dispatch.refusal import fields_named, kinds_named
from megengine.quantization.pipeline.profiles import Profile, profile
from megengine.quantization.pipeline.selection import GRANULARITIES, LayerRule, Precision
from megengine.quantization.ranges import RangeMethod

CHOICES = {
    "weights": GRANULARITIES,
    "weight_method": ("minmax", "mse"),
    "rounding": ("nearest", "gptq", "gptaq", "adaround"),
}
"""Settings that are one of several words."""

_LEAST_ERROR = RangeMethod("mse")  # not minmax: the extremes of one sample would set every step


@fields_named
@dataclass(frozen=True, slots=True)
class QuantConfig:
    """Settings of post-training quantization.

    Args:
        weights: "per_channel" or "per_tensor" scales.
        weight_method: "minmax" or "mse".
        activations: how ranges of activations are chosen, a `RangeMethod` or its name; those of least squared error by
            default.
        rounding: "nearest"; "gptq": the integers of a weight are chosen together, by what reaches the layer; "gptaq":
            so layer by layer, and each makes up for the errors of those before it; or "adaround": as "gptaq", but each
            weight learns whether to round down or up.
        equalize: scale channels between convolutions, across residuals too, so that all use the whole range
            (cross-layer equalization).
        smooth: scale channels of normalised values so that linear layers read them in finer steps (SmoothQuant).
        reconstruction: steps in which each block learns the rounding of its weights, scales and biases (BRECQ, QDrop);
            0 for none. A block that does not do better on samples that are held out stays as it was.
        distillation: passes over the data in which scales, biases and weights are trained to follow the float network;
            0 for none. What does not score better on samples that are held out is undone.
        vary: show GPTAQ, AdaRound, reconstruction and distillation half of the pictures in less contrast, where weights
            have fewer than 8 bits.
        bias_correction: subtract the mean error that weight and activation rounding leave per channel.
        wide_sums: 16 bits for sums of residuals that norms and further sums alone read, as in transformers. Layers read
            what they read before.
        profile: target, a name of `megengine.quantization.PROFILES` or a `Profile`.
        precision: bits of weights and of results, a name of `PRECISIONS`: "w8a8", "w7a8", "w4a8", "w8a16", ..., or with
            integers for weights alone "w8" and "w4".
        group: weights along the sum that share a scale, for weights alone; 0 for all of a channel or tensor.
        rules: other integers for some layers, `LayerRule` values or texts such as "classifier=w4,group:32"; a later
            rule stands above an earlier one.
        exclude: layers left in float. Each entry selects by module path ("features.0", with all below it), by node
            name, by op ("op:sigmoid"), by glob ("features.*.conv"), by regular expression over names and paths
            ("re:.*head.*"), or all between two nodes ("first..last").
        include: layers with weights, and products, that become integers; all others stay in float. () for all.

    Example:
        >>> QuantConfig(exclude=("classifier",)).weights
        'per_channel'
    """

    weights: str = "per_channel"
    weight_method: str = "minmax"
    activations: RangeMethod = _LEAST_ERROR
    rounding: str = "nearest"
    equalize: bool = False
    smooth: bool = False
    reconstruction: int = 0
    distillation: int = 0
    vary: bool = False
    bias_correction: bool = True
    wide_sums: bool = False
    profile: Profile | str = "x86"
    precision: str = "w8a8"
    group: int = 0
    rules: tuple[LayerRule | str, ...] = ()
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise OptionError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")
        if isinstance(self.activations, str):  # a name alone
            object.__setattr__(self, "activations", RangeMethod(self.activations))
        if not isinstance(self.activations, RangeMethod):
            raise OptionError(f'activations: expected a RangeMethod or its name, "mse", got {self.activations!r}')
        for name, unit in (("reconstruction", "steps"), ("distillation", "passes")):
            if (value := getattr(self, name)) < 0:
                raise OptionError(f"{name}: expected a number of {unit}, 0 for none; got {value}")
        for name in ("rules", "exclude", "include"):
            if isinstance(value := getattr(self, name), str):
                raise OptionError(f"{name}: expected a tuple of rules, got the string {value!r}")
        _ = self.general, self.layer_rules  # they refuse what does not fit

    @property
    def target(self) -> Profile:
        return self.profile if isinstance(self.profile, Profile) else profile(self.profile)

    @property
    def general(self) -> Precision:
        """The integers of layers that no rule hits."""
        return Precision(self.precision, self.weights, self.group)

    @property
    def layer_rules(self) -> tuple[LayerRule, ...]:
        """The rules, texts read."""
        return tuple(LayerRule.parse(rule) if isinstance(rule, str) else rule for rule in self.rules)

    @property
    def second_reading(self) -> str:
        """Why calibration data is read again after the ranges are known; "" if it is not."""
        settings = {
            "equalization": self.equalize,
            "smoothing": self.smooth,
            self.rounding: self.rounding != "nearest",
            "reconstruction": self.reconstruction > 0,
            "distillation": self.distillation > 0,
        }
        return next((name for name, chosen in settings.items() if chosen), "")

    @classmethod
    @kinds_named
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


_BALANCED: dict[str, Any] = {"activations": _LEAST_ERROR, "rounding": "gptq", "equalize": True, "smooth": True}

EFFORTS: dict[str, dict[str, Any]] = {
    "fast": {},
    "balanced": _BALANCED,
    "best": {**_BALANCED, "rounding": "gptaq", "distillation": 8, "vary": True},
}
"""Settings by the time that they may take."""
