"""`mge-quantize compare`."""

from contextlib import ExitStack
from pathlib import Path

import click

from megengine.cli import images, pages, records
from megengine.cli.app import common, examples
from megengine.cli.choices import FILE
from megengine.cli.common_options import data_options
from megengine.cli.models import InputChoices, load_models, shape_option
from megengine.cli.output import Output, check_suffix, output_file, ratio_cell
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.refusals import check_weights
from megengine.cli.sources import data_of
from megengine.quantization.checks import compare_values

ROWS = 12


@click.command(epilog=examples("compare net.onnx q.mgt --data x.npy", "compare net.onnx q.mgt --data x.npy --json"))
@click.argument("first", type=FILE, metavar="A")
@click.argument("second", type=FILE, metavar="B")
@data_options(required=True)
@path_option("--report", "report_path", help="Write a self-contained .html report too.")
@overwrite_option
@shape_option
@common
def compare(
    first: str,
    second: str,
    data: str,
    preprocess: str | None,
    samples: int | None,
    report_path: Path | None,
    overwrite: bool,
    shapes: InputChoices,
    out: Output,
) -> None:
    """Run the models A and B on the same data and tell, value by value, where B leaves A.

    Float, integer and QDQ models, by the names of their values; then what differs in the runs that made them, for
    models that store a record. `diff` compares their structure.
    """
    check_suffix("--report", report_path, {".html": "a page"})
    inputs = [first, second, data, *images.recipe_files(preprocess)]
    check_outputs([("--report", report_path)], inputs, overwrite=overwrite)
    with ExitStack() as stack:
        page = None if report_path is None else stack.enter_context(output_file(report_path))
        models = load_models((first, second), shapes)
        records.tell_another_network(out, zip((first, second), models, strict=True))
        for name, one in zip((first, second), models, strict=True):
            check_weights(one, name)
        source = data_of(data, preprocess, samples or 8, models[0], out, {first: models[0], second: models[1]})
        with out.progress("compare", source.reader.count) as bar:
            found = compare_values(models[0].graph, models[1].graph, source.reader, progress=bar.show)
        runs, line = pages.runs_of(zip((first, second), models, strict=True)), pages.compared(found)
        if page is not None:
            page.write_text(pages.comparison_page((first, second), found, line, source, runs), encoding="utf-8")
    lowest = sorted(found.values, key=lambda one: one.sqnr_db)[:ROWS]
    rows = [(x.name, x.other, x.op, ratio_cell(x.sqnr_db), x.cosine, x.largest_error) for x in lowest]
    out.table("Least alike", (f"value of {first}", f"of {second}", "op", "SQNR dB", "cosine", "largest error"), rows)
    if other := pages.differing(runs):
        out.table("What differs in the runs that made them", runs[0], other)
    out.say(line)
    written = {} if report_path is None else {"report": str(report_path)}
    if report_path is not None:
        out.say(f"wrote {report_path}")
    result = {"models": [first, second], "data": data, "headline": line, "runs": [list(row) for row in other]}
    out.result({**result, **found.to_json(), **written})
