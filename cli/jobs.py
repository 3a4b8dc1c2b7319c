"""What `ptq` and `analyze` do first: read the network and the data, and quantize."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megengine.cli import images, quantizing, records
from megengine.cli.models import InputChoices, chosen_graph, load_calls
from megengine.cli.output import Output
from megengine.cli.refusals import check_data, check_weights
from megengine.cli.samples import Samples
from megengine.cli.sources import Data, data_of
from megengine.core.errors import OptionError
from megengine.quantization import QuantConfig, QuantizedModel, RangeMethod
from megengine.quantization.checks import require_float, require_float_modules
from megengine.traced_module import TracedModule, lower


def config_of(*, activations: str | None, percentile: float, **choices: Any) -> QuantConfig:
    """Settings by options; those that were not given are the effort's."""
    given = {name: value for name, value in choices.items() if value is not None}
    if activations != "percentile" and percentile != RangeMethod("percentile").percentile:
        raise OptionError("--percentile: only --activations percentile takes it; add that, or leave --percentile out")
    if activations is not None:
        given["activations"] = RangeMethod(activations, percentile)
    return QuantConfig.of(**given)


@dataclass(frozen=True, slots=True)
class Job:
    """A float network that is to be quantized: its graph of ops and its digest, its data, the settings; how it is
    made is `known` (a file of statistics, workers, a device, a file of the training's state).
    """

    name: str
    source: TracedModule
    digest: str
    data: Data
    samples: Samples
    config: QuantConfig
    known: dict[str, Any]


def inputs_of(*, model: str, data: str, preprocess: str | None, **_: Any) -> list[str]:
    """The words of the command line that name what is read."""
    return [model, data, *images.recipe_files(preprocess)]


def prepared(out: Output, *, model: str, data: str, preprocess: str | None, shapes: InputChoices, samples: int | None,
             held_out: int, statistics: str | None, workers: int, device: str | None = None, state: Path | None = None,
             **choices: Any) -> Job:  # fmt: skip
    """Read the model and open the data; refuse what cannot be quantized."""
    config = config_of(**choices)
    calls = load_calls(model, shapes, dynamic=False)
    require_float_modules(calls)
    source = lower(chosen_graph(calls, None))
    require_float(source.graph)
    check_weights(source)
    source_data = data_of(data, preprocess, samples, source, out)
    if source_data.how is not None:
        source.graph.metadata.update(images.to_metadata(source_data.how))
    digest = records.digest_of(source.graph)
    known = {"path": statistics, "workers": workers, "device": device, "state": state}
    return Job(model, source, digest, source_data, Samples(source_data.reader, held_out), config, known)


def quantized(job: Job, out: Output) -> QuantizedModel:
    """The network in integers, with the record of its making."""
    result = quantizing.quantize_with_progress(job.source, job.samples, job.config, out, "quantize", **job.known)
    check_data(result.float_graph, result.stats, job.data.reader.name)
    index = job.samples.index
    digests = {"model": job.digest, "data": index.digest}
    stored = records.to_metadata(records.record_of(digests=digests, counts=job.samples.counts, samples=index))
    for graph in (result.qdq_graph, result.integer_graph):
        graph.metadata.update(stored)
    return result
