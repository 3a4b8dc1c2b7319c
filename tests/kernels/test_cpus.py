"""Limits of CPU time are read from the files of control groups, of both versions."""

import os

import pytest

from megengine.kernels import cpus


def written(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return cpus.quota(folder / "groups", folder / "self")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"self": "0::/\n", "groups/cpu.max": "100000 100000\n"}, 1),
        ({"self": "0::/a/b\n", "groups/a/cpu.max": "50000 100000\n", "groups/a/b/cpu.max": "max 100000\n"}, 1),
        (
            {
                "self": "4:cpu,cpuacct:/x\n",
                "groups/cpu/cpu.cfs_quota_us": "20000",
                "groups/cpu/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        ({"self": "4:cpu:/x\n", "groups/cpu/cpu.cfs_quota_us": "-1", "groups/cpu/cpu.cfs_period_us": "100000"}, None),
        ({"self": "0::/\n", "groups/cpu.max": "max 100000\n"}, None),
        ({"self": "0::/\n", "groups/cpu.max": "100000000 100000\n"}, None),
        ({"self": "3:memory:/x\n", "groups/cpu.max": "10000 100000\n"}, None),
        ({"self": "0::/\n", "groups/cpu.max": "damaged\n"}, None),
        ({}, None),
    ],
)
def test_the_least_limit_of_the_groups_counts(files, expected, tmp_path):
    assert written(tmp_path, files) == (expected or os.cpu_count())


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one CPU")
def test_parts_of_a_cpu_count_as_one(tmp_path):
    assert written(tmp_path, {"self": "0::/\n", "groups/cpu.max": "150000 100000\n"}) == 2
