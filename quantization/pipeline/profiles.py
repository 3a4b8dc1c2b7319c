"""Target profiles: which integer types a target runs, as data."""

from dataclasses import dataclass

from megengine.core.errors import OptionError, nearest


@dataclass(frozen=True, slots=True)
class Profile:
    """What a target wants.

    Args:
        name: how users ask for it.
        non_negative: scheme of edges that hold no negative value (after relu, relu6, sigmoid, ...).
        signed: scheme of all other edges.
        bias: "float" (B carries the bias, default arithmetic) or "int32" (b carries it).
        residual: "fused" (R1: the branch of a residual is not rounded) or "quantized" (R2: it is).
        quantize_outputs: outputs of the network are integers too.

    The schemes are names of `megengine.quantization.ranges.scales.SCHEMES`.
    """

    name: str
    non_negative: str = "u8"
    signed: str = "u8_asymmetric"
    bias: str = "float"
    residual: str = "fused"
    quantize_outputs: bool = False


PROFILES = {
    p.name: p
    for p in (
        Profile("x86"),
        Profile("x86-symmetric", signed="s8"),
        Profile("onnx-qlinear", bias="int32", residual="quantized", quantize_outputs=True),
        Profile("megengine", non_negative="s8", signed="s8", bias="int32", residual="quantized"),
    )
}


def profile(name: str) -> Profile:
    """Profile by name.

    Raises:
        OptionError: no such profile; the message lists them.

    Example:
        >>> profile("x86").non_negative
        'u8'
    """
    if name not in PROFILES:
        raise OptionError(f"profile: unknown {name!r}; expected one of {', '.join(PROFILES)}{nearest(name, PROFILES)}")
    return PROFILES[name]
