"""`mge-quantize calibrate`."""

from pathlib import Path
from typing import Any

import click

from megengine.cli.app import common, examples
from megengine.cli.choices import FILE
from megengine.cli.common_options import data_options, device_option, held_out_option, workers_option
from megengine.cli.images import recipe_files
from megengine.cli.models import InputChoices, chosen_graph, load_calls, shape_option
from megengine.cli.output import Output, check_suffix, output_file
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.refusals import check_data, check_weights
from megengine.cli.samples import Samples, tell_suspicious
from megengine.cli.sources import data_of
from megengine.cli.unprepared import tell_unprepared
from megengine.core.errors import CalibrationError, FileFormatError, MegEngineError
from megengine.core.text import counted
from megengine.quantization import Statistics, collect
from megengine.traced_module import lower


@click.command(
    epilog=examples(
        "calibrate net.onnx --data photos --preprocess imagenet -o net.stats --workers 2",
    )
)
@click.argument("model", type=FILE)
@data_options(required=True)
@held_out_option
@path_option("-o", "--output", required=True, help="Statistics to write: .stats.")
@workers_option
@device_option
@click.option("--resume", is_flag=True, help="Go on with a run that was interrupted: its OUTPUT.part is read.")
@overwrite_option
@shape_option
@common
def calibrate(*, output: Path, overwrite: bool, out: Output, **options: Any) -> None:
    """Collect the statistics of MODEL (.onnx, .tm, .mgt, .mge, or module.py:function) that ptq --statistics takes.

    They are the same for any order of the data and any number of workers, and interrupted or not.
    """
    check_suffix("--output", output, {".stats": "statistics of calibration"})
    inputs = [options["model"], options["data"], *recipe_files(options["preprocess"])]
    check_outputs([("--output", output)], inputs, overwrite=overwrite)
    with output_file(output) as temporary:
        result = _collected(temporary, output.with_name(f"{output.name}.part"), out, **options)
    out.say(f"wrote {output}: {counted(result['samples'], 'sample')}, {counted(result['edges'], 'edge')}")
    out.result({**result, "written": [str(output)]})


def _collected(path: Path, part: Path, out: Output, *, model: str, data: str, preprocess: str | None,
               shapes: InputChoices, samples: int | None, held_out: int, workers: int,
               device: str | None, resume: bool) -> dict[str, Any]:  # fmt: skip
    """Write statistics to `path`, and to `part` on the way; returns the result for --json."""
    if resume and not part.is_file():
        raise FileFormatError(f"--resume: {part} is not there, so there is no run to go on with; leave out --resume")
    source = lower(chosen_graph(load_calls(model, shapes, dynamic=False), None))
    check_weights(source)
    chosen = Samples(data_of(data, preprocess, samples, source, out).reader, held_out)
    seen = Statistics.load(part) if resume else None
    kept = 0 if seen is None else seen.samples.total()
    if seen is not None:
        out.say(f"going on behind {counted(kept, 'sample')} of {part}")

    def keep(statistics: Statistics) -> None:
        nonlocal kept
        statistics.save(part)
        kept = statistics.samples.total()

    try:
        with out.progress("calibrate", None) as bar:
            chosen.progress = bar.show
            statistics = collect(
                source, chosen, workers=workers, device=device, seen=seen, keep=keep, progress=bar.show
            )
        try:
            check_data(source.graph, statistics.edges, data)
        except CalibrationError:
            kept = 0
            raise
        statistics.save(path)
    except (MegEngineError, KeyboardInterrupt) as error:
        if not kept:
            part.unlink(missing_ok=True)  # there is nothing to go on with
        else:
            error.add_note(f"{part} holds {counted(kept, 'sample')}; --resume goes on from there")
        raise
    part.unlink(missing_ok=True)
    tell_suspicious(out, chosen.warnings(scores=False))
    notes = tell_unprepared(out, source.graph, chosen.reader)
    return {
        "model": model,
        "digest": statistics.model,
        "samples": statistics.samples.total(),
        "edges": len(statistics.edges),
        "warnings": chosen.warnings(scores=False),
        "notes": notes,
    }
