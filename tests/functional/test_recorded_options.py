"""Every public function is compared with MegEngine: each option value has a recorded case, or a reason for none."""

import inspect
from pathlib import Path

import numpy as np
import packed
import pytest
from cases import CASES
from edge_cases import VARIANTS
from record import answer
from recorded_calls import NO_OPTION, Coverage, calls_of

import megengine
import megengine.autodiff
import megengine.functional as F
from megengine.core.errors import MegEngineError
from megengine.dispatch import public, public_functions
from megengine.dispatch.public import retract, watched_function

RECORDED = packed.load(Path(__file__).parents[1] / "data" / "recorded" / "functional.npz")
RESULTS = {key.split(" -> ")[0] for key in RECORDED if " -> out " in key}
GRADIENTS = {key.split(" -> ")[0] for key in RECORDED if " -> grad " in key}
APART = {name for name in CASES if name.startswith(("module ", "optimizer ", "init "))}  # test_recorded_layers.py

_OURS = "MegEngine has no such function"
_CPU = "fails there on a CPU"
_CUDNN = "there with cuDNN alone"
_REFUSED = "there refused: not supported now"
_AXIS = "there required"
# function and option -> why no answer of MegEngine's is recorded
REASONS = {
    "elemwise.erf: never called": _OURS,
    "elemwise.rsqrt: never called": _OURS,
    "math.einsum: never called": _OURS,
    "math.norm: axis=None": _AXIS,
    "math.normalize: axis=None": _AXIS,
    "math.svd: compute_uv=False": "there the call fails: three results are expected where one is",
    "math.svd: full_matrices=True": _CPU,
    "nn.conv1d: compute_mode='float32'": "there the text is not taken",
    "nn.conv1d: groups=another": "there no shape of a weight is right: three axes are too few, four too many",
    "nn.embedding: max_norm=another": _REFUSED,
    "nn.embedding: norm_type=another": _REFUSED,
    "nn.embedding: padding_idx=another": _REFUSED,
    "nn.local_conv2d: dilation=another": _CPU,
    "nn.multi_head_attention: add_zero_attn=True": _CUDNN,
    "nn.multi_head_attention: bias_k=another": _CUDNN,
    "nn.multi_head_attention: bias_v=another": _CUDNN,
    "nn.multi_head_attention: is_causal=True": _CUDNN,
    "nn.multi_head_attention: kproj_size=None": _CUDNN,
    "nn.multi_head_attention: maybe_cudnn_style_mask=True": _CUDNN,
    "nn.multi_head_attention: oproj_size=None": _CUDNN,
    "nn.multi_head_attention: qproj_size=None": _CUDNN,
    "nn.multi_head_attention: reslink=True": _CUDNN,
    "nn.multi_head_attention: vproj_size=None": _CUDNN,
    "nn.region_restricted_conv: compute_mode='float32'": _CPU,
    "nn.region_restricted_conv: stride=another": _CPU,
    "nn.sync_batch_norm: group=another": "needs several processes",
    "tensor.arange: device=another": "there the call fails on its own error",
    "vision.cvt_color: mode='GRAY2BGR'": "MegEngine has no such mode",
    "vision.nvof: never called": "needs NVIDIA's optical flow engine",
    "vision.warp_perspective: interp_mode='cubic'": _CPU,
    "vision.warp_perspective: interp_mode='nearest'": _CPU,
}
# MegEngine cannot make arrays of these
OTHER_DTYPES = {"bfloat16", "float64", "int64", "uint32", "uint64"}
# functions whose results have a gradient here, and why no gradient of MegEngine's is recorded
NO_GRADIENT = {
    **dict.fromkeys(
        ("ceil", "floor", "floor_div", "full_like", "ones_like", "round", "sign", "topk_accuracy", "zeros_like"),
        "zero wherever there is one",
    ),
    "cvt_color": "none there",
}


def is_compared(record):
    if record.home.endswith(".quantized"):  # declared at first use; compared in tests/quantization
        return False
    return record.home.startswith("megengine.functional") and not record.is_method


@pytest.fixture(scope="module")
def coverage():
    """What the cases that MegEngine answers call."""
    found = Coverage()
    for name in sorted(set(CASES) & RESULTS - APART):
        entry = CASES[name]

        def heard(functional, *inputs, entry=entry):
            for record, args, kwargs in calls_of(lambda: entry.call(functional, *inputs)):
                found.add(record.qualified, record.signature, args, kwargs)

        try:
            answer(megengine, F, megengine.autodiff, entry._replace(call=heard, grad=False))
        except MegEngineError:  # a difference that test_recorded.py lists
            continue
    return found


def gaps(coverage):
    for name, record in sorted(public_functions.items()):
        if is_compared(record):
            for gap in coverage.gaps(name, record.signature, watched_function(record)):
                if gap not in {f"dtype={dtype!r}" for dtype in OTHER_DTYPES}:
                    yield f"{name.removeprefix('megengine.functional.')}: {gap}"


@pytest.mark.filterwarnings("ignore")
def test_every_option_is_recorded_or_has_a_reason(coverage):
    found = set(gaps(coverage))
    assert sorted(found - set(REASONS)) == []
    assert sorted(set(REASONS) - found) == [], "recorded by now: the reason must go"


# public functions that have no cases with no rows, no columns and other dtypes -> why
NO_VARIANTS = {
    **dict.fromkeys(("arange", "eye", "full", "linspace", "ones", "zeros"), "made of numbers, not of tensors"),
    **dict.fromkeys(("einsum", "erf", "rsqrt"), _OURS),
    **dict.fromkeys(("imag", "real"), "of complex numbers; there are cases with `complex`"),
    "nvof": "needs NVIDIA's optical flow engine",
}


def test_every_function_meets_nothing_and_other_dtypes():
    """Each has a case with no rows, with no columns, and of each kind of number, answered or refused there."""
    known = {key.split(" -> ")[0] for key in RECORDED}
    met = {}
    for name in known - APART:
        base, _, variant = name.rpartition(", ")
        if variant in VARIANTS:
            met.setdefault(base.partition("/")[0], (base, set()))[1].add(variant)
    names = {record.name for record in public_functions.values() if is_compared(record)}
    assert names - set(met) == set(NO_VARIANTS)
    for base, variants in met.values():
        inputs = [np.asarray(x) for x in CASES[base].inputs]
        floats = any(x.dtype == np.float32 for x in inputs)
        wanted = {v for v in VARIANTS if v.startswith("all ") and floats} | {"no columns"}
        assert variants >= wanted | ({"no rows"} if len(inputs[0]) else set()), base


@pytest.fixture
def unknown():
    """A public function that no case calls, and one more option of a function that cases call."""

    @public(home="megengine.functional.nn")
    def unheard_of(inp, *, mode="a"):
        return inp

    yield "megengine.functional.nn.unheard_of"
    retract("megengine.functional.nn.unheard_of")


@pytest.mark.filterwarnings("ignore")
def test_what_is_not_recorded_is_found(coverage, unknown):
    assert "nn.unheard_of: never called" in set(gaps(coverage))
    signature = inspect.signature(lambda inp, mode="a", flag=False, count=3: inp)
    partly = Coverage()
    partly.add("f", signature, (1,), {"count": 3})

    def f(inp, mode, flag, count):
        if mode == NO_OPTION:
            raise MegEngineError("f: mode is 'x'; expected one of ['a', 'b']; did you mean a?")

    assert list(partly.gaps("f", signature, f)) == ["mode='b'", "flag=True", "count=another"]


def test_every_gradient_is_recorded_or_has_a_reason():
    """Functions whose results are of float32 in some recorded case have a gradient in one."""
    smooth, covered = set(), set()
    for name in sorted(set(CASES) & RESULTS - APART):
        function = name.partition("/")[0].partition(",")[0]
        floats = any(x.dtype == np.float32 for x in CASES[name].inputs)
        if floats and RECORDED[f"{name} -> out 0"].dtype == np.float32:
            smooth.add(function)
            covered |= {function} & {n for n in (function,) if name in GRADIENTS}
    assert sorted(smooth - covered - set(NO_GRADIENT)) == []
    assert sorted(set(NO_GRADIENT) & covered) == [], "recorded by now: the reason must go"
