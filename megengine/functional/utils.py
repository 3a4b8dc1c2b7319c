"""`copy`, where MegEngine has it too."""

from megengine.functional.tensor import copy  # pyright: ignore[reportAttributeAccessIssue]

__all__ = ["copy"]
