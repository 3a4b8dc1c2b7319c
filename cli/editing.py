"""`mge-quantize edit`: a log replayed, passes run, nodes renamed, the model cut."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from megengine.cli.app import common
from megengine.cli.models import load_calls, shape_option
from megengine.cli.output import Output, check_suffix, output_file
from megengine.core.errors import GraphError, OptionError, nearest
from megengine.traced_module import TracedModule
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.node import TensorNode

KINDS = {".mgt": "our format", ".tm": "MegEngine's, for models of calls", ".onnx": "its ops, for other programs"}


@click.command()
@click.argument("model")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help=".mgt, .tm or .onnx file to write."
)
@click.option("--log", "logs", multiple=True, type=click.Path(path_type=Path), help="Replay a saved log of edits.")
@click.option("--optimize", "passes", metavar="PASS,...", help='Run passes, in order; "all" for every one that fits.')
@click.option("--rename", "renames", multiple=True, metavar="OLD=NEW", help="Give a node another name.")
@click.option(
    "--keep", "kept", multiple=True, metavar="NODE", help="Cut the model: it returns this node. Repeat for several."
)
@click.option("--save-log", type=click.Path(path_type=Path), help="Write all of these edits as a log.")
@shape_option
@common
def edit(
    model: str,
    output: Path,
    logs: tuple[Path, ...],
    passes: str | None,
    renames: tuple[str, ...],
    kept: tuple[str, ...],
    save_log: Path | None,
    shapes: tuple,
    out: Output,
) -> None:
    """Edit MODEL and write it to another file.

    In this order: logs (--log) are replayed, passes (--optimize) run, nodes renamed (--rename), and the model is cut at
    nodes (--keep), without what they do not need. All of it is checked; nothing is written if a step is refused.
    """
    check_suffix("--output", output, KINDS)
    pairs = [_pair(text) for text in renames]
    made = load_calls(model, shapes)
    graph = made.graph
    graph.keep_edits()
    _replay(made, logs)
    if passes is not None:
        _run_passes(graph, passes)
    for old, new in pairs:
        graph.rename(_node(graph, old, "--rename"), new)
    if kept:
        _cut(graph, [_node(graph, name, "--keep") for name in kept])
    log = made.edit_log
    with output_file(output) as temporary:
        _save(made, output.suffix, temporary)
        if save_log is not None:
            with output_file(save_log) as beside:
                log.save(beside)
    written = [str(path) for path in (output, save_log) if path is not None]
    for step in log.steps:
        out.say(step.to_text())
    out.say(f"{len(log)} edit{'s' * (len(log) != 1)}; wrote {', '.join(written)}")
    out.result({"model": model, "edits": [step.to_text() for step in log.steps], "written": written})


def _pair(text: str) -> tuple[str, str]:
    old, found, new = text.partition("=")
    if not (old and found and new):
        raise OptionError(f"--rename {text!r}: expected OLD=NEW")
    return old, new


def _replay(model: TracedModule, logs: Sequence[Path]) -> None:
    from megengine.traced_module.edit_log import EditLog

    for path in logs:
        log = EditLog.load(path)
        try:
            log.replay(model)
        except GraphError as error:
            raise GraphError(f"--log {path}: {error}") from error


def _run_passes(graph: InternalGraph, text: str) -> None:
    """Passes for the level of the graph: calls, or ops."""
    from megengine.traced_module.passes import DEFAULT_PASSES, PassManager, registered_passes

    known = {one.name: one for one in (registered_passes() if graph.arguments is not None else DEFAULT_PASSES)}
    names = list(known) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            level = "calls" if graph.arguments is not None else "ops"
            raise OptionError(
                f"--optimize: no pass {name!r} for graphs of {level}{nearest(name, known)}; known: {', '.join(known)}"
            )
    PassManager([known[name] for name in names]).run(graph)


def _node(graph: InternalGraph, name: str, option: str) -> TensorNode:
    """A tensor of the outermost graph, by its name or the path of the value."""
    nodes = [n for n in graph.nodes(recursive=False) if isinstance(n, TensorNode)]
    found = next((n for n in nodes if n.name == name), None) or next((n for n in nodes if n.qualname == name), None)
    if found is None:
        hint = nearest(name, [n.name for n in nodes])
        inside = any(n.name == name for n in graph.nodes())
        place = "; a submodule has it: only values of the outermost graph can be named" if inside else hint
        raise OptionError(f"{option}: {graph.name} has no value {name!r}{place}; `inspect --find '*'` lists them")
    return found


def _cut(graph: InternalGraph, nodes: list[TensorNode]) -> None:
    with graph.transaction("keep"):
        if graph.arguments is not None:
            graph.reset_outputs(nodes[0] if len(nodes) == 1 else tuple(nodes))
        else:
            graph.set_outputs(nodes)
        graph.remove_dead()


def _save(model: TracedModule, suffix: str, path: Path) -> None:
    def native(made: Any, where: Path) -> None:
        from megengine.traced_module import files

        files.save(made, where)

    def megengine(made: Any, where: Path) -> None:
        from megengine.traced_module.tm_writing import save_tm

        save_tm(made, where)

    def exported(made: Any, where: Path) -> None:
        from megengine.convert import onnx

        onnx.export(made, where)

    writers: dict[str, Callable[[Any, Path], None]] = {".mgt": native, ".tm": megengine, ".onnx": exported}
    writers[suffix](model, path)
