"""RNN, GRU and LSTM, in both directions of conversion: their definition is that of the op `recurrent`."""

import math
from typing import Any

from megengine.convert.onnx.context import OnnxNode, Value, rule
from megengine.convert.onnx.writing import Writer, writer
from megengine.kernels.reference.recurrent import FUNCTIONS_OF, PARAMETERS
from megengine.ops.recurrent import DIRECTIONS, OPTIONAL, recurrent_attrs
from megengine.traced_module.ir.expr import Apply


@rule("RNN", "GRU", "LSTM")
def recurrent(node: OnnxNode, x: Value, w: Value, r: Value, *optional: Value | None) -> tuple[Value, ...]:
    """One op; with layout 1 the batch axis is moved behind the time."""
    cell, direction = node.op_type.lower(), node.attr("direction", "forward")
    if direction not in DIRECTIONS:
        raise node.fail(f"direction is {direction!r}; expected one of {', '.join(DIRECTIONS)}")
    if int(node.attr("hidden_size", r.shape[-1])) != r.shape[-1]:
        raise node.fail(f"hidden_size is {node.attr('hidden_size')}; its recurrence weight is {r.shape}")
    given = {name: value for name, value in zip(OPTIONAL, optional, strict=False) if value is not None}
    batch_first = bool(node.attr("layout", 0))
    if batch_first:
        x = node.apply("transpose", x, perm=(1, 0, 2))
        given |= {k: node.apply("transpose", given[k], perm=(1, 0, 2)) for k in ("h", "c") if k in given}
    attrs = recurrent_attrs(
        cell,
        direction,
        tuple(given),
        **_functions(node, len(FUNCTIONS_OF[cell]) * DIRECTIONS[direction]),
        clip=float(node.attr("clip", math.inf)),
        linear_before_reset=bool(node.attr("linear_before_reset", 0)),
        input_forget=bool(node.attr("input_forget", 0)),
    )
    y, *states = node.apply("recurrent", x, w, r, *given.values(), **attrs)
    if not batch_first:
        return y, *states
    return node.apply("transpose", y, perm=(2, 0, 1, 3)), *(node.apply("transpose", s, perm=(1, 0, 2)) for s in states)


def _functions(node: OnnxNode, count: int) -> dict[str, tuple]:
    """Activations by ONNX's names, and the parameters of those that have some: stated in their order, or defaults."""
    if (stated := node.attr("activations")) is None:
        return {}
    known = {name.lower(): name for name in PARAMETERS}
    texts = [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in stated]
    if len(texts) != count or any(text.lower() not in known for text in texts):
        raise node.fail(f"activations is {texts}; expected {count} of {', '.join(PARAMETERS)}")
    names = tuple(known[text.lower()] for text in texts)
    columns: list[tuple[float, ...]] = []
    for index, attribute in enumerate(("activation_alpha", "activation_beta")):
        values = iter(node.attr(attribute, ()))
        columns.append(
            tuple(
                float(next(values, PARAMETERS[name][index])) if len(PARAMETERS[name]) > index else 0.0 for name in names
            )
        )
    return {"activations": names, "alphas": columns[0], "betas": columns[1]}


@writer("recurrent")
def write_recurrent(w: Writer, expr: Apply) -> None:
    """RNN, GRU or LSTM."""
    a = expr.attrs
    values = dict(zip(a["given"], expr.inputs[3:], strict=True))
    last = max((OPTIONAL.index(name) + 1 for name in values), default=0)
    names = [w.value(values[name]) if name in values else "" for name in OPTIONAL[:last]]
    attrs: dict[str, Any] = {"hidden_size": expr.inputs[2].shape[2], "direction": a["direction"]}
    functions = list(zip(a["activations"], a["alphas"], a["betas"], strict=True))
    if a["activations"] != FUNCTIONS_OF[a["cell"]] * DIRECTIONS[a["direction"]]:
        attrs["activations"] = list(a["activations"])
        for index, attribute in enumerate(("activation_alpha", "activation_beta")):
            if stated := [f[index + 1] for f in functions if len(PARAMETERS[f[0]]) > index]:
                attrs[attribute] = stated
    if not math.isinf(a["clip"]):
        attrs["clip"] = a["clip"]
    flag = {"gru": "linear_before_reset", "lstm": "input_forget"}.get(a["cell"])
    if flag and a[flag]:
        attrs[flag] = 1
    w.emit(a["cell"].upper(), expr, [*map(w.value, expr.inputs[:3]), *names], **attrs)
