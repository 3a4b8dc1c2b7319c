"""The data of a command, and how its pictures are prepared."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from megengine.cli import images
from megengine.cli.app import HOLDER
from megengine.cli.output import Output
from megengine.cli.readers import Reader, Slot, holder_of, kind_of, open_reader
from megengine.quantization.ranges import takes_rows
from megengine.traced_module import TracedModule


@dataclass(frozen=True, slots=True)
class Data:
    """Data of a command: the reader of its batches, and the recipe of pictures with its origin."""

    reader: Reader
    how: images.Recipe | None
    origin: str = ""

    def describe(self) -> dict[str, Any] | None:
        """Plain values for JSON."""
        return None if self.how is None else {"from": self.origin, **self.how.describe()}

    def __str__(self) -> str:
        return "" if self.how is None else f"prepared as {self.origin} says: {self.how}"


def data_of(data: str, preprocess: str | None, samples: int | None, model: TracedModule, out: Output,
            others: Mapping[str, TracedModule] = MappingProxyType({})) -> Data:  # fmt: skip
    """The data source for a model's inputs; prints the recipe of pictures, of `--preprocess` or else of the model.

    A model that stores none takes that of the first of `others`, by name, that does. Pictures take the size of the
    network's input unless `--preprocess` sets one. Raises OptionError for pictures without a recipe and for a
    recipe beside other data.
    """
    rows = (1,) if takes_rows(model.graph) else ()  # of an open batch: each of them is a sample
    specs = [(node.name, node.spec) for node in model.graph.inputs]
    slots = [Slot(name, (*rows, *spec.shape[len(rows) :]), spec.dtype, spec.shape) for name, spec in specs]
    pictured = kind_of(data) == "pictures"
    shape = slots[0].shape if len(slots) == 1 and len(slots[0].shape) == 4 else None
    of_models = {"the model": model, **others} if pictured and shape else {}
    recipes = ((name, images.from_metadata(one.graph.metadata, shape)) for name, one in of_models.items())
    origin, how = next((found for found in recipes if found[1] is not None), ("the model", None))
    stored = how if origin == "the model" else None
    origin = next((name for name, one in others.items() if one is model), origin) if stored else origin
    if preprocess is not None:
        how, origin = images.recipe(preprocess, shape if pictured else None), "--preprocess"
    source = Data(open_reader(data, slots, how=how, limit=samples), how, origin)
    names = [slot.name for slot in slots]
    click.get_current_context().meta[HOLDER] = partial(holder_of, reader=source.reader, inputs=names)
    if how is not None:
        out.say_once(f"pictures: {source}")
    if pictured and Path(data).is_dir() and (left := images.others_in(Path(data))):
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in left.items())
        out.say_once(f"note: files in {data} that are no pictures of known kinds are left out: {kinds}")
    if stored not in (None, how):
        out.say_once(f"note: the model stores another preparation, which --preprocess replaces: {stored}")
    return source
