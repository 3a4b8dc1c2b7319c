"""`mge-quantize qat`."""

import hashlib
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from megengine.cli import images, records
from megengine.cli.app import common, examples
from megengine.cli.choices import FILE, Choice, Number
from megengine.cli.common_options import data_option, layers_options, preprocess_option, samples_option
from megengine.cli.labels import labels_of
from megengine.cli.made_pages import Made, made_page
from megengine.cli.models import InputChoices, chosen_graph, load_calls, shape_option
from megengine.cli.output import Bar, Output, check_suffix, kept_after_interrupt, output_file
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.qat_goals import Goal, by_labels, by_results
from megengine.cli.readers import Batch, Reader, kind_of
from megengine.cli.refusals import check_varies, check_weights
from megengine.cli.samples import EVERY, LEAST, Index, digest_of, held_out_of, small_score, suspicious, tell_suspicious
from megengine.cli.sources import data_of
from megengine.cli.unprepared import tell_unprepared
from megengine.core.errors import FileFormatError, MegEngineError, OptionError
from megengine.core.text import counted
from megengine.quantization import PROFILES, QuantConfig, RangeMethod, prepare_qat
from megengine.quantization.pipeline.config import CHOICES
from megengine.quantization.pipeline.qat_training import RATE, Training, TrainingPlan
from megengine.quantization.pipeline.selection import PRECISIONS
from megengine.quantization.pipeline.trained_scales import METHODS
from megengine.serialization import load, save
from megengine.traced_module import lower
from megengine.traced_module.formats import native

CALIBRATION = 256  # samples from which the ranges start


@dataclass(frozen=True, slots=True)
class Labelled:
    """Samples of every input by their digests, and what the network has to say of each: labels, or the float network's
    results.

    `held_out_share` of the different samples are held out of training: the first, third, ... of these by their digests
    choose the epoch, the others score. Copies of a sample go with it.
    """

    inputs: list[np.ndarray]
    targets: np.ndarray
    index: Index

    @property
    def digest(self) -> str:
        """SHA-256 of all samples as the network gets them, and of what it has to say of them."""
        hashed = hashlib.sha256(self.index.digest.encode())
        hashed.update(np.ascontiguousarray(self.targets).data.cast("B"))
        return hashed.hexdigest()

    @property
    def held(self) -> list[bytes]:
        """Digests of the samples that are held out."""
        return held_out_of(self.index.digests, EVERY)

    def part(self, role: str) -> tuple[list[np.ndarray], np.ndarray]:
        """The samples that "train", "choose" or "score".

        With fewer than eight samples all choose and score.
        """
        held, every = self.held, set(self.index.digests)
        roles = {
            "train": every.difference(held),
            "choose": set(held[::2]) or every,
            "score": set(held[1::2] or held) or every,
        }
        rows = np.array([one in roles[role] for one in self.index.digests])
        return [x[rows] for x in self.inputs], self.targets[rows]

    @property
    def clean(self) -> bool:
        """Whether the samples that score are others than those that choose."""
        return len(self.held) > 1

    def scored_on(self) -> str:
        """Which samples score, in words."""
        who = f"{counted(len(self.part('score')[1]), 'sample')} that "
        return who + ("neither trained nor chose" if self.clean else "chose it too: give more of them")

    def warnings(self) -> list[str]:
        """What is suspicious about the data."""
        different = len(set(self.index.digests))
        found = suspicious(len(self.index.digests), equal=different == 1)
        return found or small_score(len(self.held[1::2]) or different, counted(EVERY * 2 * LEAST, "sample"))


@click.command(
    epilog=examples(
        "qat net.onnx --data photos --preprocess imagenet -o q.mgt",
        "qat net.onnx --data photos --preprocess imagenet --method lsq --epochs 1 -o q.mgt",
    )
)
@click.argument("model", type=FILE)
@data_option(required=True)
@click.option(
    "--labels",
    type=FILE,
    help="A .npy file or a text file with a number a sample; 'folders': the folder of each picture is its class. "
    "Without labels, the float network's results are learnt.",
)
@preprocess_option
@samples_option
@path_option("-o", "--output", required=True, help="Quantized model to write, .mgt (integers, exact).")
@click.option("--epochs", type=click.IntRange(1), default=2, show_default=True)
@click.option("--lr", type=Number(0, min_open=True), default=RATE, show_default=True, help="Rate of Adam.")
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True, help="Samples of a step.")
@click.option("--method", type=Choice([*METHODS]), default="ste", show_default=True, help="How scales are found.")
@click.option("--freeze-from", type=click.IntRange(0), default=1, show_default=True,
              help="Epoch from which ranges and statistics of batch norms stand still.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the order of the samples.")
@click.option("--weights", type=Choice(CHOICES["weights"]), default="per_channel", show_default=True)
@click.option(
    "--precision", type=Choice([*PRECISIONS]), default="w8a8", show_default=True, help="Bits of weights and of results."
)
@click.option("--profile", type=Choice(list(PROFILES)), default="x86", show_default=True, help="Target.")
@layers_options
@path_option("--report", "report_path", help="Write a self-contained .html report too.")
@click.option("--resume", is_flag=True, help="Go on after the last epoch that an earlier run finished.")
@overwrite_option
@shape_option
@common
def qat(output: Path, report_path: Path | None, overwrite: bool, resume: bool, out: Output, **options: Any) -> None:
    """Train MODEL (.onnx, .tm, .mgt, .mge, or module.py:function) with the values of its integer network, and write it.

    After every epoch the state of training is kept beside the output, as OUTPUT.training. One of ten samples (of few a
    quarter, up to 8) does not train: half of these choose the epoch that is written at the end, the other half score
    it. The order of the data makes no difference.
    """
    check_suffix("--output", output, {".mgt": "our format"})
    inputs = [options["model"], options["data"], *images.recipe_files(options["preprocess"])]
    labels = [] if options["labels"] in (None, "folders") else [options["labels"]]
    check_suffix("--report", report_path, {".html": "a page"})
    check_outputs([("--output", output), ("--report", report_path)], [*inputs, *labels], overwrite=overwrite)
    kept = output.with_name(f"{output.name}.training")
    line = "holds the training; --resume goes on from its last epoch"
    written = [output, *([report_path] if report_path is not None else [])]
    with kept_after_interrupt(kept, line), ExitStack() as stack:
        files = [stack.enter_context(output_file(path)) for path in written]
        result = _train(files, kept, out, resume=resume, **options)
    with suppress(FileNotFoundError):
        kept.unlink()
    out.say(f"wrote {', '.join(map(str, written))}")
    out.result({**result, "written": [str(path) for path in written]})


def _train(files: list[Path], kept: Path, out: Output, *, model: str, data: str, labels: str | None,
           preprocess: str | None, shapes: InputChoices, samples: int | None, resume: bool, method: str,
           weights: str, precision: str, profile: str, rules: tuple[str, ...], exclude: tuple[str, ...],
           include: tuple[str, ...], **settings: Any) -> dict[str, Any]:  # fmt: skip
    """Write the model to the first of `files`, and the page to the second where there is one."""
    calls = chosen_graph(load_calls(model, shapes, dynamic=False), None)
    source = lower(calls)
    check_weights(source)
    source_data = data_of(data, preprocess, samples, source, out)
    chosen = QuantConfig(weights=weights, precision=precision, profile=profile, rules=rules, exclude=exclude,
                         include=include)  # fmt: skip
    config = chosen.changed(activations=RangeMethod("minmax"), bias_correction=False)
    network = prepare_qat(calls, config=config, method=method)  # calls take batches of any size
    with out.progress("read", source_data.reader.count) as bar:
        inputs, classes, index = _read(source_data.reader, labels, data, bar, first=samples is not None)
    check_varies(source.graph, [inputs], data)
    option = (f"--labels {labels}", index.name)
    goal = by_results(network, inputs) if classes is None else by_labels(classes, network, inputs, *option)
    samples_of = Labelled(inputs, goal.targets, index)
    taught, choosing, scoring = (samples_of.part(role) for role in ("train", "choose", "score"))
    if source_data.how is not None:
        source.graph.metadata.update(images.to_metadata(source_data.how))
    digests = {"model": records.digest_of(source.graph), "data": samples_of.digest}
    tell_suspicious(out, warnings := samples_of.warnings())
    counts = {"training": len(taught[1]), "choosing": len(choosing[1]), "held out": len(scoring[1])}
    record = records.record_of(digests=digests, counts=counts, samples=index)
    record["recipe"].pop("resume", None)  # how often it was interrupted makes no difference
    plan = TrainingPlan(**settings)
    _warn_of_calls(network.batch_size, plan.batch, out)
    training = Training(network, plan, loss=goal.loss, score=goal.score)
    chose, scored = (training.scored(len(part[1])) for part in (choosing, scoring))
    about, told = _begin(training, kept, taught[0], digests, resume=resume)
    if not told:
        told = {"start": training.score_of(*scoring), "epochs": [(0, None, training.evaluate(*choosing))]}
        out.say(f"before training: {goal.what} {goal.shown(told['epochs'][0][2], chose)}")
    _epochs(training, kept, (about, told), taught, choosing, goal, out)
    network = training.best_network()
    best = network.eval().convert()
    best.graph.metadata.update(source.graph.metadata | records.to_metadata(record))
    native.save(best, files[0])
    score, who = training.score_of(*scoring), samples_of.scored_on()
    reached = f"{goal.what} {goal.shown(score, scored)} on {who}"
    said = _concluded(training, reached, goal.shown(told["start"], scored), out)
    rows = [(epoch or "before", loss, goal.shown(value, chose)) for epoch, loss, value in told["epochs"]]
    table = [("epoch", "loss", goal.what), *rows]
    for file in files[1:]:
        held = _batches(scoring[0], len(next(iter(source_data.reader))[0]))
        page = Made(model, source.graph, best.graph, held, who, said, "Epochs, on the samples that choose", table)
        file.write_text(made_page(page, source_data, f"{Path(model).name}, trained in integers"), encoding="utf-8")
    facts = {"model": model, "preprocess": source_data.describe(), "record": record, "warnings": warnings}
    return {
        **facts,
        "notes": tell_unprepared(out, source.graph, source_data.reader),
        "epochs": [dict(zip(("epoch", "loss", "score"), row, strict=True)) for row in told["epochs"][1:]],
        "best": training.best,
        "best_epoch": training.best_epoch,
        "held_out": score,
        "held_out_before": told["start"],
        "score": goal.what,
    }


def _warn_of_calls(at_once: int | None, batch: int, out: Output) -> None:
    """Say it where a step is of several calls, since the network takes fewer samples at once."""
    if at_once is not None and at_once < batch:
        out.say(f"warning: the network takes {counted(at_once, 'sample')} at once, so a step of {batch} takes "
                f"{batch // at_once} calls; a network with an open batch trains faster", "yellow")  # fmt: skip


def _batches(inputs: list[np.ndarray], size: int) -> list[Batch]:
    """The samples in batches of one size; what is left over is left out."""
    return [tuple(x[i : i + size] for x in inputs) for i in range(0, len(inputs[0]) - size + 1, size)]


def _concluded(training: Training, reached: str, start: str, out: Output) -> str:
    """Tells which epoch is written, and what it reaches; the line."""
    if training.best_epoch:
        line = f"epoch {training.best_epoch}: {reached}; {start} before training"
    else:
        line = f"no epoch gained, so the network before training is written: {reached}"
        out.say("warning: no epoch scores above the network before training; another --lr or more --epochs may help",
                "yellow")  # fmt: skip
    out.say(line)
    return line


def _begin(
    training: Training, kept: Path, inputs: list[np.ndarray], digests: dict[str, str], *, resume: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Calibrate, or go on from the state that an earlier run kept.

    What belongs to the state beside the training's: what it is about, and what was told of it so far.
    """
    same = {**digests, "method": training.network.method}
    if not resume:
        most = min(len(inputs[0]), CALIBRATION)
        size = training.network.batch_size or min(most, 32)
        training.network.calibrate([tuple(x[i : i + size] for x in inputs) for i in range(0, most - size + 1, size)])
        return same, {}
    if not kept.exists():
        raise OptionError(f"--resume: there is no {str(kept)!r}, which a run keeps after its first epoch")
    try:
        state = load(str(kept))
        told = {"start": float(state["told"]["start"]), "epochs": [*state["told"]["epochs"]]}
        other = [name for name, value in same.items() if state["about"][name] != value]
    except (MegEngineError, KeyError, TypeError) as error:
        raise FileFormatError(f"--resume: {str(kept)!r} is no state of training ({error})") from error
    if other:
        raise OptionError(f"--resume: {str(kept)!r} was made with another {' and another '.join(other)}")
    training.restore(state["training"])
    return same, told


def _epochs(training: Training, kept: Path, state: tuple[dict[str, Any], dict[str, Any]], taught: Any, scored: Any,
            goal: Goal, out: Output) -> None:  # fmt: skip
    """Train, add to what is told, and keep the state after each epoch."""
    about, told = state
    plan, count = training.plan, training.scored(len(scored[1]))
    while training.epoch < plan.epochs:
        what = f"epoch {training.epoch + 1} of {plan.epochs}"
        with out.progress(what, None) as bar:
            loss = training.run_epoch(*taught, progress=lambda *counts, bar=bar, what=what: bar.show(what, *counts))
        score = training.evaluate(*scored)
        told["epochs"].append((training.epoch, loss, score))
        save({"about": about, "told": told, "training": training.state()}, str(kept))
        out.say(f"{what}: loss {loss:.4f}, {goal.shown(score, count)}; kept in {kept}")


def _read(
    reader: Reader, labels: str | None, data: str, bar: Bar, *, first: bool
) -> tuple[list[np.ndarray], np.ndarray | None, Index]:
    """All samples in the order of their digests, one array an input, their labels, and the digests.

    Pictures that fill up a last batch are left out where there are labels.
    """
    rows: list[Batch] = []
    for batch in reader.canonical() if labels is None else reader:
        if len({x.shape[:1] for x in batch} | {()}) != 2:
            shapes = ", ".join(str(x.shape) for x in batch)
            raise OptionError(
                f"qat: one run takes inputs of the shapes {shapes}; expected as many rows of each as samples"
            )
        rows += [tuple(x[i : i + 1] for x in batch) for i in range(len(batch[0]))]
        bar.step()
    if not rows:
        raise FileFormatError(f"data {reader.name!r}: it is empty; expected samples to train with")
    classes = None if labels is None else _targets(labels, data, len(rows), first=first)
    digests = [digest_of(row) for row in rows[: None if classes is None else len(classes)]]
    places = range(len(digests))
    order = sorted(places, key=lambda i: (digests[i], 0 if classes is None else int(classes[i])))
    inputs = [np.concatenate([rows[i][at] for i in order]) for at in range(len(rows[0]))]
    index = Index(tuple(digests[i] for i in order), lambda place: reader.named(order[place]))
    return inputs, None if classes is None else classes[order], index


def _targets(labels: str, data: str, count: int, *, first: bool) -> np.ndarray:
    """Labels as int32, one a sample; of the `first` samples alone if wanted. Raises OptionError, FileFormatError."""
    found = labels_of(labels, data)
    several = next((i for i, one in enumerate(found, 1) if len(one) != 1 or one[0] < 0), 0)
    if several:
        raise FileFormatError(
            f"--labels {labels!r}: sample {several} has {found[several - 1]}; expected one class each, from 0"
        )
    if kind_of(data) == "pictures" and Path(data).is_dir():
        count = min(count, len(images.images_in(Path(data))))  # the last batch may be filled up
    found = found[:count] if first else found
    if len(found) != count:
        raise OptionError(
            f"--labels {labels}: {counted(len(found), 'label')} for {counted(count, 'sample')}; expected one for each"
        )
    return np.array(found, np.int32)[:, 0]
