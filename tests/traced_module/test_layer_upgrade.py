"""Layers of files that older versions of MegEngine wrote lack attributes: they get those that a new layer has."""

import pytest

import megengine.module as M
from megengine.traced_module.formats.tm_versions import upgrade_layer

LATER = {
    "conv": (lambda: M.Conv2d(3, 3, 3), ("padding_mode", "output_padding", "conv_mode", "compute_mode")),
    "transposed": (lambda: M.ConvTranspose2d(3, 3, 3), ("conv_mode", "compute_mode")),
    "linear": (lambda: M.Linear(3, 3), ("compute_mode",)),
    "table": (lambda: M.Embedding(3, 3), ("padding_idx", "max_norm", "norm_type")),
    "norm": (lambda: M.BatchNorm2d(3), ("freeze", "track_running_stats", "affine", "_track_running_stats_saved")),
    "flat norm": (lambda: M.BatchNorm1d(3), ("freeze", "track_running_stats", "affine", "_track_running_stats_saved")),
    "pool": (lambda: M.MaxPool2d(2), ()),
}


@pytest.mark.parametrize("case", LATER)
def test_what_came_later_is_as_in_a_new_layer(case):
    make, later = LATER[case]
    layer, new = make(), make()
    plain = {k: v for k, v in vars(new).items() if k in later}
    assert set(plain) == set(later)
    for name in later:
        del vars(layer)[name]
    upgrade_layer(layer)
    assert {name: vars(layer)[name] for name in later} == plain


def test_what_is_stored_stays():
    layer = M.BatchNorm2d(3, affine=False, track_running_stats=False)
    before = dict(vars(layer))
    upgrade_layer(layer)
    assert {name: vars(layer)[name] for name in before} == before


def test_layers_of_the_users_are_left_alone():
    class Mine(M.Module):
        def __init__(self, size=3, mode="a"):
            super().__init__()

    layer = Mine()
    before = set(vars(layer))
    upgrade_layer(layer)
    assert set(vars(layer)) == before
