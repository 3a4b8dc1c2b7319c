"""Values that Python asked for while a model was traced."""

from __future__ import annotations

from dataclasses import dataclass

from megengine.core.text import one_line


class SpecializationWarning(UserWarning):
    """Python asked for a value while a model was traced: the graph holds for that value only."""


@dataclass(frozen=True, slots=True)
class Specialization:
    """A value that was read while tracing: where, what was read, and of which node."""

    source: str
    what: str
    node: str

    def __str__(self) -> str:
        return one_line(f"{self.source}: {self.what} of {self.node}")
