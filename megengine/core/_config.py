"""MegEngine's path of `megengine.config`, with options by name."""

from megengine.compat.settings import become

become(__name__)
