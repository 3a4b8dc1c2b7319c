"""`mge-quantize inspect` and `mge-quantize draw`."""

from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from megengine.cli.app import common, examples
from megengine.cli.choices import FILE, Choice
from megengine.cli.images import METADATA, from_metadata
from megengine.cli.models import (
    InputChoices,
    chosen_graph,
    graph_option,
    listing,
    load_calls,
    load_model,
    shape_option,
)
from megengine.cli.output import Output, check_suffix, output_file
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.parts import part_at
from megengine.core.errors import GraphError, MegEngineError, OptionError, nearest
from megengine.core.sizes import is_open
from megengine.core.text import counted, in_bytes
from megengine.traced_module import InternalGraph, TracedModule, lower
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.pictures import dot, drawing, page
from megengine.traced_module.pictures.summary import summarize
from megengine.traced_module.pictures.texts import shape_text

COSTS = ("parameters", "macs")


def summary(graph: InternalGraph) -> dict[str, Any]:
    """Inputs, outputs, totals and one row a layer, as plain values."""
    table = summarize(graph)
    layers = [
        {
            "name": row.name,
            "op": row.called,
            "module": row.module,
            "depth": row.depth,
            "shape": lengths(row.specs[0].shape) if row.specs else [],
            "dtype": str(row.specs[0].dtype) if row.specs else "",
            "parameters": row.parameters,
            "macs": row.macs,
            "flops": None if row.macs is None else 2 * row.macs,
            "path": row.qualname,
            "node": row.node,
            "source": row.source,
            "passes": list(row.passes),
        }
        for row in table.rows
    ]
    return {
        "name": graph.name,
        "inputs": [interface(node) for node in graph.inputs if isinstance(node, TensorNode)],
        "outputs": [interface(node) for node in graph.outputs],
        "parameters": table.parameters,
        "weight_bytes": table.weight_bytes,
        "macs": table.macs,
        "flops": 2 * table.macs,
        "metadata": dict(graph.metadata),
        "ops": dict(Counter(row.called for row in table.rows).most_common()),
        "layers": layers,
    }


def interface(node: Any) -> dict[str, Any]:
    """Name, shape and dtype."""
    return {"name": node.name, "shape": lengths(node.spec.shape), "dtype": str(node.spec.dtype)}


def lengths(shape: Sequence[int]) -> list[int | str]:
    """A shape as plain values: open axes by their names."""
    return [str(n) if is_open(n) else n for n in shape]


@click.command(epilog=examples("inspect net.onnx", "inspect net.tm --calls --find 'conv*' --json"))
@click.argument("model", type=FILE)
@click.option("--calls", is_flag=True, help="List the calls as the model makes them, submodules opened, not ops.")
@click.option("--find", metavar="PATTERN", help="List only layers with this name, path, module or op; * is anything.")
@graph_option
@shape_option
@common
def inspect(model: str, calls: bool, find: str | None, number: int | None, shapes: InputChoices, out: Output) -> None:
    """List inputs, layers, sizes and operations of MODEL (.onnx, .tm, .mgt, .mge, or module.py:function)."""
    graph = chosen_graph(load_calls(model, shapes), number)
    facts = summary(graph if calls else lower(graph).graph)
    if find is not None:
        _show_matches(facts, find, listing(model, shapes, ops=not calls), out)
        return
    rows = [
        ("  " * x["depth"] + x["name"], x["op"], shape_text(x["shape"]), x["dtype"], *(x[k] or None for k in COSTS))
        for x in facts["layers"]
    ]
    out.table(facts["name"], ("layer", "op", "shape", "dtype", "parameters", "MACs"), rows)
    for kind in ("inputs", "outputs"):
        for item in facts[kind]:
            out.say(f"{kind[:-1]} {item['name']}: {shape_text(item['shape'])} {item['dtype']}")
    counts = ", ".join(f"{count} {op}" for op, count in facts["ops"].items())
    out.say(f"{counted(len(facts['layers']), 'layer')}: {counts}")
    out.say(
        f"{counted(facts['parameters'], 'parameter', spec=',')}, {in_bytes(facts['weight_bytes'])}, "
        f"{_millions(facts['macs'], 'multiply-accumulates')} ({_millions(facts['flops'], 'FLOPs')})"
    )
    if METADATA in graph.metadata:
        out.say(f"pictures: {_preparation(graph)}")
    if passes := list(dict.fromkeys(name for x in facts["layers"] for name in x["passes"])):
        out.say(f"passes that changed it: {', '.join(passes)}")
    out.result(facts)


def _millions(count: int, words: str) -> str:
    """12.3 million FLOPs, 0.0974 million FLOPs."""
    return f"{count / 1e6:{',.1f' if count >= 1e6 else '.3g'}} million {words}"


def _preparation(graph: InternalGraph) -> str:
    """The stored recipe for pictures, or the reason why it cannot be used."""
    shapes = [tuple(n.shape) for n in graph.inputs if isinstance(n, TensorNode)]
    try:
        return f"prepared as the model says: {from_metadata(graph.metadata, shapes[0] if shapes else None)}"
    except MegEngineError as error:
        return str(error)


def _show_matches(facts: dict[str, Any], pattern: str, every: str, out: Output) -> None:
    """List the layers that match. Raises OptionError with the nearest name, and the line for all, if none does."""
    words = ("name", "node", "path", "module", "op")
    wanted = pattern.lower()
    hits = [
        x for x in facts["layers"] if any(w == wanted or fnmatchcase(w, wanted) for w in (x[k].lower() for k in words))
    ]
    if not hits:
        known = [text for x in facts["layers"] for text in (x["name"], x["node"], x["module"], x["op"])]
        raise OptionError(
            f"--find {pattern!r}: no layer of {facts['name']} matches{nearest(pattern, known)}; `{every}` lists them"
        )
    keys = ("node", "op", "module", "path", "source")
    rows = [(*(x[k] for k in keys), ", ".join(x["passes"]), shape_text(x["shape"]), x["macs"] or None) for x in hits]
    out.table(facts["name"], ("layer", "op", "module", "path", "source", "passes", "shape", "MACs"), rows)
    out.say(f"{len(hits)} of {counted(len(facts['layers']), 'layer')} match{'es' * (len(hits) == 1)} {pattern!r}")
    out.result({**facts, "layers": hits})


KINDS = {
    ".html": "a page to look around in",
    ".svg": "a picture",
    ".png": "a picture of pixels",
    ".pdf": "a picture, drawn by Graphviz",
    ".dot": "for Graphviz",
}
ENGINES = ("own", "dot", "neato", "fdp", "sfdp", "circo", "twopi")  # our layout, and programs of Graphviz


@click.command(
    epilog=examples(
        "draw net.onnx -o net.html", "draw net.tm -o net.png --depth 1", "draw net.tm -o stage.html --module layer1"
    )
)
@click.argument("model", type=FILE)
@path_option("-o", "--output", required=True, help=f"File to write: {', '.join(KINDS)}.")
@click.option("--ops", is_flag=True, help="Draw the ops that the model runs, not the calls that it makes.")
@click.option("--module", "path", metavar="PATH", help="Draw only one path: layer1.0, 'layer*.conv1', a value's name.")
@click.option("--depth", type=click.IntRange(0), metavar="N", help="Levels of modules to open; not for .html.")
@click.option("--engine", type=Choice(ENGINES), help="What lays out pictures: this package or Graphviz.")
@overwrite_option
@graph_option
@shape_option
@common
def draw(
    model: str,
    output: Path,
    ops: bool,
    path: str | None,
    depth: int | None,
    overwrite: bool,
    engine: str | None,
    number: int | None,
    shapes: InputChoices,
    out: Output,
) -> None:
    """Draw the graph of MODEL, module by module.

    Modules open in place on a .html page; in pictures all of them are open, or as many levels as --depth says. A .png
    needs the package resvg_py (pip install resvg_py) or --engine dot; a .pdf and --engine dot need Graphviz
    (apt-get install graphviz).
    """
    check_suffix("--output", output, KINDS)
    check_outputs([("--output", output)], [model], overwrite=overwrite)
    if engine is not None and output.suffix not in (".svg", ".png", ".pdf"):
        raise OptionError(f"--engine: a {output.suffix} file has no layout of it; leave it out, or write .svg")
    if engine == "own" and output.suffix == ".pdf":
        raise OptionError("--engine own: writes .svg and .png; for .pdf take --engine dot")
    if depth is not None and output.suffix == ".html":
        raise OptionError("--depth: a .html page opens and closes modules itself; leave it out, or write .svg")
    with output_file(output) as temporary:
        traced = load_model(model, shapes, number) if ops else load_calls(model, shapes)
        every = output.suffix == ".html" and number is None and path is None
        one = None if every else chosen_graph(traced, None if ops else number)
        if one is not None and path is not None:
            one = part_at(one, path, listing(model, shapes, ops=ops))
        temporary.write_bytes(_drawn(traced if one is None else one, depth, output.suffix, engine))
    out.say(f"wrote {output} ({in_bytes(output.stat().st_size)})")
    out.result({"output": str(output), "bytes": output.stat().st_size})


def _drawn(source: TracedModule | InternalGraph, depth: int | None, suffix: str, engine: str | None) -> bytes:
    """The file; pages hold all graphs of a module."""
    if suffix == ".html":
        return page.to_html(source).encode()
    graph = source.graph if isinstance(source, TracedModule) else source
    if suffix == ".dot":
        return dot.to_dot(graph, depth=depth).encode()
    if suffix == ".pdf" or engine not in (None, "own"):
        return dot.rendered(graph, suffix[1:], engine=engine or "dot", depth=depth)
    if suffix == ".png":
        try:
            return drawing.to_png(graph, depth=depth)
        except GraphError as error:
            text = str(error).replace("one module", "one module (--module)")
            raise GraphError(text.removeprefix("to_png: ")) from error
    return drawing.to_svg(graph, depth=depth).encode()
