"""`mge-quantize convert`."""

from pathlib import Path
from typing import Any

import click

from megengine.cli import images
from megengine.cli.app import common, examples
from megengine.cli.benching import random_inputs
from megengine.cli.choices import FILE, Choice
from megengine.cli.common_options import data_options
from megengine.cli.models import InputChoices, chosen_graph, graph_option, load_calls, shape_option
from megengine.cli.output import Output, check_suffix, output_file
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.refusals import check_weights
from megengine.cli.report import ratio_words
from megengine.cli.sources import data_of
from megengine.convert import onnx
from megengine.core.errors import OptionError
from megengine.core.text import counted, in_bytes, share_of
from megengine.quantization import likeness, stored_bytes, to_half
from megengine.traced_module import TracedModule, lower
from megengine.traced_module.formats import native

_TYPES = {"bf16": "bfloat16", "fp16": "float16"}


@click.command(
    epilog=examples("convert net.onnx --to bf16 -o half.mgt", "convert net.tm --to fp16 --half-ends -o half.onnx")
)
@click.argument("model", type=FILE)
@click.option("--to", "kind", type=Choice([*_TYPES]), required=True, help="Type of weights and values.")
@path_option("-o", "--output", required=True, help="Model to write: .mgt or .onnx.")
@click.option("--half-ends", is_flag=True, help="Inputs and results have the type too; else they stay float32.")
@data_options(required=False)
@graph_option
@overwrite_option
@shape_option
@common
def convert(
    model: str,
    kind: str,
    output: Path,
    half_ends: bool,
    data: str | None,
    preprocess: str | None,
    samples: int | None,
    number: int | None,
    overwrite: bool,
    shapes: InputChoices,
    out: Output,
) -> None:
    """Write the float MODEL (.onnx, .tm, .mgt, .mge, or module.py:function) in 16 bits, and compare the results.

    The inputs of the comparison are those of --data, or random.
    """
    check_suffix("--output", output, {".mgt": "our format", ".onnx": "for other runtimes"})
    if preprocess is not None and data is None:
        raise OptionError("--preprocess: there is no --data to prepare; give both, or none for random input")
    read = [model, *([] if data is None else [data, *images.recipe_files(preprocess)])]
    check_outputs([("--output", output)], read, overwrite=overwrite)
    source = lower(chosen_graph(load_calls(model, shapes), number))
    check_weights(source)
    with output_file(output) as path:
        made = to_half(source, kind, float_ends=not half_ends)
        _write(made, path, output.suffix, kind)
        result = _compare(source, made, data, preprocess, samples, out)
    sizes = stored_bytes(source.graph), stored_bytes(made.graph)
    same = share_of(result.agreement, result.samples)
    out.say(
        f"outputs in {_TYPES[kind]}: {ratio_words(result.sqnr_db)}, cosine {result.cosine:.6f}, agreement "
        f"{same} on {counted(result.batches, 'batch')} of {data or 'random numbers'}; "
        f"weights {in_bytes(sizes[0])} -> {in_bytes(sizes[1])}"
    )
    out.say(f"wrote {output}")
    facts = {"model": model, "to": _TYPES[kind], "float_bytes": sizes[0], "half_bytes": sizes[1]}
    out.result({**facts, **result.to_json(), "data": data, "written": [str(output)]})


def _write(model: TracedModule, path: Path, suffix: str, kind: str) -> None:
    if suffix == ".mgt":
        native.save(model, path)
    elif kind == "bf16":
        onnx.export(model, path, opset=onnx.newest_opset())  # older operators lack the type
    else:
        onnx.export(model, path)


def _compare(source: TracedModule, made: TracedModule, data: str | None, preprocess: str | None, samples: int | None,
             out: Output) -> Any:  # fmt: skip
    if data is None:
        return likeness(source, made, [tuple(random_inputs(source))])
    reader = data_of(data, preprocess, samples or 8, source, out).reader
    with out.progress("compare", reader.count) as bar:
        return likeness(source, made, reader, progress=bar.show)
