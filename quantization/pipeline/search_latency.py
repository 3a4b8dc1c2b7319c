"""Tables of the time that steps of integer networks take, by op, shapes and bits: measured here, or a user's file."""

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import OptionError, nearest_file
from megengine.core.files import replacing
from megengine.core.text import counted
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph

COLUMNS = ("op", "shape", "bits", "ms")
Row = tuple[str, str, str]


@dataclass(slots=True)
class LatencyTable:
    """Milliseconds of steps.

    A row has an op of integer networks, such as "qconv2d", the shapes of the data, weights and result ("1x16x112x112
    96x16x1x1 1x96x112x112"), and their bits ("8 4 16"; 32 in float).

    Args:
        rows: milliseconds by (op, shape, bits).
        source: the file they are from.
    """

    rows: dict[Row, float] = field(default_factory=dict)
    source: str = ""

    def of(self, graph: InternalGraph) -> float:
        """Milliseconds of a network. Steps that are no layers take none where the table does not have them.

        Raises OptionError if a layer is missing.
        """
        missing, total = [], 0.0
        for expr in _steps(graph):
            row = row_of(expr)
            if row in self.rows:
                total += self.rows[row]
            elif _is_layer(expr):
                missing.append((expr.output.name, row))
        if missing:
            name, (op, shape, bits) = missing[0]
            raise OptionError(
                f"latency table {self.source!r}: {counted(len(missing), 'layer')} not found, the first {name!r}: "
                f"op {op!r}, shape {shape!r}, bits {bits!r}; add the row with its milliseconds, or measure a table on "
                "the device: a search without --latency-table, with --save-latencies FILE"
            )
        return total

    def learn(self, graph: InternalGraph, times: Iterable[tuple[str, float]]) -> None:
        """Take up milliseconds by the name of a step of a plan of the graph; a row known already keeps its least."""
        rows = {node.name: row_of(expr) for expr in _steps(graph) for node in expr.outputs}
        taken: dict[str, float] = {}
        for name, ms in times:
            if name in rows:
                taken[name] = taken.get(name, 0.0) + ms
        for name, ms in taken.items():
            row = rows[name]
            self.rows[row] = min(ms, self.rows.get(row, math.inf))

    def save(self, path: Path) -> None:
        """Write a file: .json, a list of objects with the columns; any other name, CSV with a first line of names."""
        listed = [(*row, ms) for row, ms in sorted(self.rows.items())]
        with replacing(path) as file:
            if path.suffix == ".json":
                objects = [dict(zip(COLUMNS, one, strict=True)) for one in listed]
                file.write((json.dumps(objects, indent=1) + "\n").encode())
            else:
                text = io.StringIO()
                csv.writer(text, lineterminator="\n").writerows([COLUMNS, *listed])
                file.write(text.getvalue().encode())

    @classmethod
    def load(cls, path: Path) -> "LatencyTable":
        """The table of a file. Raises OptionError, which names the file and the row, if it is none."""
        try:
            text = path.read_text(encoding="utf-8-sig")
            objects = json.loads(text) if path.suffix == ".json" else list(csv.DictReader(io.StringIO(text)))
        except FileNotFoundError:
            raise OptionError(f"latency table {str(path)!r}: no such file{nearest_file(path)}") from None
        except (OSError, ValueError, csv.Error) as error:
            raise OptionError(f"latency table {str(path)!r} cannot be read: {error}") from error
        if not isinstance(objects, list) or not objects:
            raise OptionError(f"latency table {str(path)!r}: no rows; expected columns {', '.join(COLUMNS)}")
        return cls(dict(_read(one, at, path) for at, one in enumerate(objects, 1)), str(path))


def _read(one: object, at: int, path: Path) -> tuple[Row, float]:
    where = f"latency table {str(path)!r}, row {at}"
    absent = [name for name in COLUMNS if not isinstance(one, dict) or one.get(name) is None]
    if absent or not isinstance(one, dict):
        raise OptionError(f"{where}: no {', '.join(absent)}; expected columns {', '.join(COLUMNS)}")
    try:
        ms = float(one["ms"])
    except (TypeError, ValueError):
        ms = math.nan
    if not 0 <= ms < math.inf:
        raise OptionError(f"{where}: ms is {one['ms']!r}; expected milliseconds from 0 on")
    op, shape, bits = (" ".join(str(one[name]).split()) for name in COLUMNS[:3])
    return (op, shape, bits), ms


def row_of(expr: Apply) -> Row:
    """The row of a step: of what it reads only data and weights, of what it gives the first result."""
    read = [n.spec for n in expr.inputs[:2]]
    specs = [*read[:1], *[s for s in read[1:] if isinstance(s.dtype, QuantizedDType)], expr.outputs[0].spec]
    shapes = " ".join("x".join(map(str, s.shape)) or "1" for s in specs)
    dtypes = [s.dtype for s in specs]
    bits = " ".join(str(d.bits if isinstance(d, QuantizedDType) else 8 * d.itemsize) for d in dtypes)
    return expr.op, shapes, bits


def _is_layer(expr: Apply) -> bool:
    """Whether weights are among what it reads."""
    return any(isinstance(n.expr, Constant) and n.spec.ndim > 1 for n in expr.inputs[1:2])


def _steps(graph: InternalGraph) -> list[Apply]:
    return [expr for expr in graph.exprs() if isinstance(expr, Apply)]
