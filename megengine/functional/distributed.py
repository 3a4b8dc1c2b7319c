"""Operations over all processes, by the name that MegEngine gives them beside the other functions."""

from megengine.distributed.functional import *  # noqa: F403
from megengine.distributed.functional import __all__  # noqa: F401  # pyright: ignore[reportUnsupportedDunderAll]
