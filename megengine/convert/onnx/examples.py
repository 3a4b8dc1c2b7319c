"""Names and example sizes of the open axes of a model's inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from megengine.core.errors import FileFormatError, OptionError, ShapeError, nearest
from megengine.core.sizes import OpenSize, at, named, names_of, parse_size
from megengine.traced_module.ir.graph import InternalGraph

if TYPE_CHECKING:
    import onnx

# pixels, steps and batch that are tried, as a network may take some sizes only
SCALES = (
    *((224, 16, 1), (224, 16, 2), (256, 32, 1), (320, 8, 1), (640, 64, 1), (64, 128, 1), (32, 24, 1), (512, 512, 1)),
    *((28, 77, 1), (48, 4, 1), (299, 12, 1)),
)
_NAME = re.compile(r"^(?!(none|unk|unknown)$).*[a-z]", re.IGNORECASE)  # exporters write "?" or "None" on unequal axes
_ALONG_TIME = re.compile(r"seq|len|time|frame|token|step|past|patch|point|height|width|^[thwls]$", re.IGNORECASE)


@dataclass
class Examples:
    """Lengths that are given by name, and those that are chosen: 1 (or 2) for a batch, else pixels or steps."""

    given: dict[str, int]
    scale: tuple[int, int, int]
    joined: dict[str, str] = field(default_factory=dict)  # an axis without a name -> the one that it equals
    names: set[str] = field(default_factory=set)
    chosen: dict[str, int] = field(default_factory=dict)
    nameless: dict[str, str] = field(default_factory=dict)  # the name that an axis got -> its input

    def sizes(self, item: onnx.ValueInfoProto, stated: Sequence[int | str | None]) -> list[int | str | None]:
        """The shape of an input, with open sizes where the file and the caller leave it open, by the caller's names."""
        dims = item.type.tensor_type.shape.dim
        made = list(stated)
        for axis, (length, dim) in enumerate(zip(stated, dims, strict=True)):
            if not isinstance(length, int):
                own = dim.dim_param if _NAME.search(dim.dim_param) else ""
                if not length and (formula := self._formula(own)) is not None:
                    made[axis] = formula
                    continue
                name = length or own or f"{re.sub(r'[^0-9A-Za-z_]+', '_', item.name).strip('_')}_{axis}"
                if not length and not own:
                    self.nameless[name] = item.name
                    name = self.joined.get(name, name)
                self.names.add(name)
                made[axis] = named(name, self._length(name, axis, len(dims)))
        return made

    def _formula(self, text: str) -> int | None:
        """The size that follows from axes named before, as `past + 1`; None for a text that is a name itself."""
        if not text or text.isidentifier():
            return None
        try:
            size = parse_size(text, 1)
        except FileFormatError:
            return None
        names = names_of(size)
        if not names or not names <= self.names:
            return None
        return OpenSize(
            int(at(size, {name: self.given.get(name, self.chosen.get(name, 1)) for name in names})), size.formula
        )

    def _length(self, name: str, axis: int, rank: int) -> int:
        if name in self.given:
            return int(self.given[name])
        if name not in self.chosen:
            is_batch = axis == 0 and not _ALONG_TIME.search(name)
            self.chosen[name] = self.scale[2 if is_batch else 0 if rank == 4 and axis > 1 else 1]
        return self.chosen[name]

    def may_help(self, error: Exception) -> bool:
        """Whether a network that was refused may be read at other lengths."""
        about_sizes = isinstance(error.__cause__, ShapeError) or any(_names(str(error), name) for name in self.names)
        return bool(self.chosen) and about_sizes

    def one_more_joined(self, error: Exception) -> dict[str, str] | None:
        """`joined` with two axes of different inputs that have no names, and that are refused for being unequal."""
        told = [name for name in self.nameless if _names(str(error), name)]
        for first in told:
            for other in told:
                if self.nameless[first] != self.nameless[other] and other not in self.joined:
                    return {**self.joined, other: self.joined.get(first, first)}
        return None

    def tried(self) -> str:
        """Which open axes were read at the usual lengths, for a network that none of them fits."""
        axes, last = ", ".join(self.chosen), list(self.chosen)[-1]
        return (
            f"no usual length of {axes} fits; example_sizes={{{last!r}: ...}} gives another one, and input_shapes "
            "fixes axes, or gives those that are equal one name"
        )

    def check(self) -> None:
        """Raises OptionError for a given name that no input has, and for a length below 1."""
        for name, length in self.given.items():
            if name not in self.names:
                known = ", ".join(sorted(self.names)) or "none"
                raise OptionError(
                    f"example_sizes: no open axis {name!r}{nearest(name, sorted(self.names))}; the model has {known}"
                )
            if int(length) < 1:
                raise OptionError(f"example_sizes: {name} is {length}; expected at least 1")


def _names(text: str, name: str) -> bool:
    """Whether a text has the name of an axis, which may begin and end with any character."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def at_usual_sizes(
    read: Callable[[Examples], InternalGraph], given: Mapping[str, int]
) -> tuple[InternalGraph, dict[str, str]]:
    """The graph at the first usual lengths that the network takes, and which axes without names are equal there.

    Such axes stay apart where the network takes them so. Raises the FileFormatError of the first try if none fits.
    """
    refused: FileFormatError | None = None
    joined: dict[str, str] | None = {}
    while joined is not None:
        tried, joined = joined, None
        for scale in SCALES:
            examples = Examples(dict(given), scale, tried)
            try:
                return read(examples), tried
            except FileFormatError as error:
                refused = refused or error
                if not examples.may_help(error):
                    break
                joined = joined or examples.one_more_joined(error)
                if scale == SCALES[-1] and joined is None:
                    refused.add_note(examples.tried())
    assert refused is not None
    raise refused
