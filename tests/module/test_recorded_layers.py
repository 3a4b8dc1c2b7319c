"""Every public layer and optimizer, and each value of its options, has a case that MegEngine answered, or a reason."""

import inspect
import json
from pathlib import Path

import packed
import pytest
import record  # noqa: F401  (enters all cases)
from layer_cases import LAYERS
from public_api import resolve
from recorded_calls import Coverage
from training_cases import OPTIMIZERS

import megengine.module as M
import megengine.optimizer as O

DATA = Path(__file__).parents[1] / "data"
RECORDED = packed.load(DATA / "recorded" / "functional.npz")
LISTED = json.loads((DATA / "megengine" / "api.json").read_text())

_BASE = "a base of others"
_HARDWARE = "needs another vendor's hardware"
_THERE = "fails there"
_REFUSED = "there refused: not supported now"
_MASKS = "there the masks are as large as the input before padding, and are read beyond their end"
_STATE = "there the making of its state fails; tests/optimizer compares with the published formula"
REASONS = {
    **{f"external.{name}: never called": _HARDWARE for name in (
        "AtlasRuntimeSubgraph", "CambriconRuntimeSubgraph", "ExternOprSubgraph", "MagicMindRuntimeSubgraph",
        "TensorrtRuntimeSubgraph",
    )},
    **{f"{name}: never called": _BASE for name in (
        "module.Module", "rnn.RNNBase", "rnn.RNNCellBase", "lr_scheduler.LRScheduler", "optimizer.Optimizer",
    )},
    "batchnorm.BatchNorm1d: freeze=True": _THERE,
    "batchnorm.SyncBatchNorm: group=another": "needs several processes",
    **{f"{name}: compute_mode='float32'": _THERE for name in (
        "conv.Conv1d", "conv.ConvTranspose2d", "conv.ConvTransposeRelu2d", "conv.RegionRestrictedConv", "linear.Linear",
        "conv_transpose_bn.ConvTransposeBn2d", "conv_transpose_bn.ConvTransposeBnRelu2d", "linear.LinearRelu",
        "linear_bn.LinearBn1d", "linear_bn.LinearBnRelu1d",
    )},
    "conv.Conv1d: groups=another": _THERE,
    "conv.ConvTranspose3d: groups=another": _THERE,
    "conv.LocalConv2d: dilation=another": _THERE,
    "conv.RegionRestrictedConv: padding_mode='reflect'": _MASKS,
    "conv.RegionRestrictedConv: padding_mode='replicate'": _MASKS,
    "conv.RegionRestrictedConv: stride=another": _THERE,
    "embedding.Embedding: max_norm=another": _REFUSED,
    "embedding.Embedding: norm_type=another": _REFUSED,
    "embedding.Embedding: padding_idx=another": _REFUSED,
    "lamb.LAMB: never called": _STATE,
    "lamb.LAMBFp16: never called": _STATE,
    "multiheadattn.MultiHeadAttention: add_bias_kv=True": _REFUSED,
    "multiheadattn.MultiHeadAttention: add_zero_attn=True": _REFUSED,
    "normalization.GeneralNorm: affine=False": _THERE,
    "normalization.GeneralNorm: normalized_shape=None": _THERE,
    "sequential.Sequential: never called": "takes layers, not options; there is a case of it",
}  # fmt: skip
IGNORED = {"name"}  # every layer has it; tests/module/test_module.py checks what it does


class Maker:
    """A module whose classes note how they are called."""

    def __init__(self, module, coverage):
        self._module, self._coverage = module, coverage

    def __getattr__(self, name):
        found = getattr(self._module, name)

        def call(*args, **kwargs):
            self._coverage.add(full_name(found), signature_of(found), args, kwargs)
            return found(*args, **kwargs)

        return call


def full_name(found):
    return f"{found.__module__}.{found.__qualname__}"


def signature_of(found):
    """The parameters of a class; those of its base too where it takes them by `*args`."""
    signature = inspect.signature(found)
    parameters = list(signature.parameters.values())
    if not any(p.kind == p.VAR_POSITIONAL for p in parameters):
        return signature
    base = inspect.signature(found.__mro__[1])
    own = [p for p in parameters if p.kind == p.KEYWORD_ONLY]
    return base.replace(parameters=[*base.parameters.values(), *own])


def public(part):
    """Full name -> class of MegEngine's public classes below megengine.`part`."""
    for name, entry in LISTED.items():
        inside = name.startswith(f"megengine.{part}.") and ".qat." not in name and ".quantized." not in name
        if inside and isinstance(entry, dict) and "methods" in entry:
            yield name, resolve(name)


def gaps(part, module, texts):
    coverage = Coverage()
    maker, p = Maker(module, coverage), O.SGD([M.Linear(2, 2).weight], 0.1)
    answered = [text for name, text in texts.items() if f"{name} -> out 0" in RECORDED]
    parameters = [M.Linear(2, 2).weight, M.Linear(2, 2).bias]
    for text in answered:
        eval(f"maker.{text}", {"maker": maker, "M": maker, "p": parameters, "rule": p})
    for name, found in public(part):
        for gap in coverage.gaps(name, signature_of(found), found):
            if gap.partition("=")[0] not in IGNORED:
                yield f"{name.removeprefix(f'megengine.{part}.')}: {gap}"


@pytest.mark.parametrize(("part", "module", "texts"), [("module", M, LAYERS), ("optimizer", O, OPTIMIZERS)])
@pytest.mark.filterwarnings("ignore")
def test_every_option_is_recorded_or_has_a_reason(part, module, texts):
    found = set(gaps(part, module, texts))
    assert sorted(found - set(REASONS)) == []


@pytest.mark.filterwarnings("ignore")
def test_every_reason_is_still_needed():
    assert set(REASONS) - set(gaps("module", M, LAYERS)) - set(gaps("optimizer", O, OPTIMIZERS)) == set()
