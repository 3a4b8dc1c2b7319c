"""Target profiles: which integer types a target runs, as data."""

from dataclasses import dataclass

from megengine.core.dtype import QuantizedDType, qint8, quint8  # noqa: F401  (quint8 is for the example)
from megengine.core.errors import OptionError, nearest
from megengine.quantization.ranges import scheme

ROUNDED = ("average", "number", "gate")
"""What a QDQ file may have rounded inside an integer op: a mean before its axes go, a number beside integers, the gate
of SiLU.
"""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a target wants.

    Args:
        name: how users ask for it.
        non_negative: scheme of edges that hold no negative value (after relu, relu6, sigmoid, ...).
        signed: scheme of all other edges.
        joined: scheme of concatenations of both signs that convolutions read, where that is another one.
        bias: "float" (B carries the bias, default arithmetic) or "int32" (b carries it).
        residual: "fused" (R1: the branch of a residual is not rounded) or "quantized" (R2: it is).
        quantize_outputs: outputs of the network are integers too.
        keeps_known: ops of a known range (softmax, sigmoid) have it, also where the data spans a small part of it.
        shares: ops whose result takes the scale of their operand, beside those that move integers.
        rounded: what is rounded inside integer ops in QDQ files of it, names of `ROUNDED`; branches of sums always are.
        source: where the target says so.

    The schemes are names of `megengine.quantization.ranges.scales.SCHEMES`.
    """

    name: str
    non_negative: str = "u8"
    signed: str = "u8_asymmetric"
    joined: str = ""
    bias: str = "float"
    residual: str = "fused"
    quantize_outputs: bool = False
    keeps_known: bool = False
    shares: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ROUNDED
    source: str = ""

    def fixed(self, dtype: QuantizedDType) -> QuantizedDType | None:
        """A known range in the target's types; None where the target has zero in the middle of all ranges.

        Example:
            >>> PROFILES["tflite"].fixed(quint8(1 / 256)).zero_point
            -128
        """
        how = scheme(self.non_negative)
        if dtype.name == how.dtype or how.dtype == "quint8":
            return dtype
        return None if how.symmetric else qint8(dtype.only_scale, dtype.zero_point - 128)


PROFILES = {
    p.name: p
    for p in (
        Profile("x86", source="VPDPBUSD (AVX512-VNNI) multiplies u8 with s8: docs/integer-arithmetic.md"),
        Profile("x86-symmetric", signed="s8", source="as x86, without zero points"),
        Profile(
            "openvino",
            signed="s8",
            joined="u8_asymmetric",
            rounded=(),
            source="OpenVINO's CPU plugin: products of two computed values and norms are computed in float where there "
            "are zero points; elementwise ops between two roundings are one kernel in float; its convolutions of "
            "concatenated int8 values give wrong sums (2026.4)",
        ),
        Profile(
            "arm-dotprod",
            non_negative="s8_asymmetric",
            signed="s8_asymmetric",
            bias="int32",
            residual="quantized",
            source="SDOT (Armv8.2 FEAT_DotProd) multiplies s8 with s8; XNNPACK's qs8-qc8w layers and qs8-vadd",
        ),
        Profile(
            "tensorrt",
            non_negative="s8",
            signed="s8",
            source="TensorRT Developer Guide, Working with Quantized Types: INT8 is symmetric, zero point 0, bias and "
            "the sum with a residual in float behind the convolution",
        ),
        Profile(
            "tflite",
            non_negative="s8_asymmetric",
            signed="s8_asymmetric",
            bias="int32",
            residual="quantized",
            quantize_outputs=True,
            keeps_known=True,
            shares=("avg_pool2d",),
            source="LiteRT 8-bit quantization specification: weights [-127, 127], bias int32, AVERAGE_POOL_2D keeps "
            "its scale, SOFTMAX and LOGISTIC have scale 1/256 and zero point -128",
        ),
        Profile(
            "onnx-qlinear",
            bias="int32",
            residual="quantized",
            quantize_outputs=True,
            source="ONNX operators QLinearConv and QLinearMatMul",
        ),
        Profile(
            "megengine",
            non_negative="s8",
            signed="s8",
            bias="int32",
            residual="quantized",
            source="MegEngine 1.13: qint8 activations and weights",
        ),
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
