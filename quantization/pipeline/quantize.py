"""Post-training quantization from beginning to end, and its result."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import megengine.traced_module as tm
from megengine.core.errors import ArgumentError, CalibrationError, OptionError
from megengine.core.files import temporary_file
from megengine.device import normalize
from megengine.dispatch.refusal import kinds_named
from megengine.kernels import cpus
from megengine.kernels.cuda.placing import on_gpu
from megengine.quantization.checks import Analysis, analyze
from megengine.quantization.pipeline.annotate import annotate
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.calibrate import calibrate, observe_all, prepared, require_traced
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.distill import distill
from megengine.quantization.pipeline.equalize import equalized
from megengine.quantization.pipeline.exchange import exchange
from megengine.quantization.pipeline.freeze import Frozen, edge_dtype, freeze
from megengine.quantization.pipeline.integer_graph import integer_graphs
from megengine.quantization.pipeline.judging import HELD_OUT, SAMPLES, Judges
from megengine.quantization.pipeline.layers import require_layers
from megengine.quantization.pipeline.reconstruct import reconstruct
from megengine.quantization.pipeline.refine import IN_TURN, refine
from megengine.quantization.pipeline.report import QuantReport, report_of
from megengine.quantization.pipeline.sequential import drawn
from megengine.quantization.pipeline.smooth import smoothed
from megengine.quantization.pipeline.streams import part_norms
from megengine.quantization.pipeline.varied import has_few_bits, with_variety
from megengine.quantization.ranges import Data, Progress, Statistics, TensorStatistics, as_samples, require_repeatable
from megengine.traced_module.formats.native import digest
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.moving import home, moved


@dataclass(slots=True, repr=False)
class QuantizedModel:
    """A network in integers, with the steps that led there.

    Call it on tensors or arrays to run the integer graph op by op; `megengine.plan.compile` makes it fast.

    Args:
        float_graph: the float graph that was quantized, in its canonical form.
        qdq_graph: the same with explicit quantize / dequantize exprs.
        integer_graph: integer ops.
        stats: calibration statistics by edge; enough to quantize again with other settings.
        device: where calls and `traced` compute; the graphs lie on the processor.
    """

    config: QuantConfig
    float_graph: InternalGraph
    qdq_graph: InternalGraph
    integer_graph: InternalGraph
    annotation: Annotation
    frozen: Frozen
    stats: dict[str, TensorStatistics]
    report: QuantReport
    device: str = "cpu0"

    def traced(self) -> tm.TracedModule:
        """The integer graph as a traced module, for saving, drawing and plans."""
        return tm.TracedModule.from_graph(moved(self.integer_graph, self.device))

    def exchange_graph(self) -> InternalGraph:
        """The QDQ graph in the form that other runtimes compute in integers (what QDQ export writes)."""
        every = annotate(
            self.float_graph, self.config.changed(profile=replace(self.config.target, residual="quantized"))
        )
        branches = {n: edge_dtype(n, every, self.stats) for n in self.annotation.inside if n in every.edges}
        return exchange(self.qdq_graph, branches, self.config.target.rounded)

    def __call__(self, *inputs: Any) -> Any:
        return self.traced()(*inputs)

    def __repr__(self) -> str:
        return (
            f"QuantizedModel({self.integer_graph.name}: {str(self.report).splitlines()[0]}; traced() gives the network)"
        )

    @kinds_named
    def analyze(self, batches: Iterable[Any], *, progress: Progress | None = None) -> Analysis:
        """Compare every integer edge with the float network on the given inputs."""
        return analyze(self.float_graph, self.qdq_graph, batches, progress=progress)


@kinds_named
def quantize_model(
    model: tm.TracedModule | InternalGraph,
    calibration: Iterable[Any] | None = None,
    config: QuantConfig | None = None,
    *,
    statistics: Statistics | None = None,
    state: str | Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> QuantizedModel:
    """Quantize a float network with the help of sample inputs.

    canonicalize -> annotate -> calibrate (-> equalize, smooth) -> freeze (-> refine, reconstruct, distill)
    -> materialize -> fold -> integerize

    Args:
        model: a traced module, or an op-level graph; layers in other float types count as float32.
        calibration: inputs of the model; read again where `config.second_reading` names a setting.
        config: settings; the default suits x86 CPUs.
        statistics: what `collect` saw of the network; then inputs are needed only for `config.second_reading`.
        state: file that keeps the distillation after each pass over the data, or the reconstruction after each block
            (in a file beside it, with ".blocks", if there are both); an interrupted run goes on from it.
        device: where the network runs for its statistics: "gpu0"; where the model lies by default. The processor runs
            all else.
        progress: called with (stage, done, total or None).

    Raises:
        CalibrationError: unusable data; the node or batch is named.
        QuantizationError: the network cannot be quantized as asked, is quantized already, or has no layer to quantize.
        OptionError: a setting is wrong, an exclude rule selects nothing, the state is of another run, or cannot be one.
    """
    _refuse_other_kinds(model, calibration, config)
    config = config or QuantConfig()
    place = home(model) if device is None else normalize(device)
    kept = None if state is None else _checked(Path(state), config)
    _require_inputs(calibration, statistics, config)
    graph = prepared(model)
    key, parted = "" if statistics is None else digest(graph), _parted(graph, config)
    annotation = annotate(graph, config)
    require_layers(graph, annotation)
    data = () if calibration is None else Data.of(calibration, graph)
    stats, judges = observe_all(graph, config), _judges(graph, config, place)
    if statistics is not None:
        stats = _of_parted(statistics.of(key), parted)
        for arrays in as_samples(data, graph):
            judges.look(arrays, {})
    else:
        calibrate(graph, stats, data, look=judges.look, device=place, progress=progress)
    changed = 0
    for scale in [*([equalized] if config.equalize else []), *([smoothed] if config.smooth else [])]:
        graph, places = scale(graph, stats, annotation)
        changed += places
    if changed:
        stats = calibrate(graph, observe_all(graph, config), data, device=place, progress=progress)
    made = convert(graph, annotation, stats, config, data, judges=judges, state=kept, progress=progress)
    return replace(made, device=home(model))


def _refuse_other_kinds(model: Any, calibration: Any, config: Any) -> None:
    """Raises ArgumentError, with what to give instead, for arguments that people try first."""
    require_traced(model, "quantize_model")
    if isinstance(config, str):
        raise ArgumentError(
            f"quantize_model: config is {config!r}; expected a QuantConfig: megengine.quantization.QuantConfig.of(...) "
            "takes the name of an effort"
        )
    if callable(calibration) and not isinstance(calibration, Iterable):
        raise ArgumentError("quantize_model: calibration is a function; call it, and give the inputs that it returns")


def _require_inputs(calibration: Iterable[Any] | None, statistics: Statistics | None, config: QuantConfig) -> None:
    if calibration is None and (statistics is None or config.second_reading):
        raise CalibrationError(
            f"quantize_model: {config.second_reading or 'calibration'} needs inputs of the network; give calibration="
        )
    if calibration is not None and config.second_reading:
        require_repeatable(calibration, config.second_reading)


def _of_parted(stats: Mapping[str, TensorStatistics], parted: Mapping[str, str]) -> dict[str, TensorStatistics]:
    """Statistics that hold those of norms for the transpositions that part them, too."""
    return {**stats, **{name: stats[norm] for name, norm in parted.items()}}


def _parted(graph: InternalGraph, config: QuantConfig) -> dict[str, str]:
    """`part_norms` for settings with residual streams of 16 bits."""
    return part_norms(graph, annotate(graph, config)) if config.wide_sums else {}


def _judges(graph: InternalGraph, config: QuantConfig, place: str) -> Judges:
    """As many as the settings can spare, for a network that runs at a place."""
    threads = cpus.quota() if on_gpu(place) else 1  # the one that waits for a GPU waits here
    return Judges(graph, samples=HELD_OUT if config.rounding in IN_TURN else SAMPLES, threads=threads)


def _checked(state: Path, config: QuantConfig) -> Path:
    """The file of a state. Raises OptionError if nothing is trained, or no such file can be written."""
    if not config.distillation and not config.reconstruction:
        raise OptionError(
            f"state {str(state)!r} keeps the training of distillation and reconstruction, and the settings have none; "
            'ask for one (effort "best", distillation=8, or reconstruction=200), or leave out the state'
        )
    if state.is_dir() or not state.absolute().parent.is_dir():
        wrong = "is a folder" if state.is_dir() else f"lies in no folder: {str(state.parent)!r} does not exist"
        raise OptionError(f"state {str(state)!r} {wrong}; name a file in a folder that exists")
    try:
        with temporary_file(state):  # it is first written after a pass over the data, or a block
            pass
    except OSError as error:
        raise OptionError(
            f"state {str(state)!r}: its folder takes no new file ({error.strerror}); name a file in another one"
        ) from error
    return state


@kinds_named
def requantize(
    model: QuantizedModel,
    config: QuantConfig,
    calibration: Iterable[Any] | None = None,
    *,
    progress: Progress | None = None,
) -> QuantizedModel:
    """Quantize again with other settings by the same statistics; data if `config.second_reading` says so.

    Raises:
        CalibrationError: data is needed and was not given.
        QuantizationError: the settings leave no layer to quantize.
    """
    if config.second_reading and calibration is None:
        raise CalibrationError(
            f"requantize: {config.second_reading} needs data; give calibration=, or rounding='nearest'"
        )
    graph = model.float_graph.clone()
    parted = _parted(graph, config)
    annotation = annotate(graph, config)
    require_layers(graph, annotation)
    return convert(
        graph,
        annotation,
        _of_parted(model.stats, parted),
        config,
        () if calibration is None else calibration,
        progress=progress,
    )


def convert(
    graph: InternalGraph,
    annotation: Annotation,
    stats: dict[str, TensorStatistics],
    config: QuantConfig,
    calibration: Iterable[Any],
    *,
    judges: Judges | None = None,
    state: Path | None = None,
    progress: Progress | None = None,
) -> QuantizedModel:
    """The passes after calibration. A stage that `judges` are better off without is undone, in `config` too."""
    frozen = freeze(graph, annotation, stats)
    undone, graphs = "", None
    if (config.bias_correction or config.second_reading) and frozen.weights:
        refined = refine(graph, annotation, frozen, stats, config, calibration, judges=judges, progress=progress)
        frozen, config, undone, graphs = refined.frozen, refined.config, refined.undone, refined.graphs
    int_bias, vary = config.target.bias == "int32", config.vary and has_few_bits(frozen)
    more: dict[str, Any] = {"int_bias": int_bias, "progress": progress}
    if config.reconstruction or config.distillation:
        graphs = None  # other numbers come
    if config.reconstruction:
        samples = drawn(calibration, graph, ())
        samples, steps = with_variety(samples, graph) if vary else samples, config.reconstruction
        kept = state.with_name(f"{state.name}.blocks") if state and config.distillation else state
        frozen = reconstruct(graph, annotation, frozen, samples, steps=steps, state=kept, **more)
    if config.distillation:
        epochs = config.distillation
        frozen = distill(graph, annotation, frozen, calibration, epochs=epochs, vary=vary, state=state, **more)
    qdq, integer = graphs or integer_graphs(graph, frozen, config)
    report = report_of(graph, integer, annotation, undone)
    return QuantizedModel(config, graph, qdq, integer, annotation, frozen, stats, report)
