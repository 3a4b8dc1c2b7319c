"""Options of MegEngine's interpreter by name: they can be read and set, without effect; setting one warns."""

from __future__ import annotations

import numbers

from megengine.core.effectless import warn_once
from megengine.core.errors import IndexOutOfRangeError, OptionError, brief, nearest

_options = {
    "async_level": 2,
    "catch_worker_execption": 1,
    "disable_memory_forwarding": 0,
    "dtr_eviction_threshold": 0,
    "dtr_evictee_minimum_size": 1048576,
    "enable_drop": 0,
    "enable_dtr_auto_drop": 0,
    "enable_dtr_sqrt_sampling": 0,
    "enable_host_compute": 1,
    "record_computing_path": 0,
}


def get_option(name: str) -> int:
    """The value of an option. Raises IndexOutOfRangeError (an IndexError) for one that does not exist."""
    return _options[_known("get_option", name)]


def set_option(name: str, value: int) -> None:
    """Keep the value of an option; calls are synchronous whatever it says. Raises IndexOutOfRangeError, OptionError."""
    name = _known("set_option", name)
    if not isinstance(value, numbers.Integral):
        raise OptionError(f"set_option: {name} is {brief(value)}; expected an integer")
    warn_once(f"the option {name} of megengine.core.set_option", "calls are synchronous and nothing is dropped")
    _options[name] = int(value)


def _known(function: str, name: str) -> str:
    if name not in _options:
        known = ", ".join(_options)
        raise IndexOutOfRangeError(
            f"{function}: no option {brief(name)}; expected one of {known}{nearest(str(name), _options)}"
        )
    return name
