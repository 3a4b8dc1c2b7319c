"""`mge-quantize inspect` and `mge-quantize draw`."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import click

from megengine.cli.app import common
from megengine.cli.models import load_model, shape_option
from megengine.cli.output import Output, check_suffix, output_file
from megengine.core.dtype import storage_of
from megengine.traced_module import TracedModule
from megengine.traced_module.expr import Apply, Constant


def multiplications(expr: Apply) -> int:
    """Multiply-accumulate operations of a convolution or matrix product, 0 for other ops."""
    if expr.op in ("conv2d", "qconv2d", "fused_conv2d"):
        _, per_group, height, width = expr.inputs[1].shape
        return math.prod(expr.outputs[0].shape) * per_group * height * width
    if expr.op == "conv_transpose2d":
        return math.prod(expr.inputs[0].shape) * math.prod(expr.inputs[1].shape[1:])
    if expr.op in ("matmul", "qlinear", "fused_linear"):
        inner = expr.inputs[0].shape[-2 if expr.attrs.get("transpose_a") else -1]
        return math.prod(expr.outputs[0].shape) * inner
    return 0


def summary(model: TracedModule) -> dict[str, Any]:
    """Inputs, outputs, totals and one row a layer, as plain values."""
    graph = model.graph
    applied = [expr for expr in graph.exprs() if isinstance(expr, Apply)]
    constants = [expr.outputs[0] for expr in graph.exprs() if isinstance(expr, Constant)]
    layers = [
        {
            "name": expr.outputs[0].name,
            "op": expr.op,
            "module": expr.outputs[0].meta.get("module") or "",
            "shape": list(expr.outputs[0].shape),
            "dtype": str(expr.outputs[0].spec.dtype),
            "parameters": sum(math.prod(n.shape) for n in expr.inputs if isinstance(n.expr, Constant)),
            "macs": multiplications(expr),
        }
        for expr in applied
    ]
    return {
        "name": graph.name,
        "inputs": [_interface(node) for node in graph.inputs],
        "outputs": [_interface(node) for node in graph.outputs],
        "parameters": sum(math.prod(node.shape) for node in constants),
        "weight_bytes": weight_bytes(model),
        "macs": sum(layer["macs"] for layer in layers),
        "ops": dict(Counter(expr.op for expr in applied).most_common()),
        "layers": layers,
    }


def weight_bytes(model: TracedModule) -> int:
    """Bytes of all constants as they are stored."""
    constants = [expr.outputs[0] for expr in model.graph.exprs() if isinstance(expr, Constant)]
    return sum(math.prod(node.shape) * storage_of(node.spec.dtype).itemsize for node in constants)


def _interface(node: Any) -> dict[str, Any]:
    return {"name": node.name, "shape": list(node.shape), "dtype": str(node.spec.dtype)}


def shape_text(shape: list[int]) -> str:
    """1x3x224x224."""
    return "x".join(map(str, shape)) or "scalar"


@click.command()
@click.argument("model")
@shape_option
@common
def inspect(model: str, shapes: tuple, out: Output) -> None:
    """List inputs, layers, sizes and operations of MODEL (.onnx, .tm, .mgt, or module.py:function)."""
    found = summary(load_model(model, shapes))
    rows = [
        (x["name"], x["op"], shape_text(x["shape"]), x["dtype"], x["parameters"] or None, x["macs"] or None)
        for x in found["layers"]
    ]
    out.table(found["name"], ("layer", "op", "shape", "dtype", "parameters", "MACs"), rows)
    for kind in ("inputs", "outputs"):
        for item in found[kind]:
            out.say(f"{kind[:-1]} {item['name']}: {shape_text(item['shape'])} {item['dtype']}")
    counts = ", ".join(f"{count} {op}" for op, count in found["ops"].items())
    out.say(f"{len(found['layers'])} layers: {counts}")
    out.say(
        f"{found['parameters']:,} parameters, {found['weight_bytes'] / 1e6:.2f} MB, "
        f"{found['macs'] / 1e6:,.1f} million multiply-accumulates"
    )
    out.result(found)


@click.command()
@click.argument("model")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help=".svg or .dot file to write.")
@shape_option
@common
def draw(model: str, output: Path, shapes: tuple, out: Output) -> None:
    """Draw the graph of MODEL; needs no `dot` program."""
    check_suffix("--output", output, {".svg": "a picture", ".dot": "for Graphviz"})
    with output_file(output) as temporary:
        from megengine.traced_module import drawing

        graph = load_model(model, shapes).graph
        text = drawing.to_svg(graph) if output.suffix == ".svg" else drawing.to_dot(graph)
        temporary.write_text(text, encoding="utf-8")
    out.say(f"wrote {output} ({output.stat().st_size / 1e3:.0f} kB)")
    out.result({"output": str(output), "bytes": output.stat().st_size})
