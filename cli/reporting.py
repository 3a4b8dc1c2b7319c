"""`mge-quantize report`."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from megengine.cli import images, pages, recipes, records
from megengine.cli.app import common, examples
from megengine.cli.choices import FILE
from megengine.cli.common_options import data_options
from megengine.cli.made_pages import COMPARED, Made, made_page
from megengine.cli.measuring import with_integers
from megengine.cli.models import (
    NO_CHOICES,
    InputChoices,
    ShapeOption,
    chosen_graph,
    load_calls,
    load_model,
    shape_option,
)
from megengine.cli.output import Output, check_suffix, output_file
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.readers import Batch
from megengine.cli.refusals import check_weights
from megengine.cli.replaying import command_of
from megengine.cli.samples import Samples
from megengine.cli.sources import Data, data_of
from megengine.core.errors import OptionError
from megengine.core.text import counted
from megengine.quantization.checks import compare_values, require_integers
from megengine.traced_module import TracedModule, lower

HELD = 16  # samples that are looked at where no record says how many score


@click.command(epilog=examples("report q.mgt -o q.html", "report q.onnx --model net.onnx --data x.npy -o q.html"))
@click.argument("result", type=FILE)
@path_option("-o", "--output", required=True, help="Page to write: .html.")
@click.option("--model", type=FILE, help="The float network.  [default: that which RESULT was made from]")
@data_options(required=False)
@overwrite_option
@shape_option
@common
def report(
    result: str,
    output: Path,
    model: str | None,
    data: str | None,
    preprocess: str | None,
    samples: int | None,
    overwrite: bool,
    shapes: InputChoices,
    out: Output,
) -> None:
    """Write the page of a quantized network RESULT (.mgt, or .onnx with integers or QDQ pairs), beside the float one.

    RESULT stores which network and which data it was made of, and --model and --data name other places or others. The
    data that it was made of is scored on the samples that were held out.
    """
    check_suffix("--output", output, {".html": "a page"})
    loaded = load_model(result)
    integers = with_integers(loaded, out)
    quoted = shlex.quote(result)
    remedies = (
        f"mge-quantize ptq {quoted} --data ... -o q.mgt",
        f"mge-quantize compare FLOAT {quoted} --data ... --report page.html compares it as it is",
    )
    require_integers(integers.graph, f"model {result!r}", remedies)
    made = _Made.of(result, loaded)
    model, data = made.place("model", model), made.place("data", data)
    check_outputs([("--output", output)], [result, model, data, *images.recipe_files(preprocess)], overwrite=overwrite)
    shapes = made.shapes() if shapes == NO_CHOICES else shapes
    source = lower(chosen_graph(load_calls(model, shapes, dynamic=False), None))
    check_weights(source)
    with output_file(output) as path:
        inputs = data_of(data, preprocess, samples, source, out, {result: integers})
        if inputs.how is not None:
            source.graph.metadata.update(images.to_metadata(inputs.how))
        if made.digests.get("model", digest := records.digest_of(source.graph)) != digest:
            out.say(f"warning: {model} is not the network that {result} was made from", "yellow")
        held, scored_on = _held(made, inputs, out)
        found = compare_values(source.graph, integers.graph, held[:COMPARED])
        headline = pages.compared(found)
        page = Made(model, source.graph, integers.graph, held, scored_on, headline, found=found)
        title = f"{Path(result).name} beside {Path(model).name}"
        path.write_text(made_page(page, inputs, title), encoding="utf-8")
    out.say(headline)
    out.say(f"wrote {output}")
    facts = {"result": result, "model": model, "data": data, "preprocess": inputs.describe(), "scored_on": scored_on}
    out.result({**facts, "headline": headline, **found.to_json(), "written": [str(output)]})


@dataclass(frozen=True, slots=True)
class _Made:
    """What the file `name` stores about its making: the command, its options, digests; empty without a record."""

    name: str
    command: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, model: TracedModule) -> "_Made":
        if records.METADATA not in model.graph.metadata:
            return cls(name)
        record = records.from_metadata(model.graph.metadata, name)
        command = command_of(record)
        options = recipes.defaults(command, record["recipe"], f"the record of {name!r}")
        return cls(name, record["command"], options, record["digests"])

    def place(self, option: str, given: str | None) -> str:
        """What the command line says, or the record. Raises OptionError if neither says it."""
        place = self.options.get(option) if given is None else given
        if place is None:
            raise OptionError(f"{option}: {self.name!r} stores no record of its making; give this option too")
        return str(place)

    def shapes(self) -> InputChoices:
        """What the command line said of the inputs of the float network."""
        shapes = [ShapeOption().convert(text, None, None) for text in self.options.get("shapes", ())]
        return InputChoices(tuple(shapes), tuple(self.options.get("values", ())), bool(self.options.get("any_batch")))


def _held(made: _Made, data: Data, out: Output) -> tuple[list[Batch], str]:
    """The samples that are looked at, and which these are, in words."""
    most = made.options.get("held_out", HELD)
    samples = Samples(data.reader, most if isinstance(most, int) else HELD)
    with out.progress("read", data.reader.count) as bar:
        samples.progress = bar.show
        held = samples.held_out()
    if made.command == "ptq" and made.digests.get("data") == samples.index.digest:
        return held, samples.scored_on()
    return held, f"{counted(len(held), 'sample')} of {data.reader.name}"
