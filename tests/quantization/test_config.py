import pytest

from megengine.core.errors import OptionError
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.profiles import PROFILES, Profile
from megengine.quantization.pipeline.selection import Layer, select
from megengine.quantization.ranges.scales import SCHEMES

LAYERS = [
    Layer("conv1", "conv2d", "features.0.conv"),
    Layer("conv2", "conv2d", "features.1.conv"),
    Layer("conv10", "conv2d", "features.10.conv"),
    Layer("fc", "matmul", "classifier"),
]


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("features.1", ["conv2"]),
        ("features", ["conv1", "conv2", "conv10"]),
        ("classifier", ["fc"]),
        ("conv10", ["conv10"]),
        ("op:matmul", ["fc"]),
        ("re:conv1.*", ["conv1", "conv10"]),
        (r"re:features\.\d\.conv", ["conv1", "conv2"]),
    ],
)
def test_select(rule, names):
    assert list(select([rule], LAYERS)) == names


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("classifer", "'classifer' selects no layer; nearest: classifier"),
        ("op:matmull", "nearest: op:matmul"),
        ("re:(", "not a regular expression"),
        ("zzz", "the model has 4 layers"),
    ],
)
def test_rule_that_selects_nothing(rule, message):
    with pytest.raises(OptionError, match=message):
        select([rule], LAYERS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": "per_row"}, "weights: expected one of per_channel, per_tensor, got 'per_row'"),
        ({"weight_method": "kl"}, "weight_method"),
        ({"exclude": "conv1"}, "expected a tuple of rules"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(OptionError, match=message):
        QuantConfig(**settings)


def test_unknown_profile():
    with pytest.raises(OptionError, match="did you mean 'x86'"):
        QuantConfig(profile="x68").target


def test_profiles_are_valid():
    for p in PROFILES.values():
        assert p.non_negative in SCHEMES
        assert p.signed in SCHEMES
    mine = Profile("mine")
    assert QuantConfig(profile=mine).target is mine
    assert QuantConfig().changed(weights="per_tensor").weights == "per_tensor"
