"""Tables of `module_stats`: rows with shares and bars, and how they print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from megengine.core.exports import own_names
from megengine.logger import get_logger

Row = dict[str, Any]


def sizeof_fmt(num: float, suffix: str = "B") -> str:
    """A count with a prefix, three decimals: bytes in steps of 1024 ("1.125 KiB"), others of 1000 ("56.448 KOPs")."""
    scale, infix = (1024.0, "i") if suffix == "B" else (1000.0, "")
    for unit in ("", "K", "M", "G", "T", "P", "E", "Z"):
        if abs(num) < scale:
            return f"{num:3.3f} {unit}{infix if unit else ''}{suffix}"
        num /= scale
    return f"{num:3.3f} Y{infix}{suffix}"


def dict2table(list_of_dict: Iterable[Mapping[str, Any]], header: Sequence[str]) -> list[list[Any]]:
    """The header and one list for each dict, in its order; an empty text for what a dict lacks."""
    return [list(header), *([row.get(name, "") for name in header] for row in list_of_dict)]


def printed(table: Sequence[Sequence[Any]]) -> str:
    """A table as text with aligned columns and rules."""
    cells = [[str(cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    rule = "  ".join("-" * w for w in widths)
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def _with_shares(rows: list[Row], count: str, bar: str, bar_length_max: int) -> tuple[float, list[Row]]:
    total, largest = sum(r[count] for r in rows), max((r[count] for r in rows), default=0)
    done, shared = 0, []
    for row in rows:
        done += row[count]
        ratio = row[count] / total if total else 0.0
        length = int(row[count] / largest * bar_length_max) if largest else 0
        cumulated = {"flops_cum": sizeof_fmt(done, "OPs")} if bar == "bar" else {"size_cum": sizeof_fmt(done)}
        shared.append({**row, **cumulated, "ratio": ratio, "percentage": f"{ratio:.2%}", bar: "#" * length})
    return total, shared


def sum_op_stats(flops: list[Row], bar_length_max: int = 20) -> tuple[int, list[Row]]:
    """Total of `flops_num`, and the rows with shares and bars, a row "total" last. The argument is not changed."""
    total, rows = _with_shares(flops, "flops_num", "bar", bar_length_max)
    channels = sum(int(shape[1]) for row in flops for shape in row["output_shapes"] if len(shape) >= 2)
    rows = [{**row, "flops": sizeof_fmt(row["flops_num"], "OPs")} for row in rows]
    return int(total), [*rows, {"name": "total", "flops": sizeof_fmt(total, "OPs"), "output_shapes": channels}]


def _sizes(stats: list[Row], dim: str, bar_length_max: int) -> tuple[int, int, list[Row]]:
    total, rows = _with_shares(stats, "size", "size_bar", bar_length_max)
    elements = int(sum(row[dim] for row in stats))
    rows = [{**row, "size": sizeof_fmt(row["size"])} for row in rows]
    return elements, int(total), [*rows, {"name": "total", dim: elements, "size": sizeof_fmt(total)}]


def sum_param_stats(params: list[Row], bar_length_max: int = 20) -> tuple[int, int, list[Row]]:
    """Elements, bytes, and the rows with shares and bars, a row "total" last. The argument is not changed."""
    return _sizes(params, "param_dim", bar_length_max)


def sum_activations_stats(activations: list[Row], bar_length_max: int = 20) -> tuple[int, int, list[Row]]:
    """Elements, bytes, and the rows with shares and bars, a row "total" last. The argument is not changed."""
    return _sizes(activations, "act_dim", bar_length_max)


def _print(title: str, rows: Iterable[Row], header: Sequence[str]) -> None:
    get_logger(__name__).info(f"{title}\n{printed(dict2table(rows, header))}")


def print_op_stats(flops: list[Row]) -> None:
    """Log the rows of `sum_op_stats`; receptive fields too, where rows have them."""
    header = ["name", "class_name", "input_shapes", "output_shapes", "flops", "flops_cum", "percentage", "bar"]
    if any("receptive_field" in row for row in flops):
        header[4:4] = ["receptive_field", "stride"]
    _print("flops stats:", flops, header)


def print_param_stats(params: list[Row]) -> None:
    """Log the rows of `sum_param_stats`."""
    header = "name dtype shape mean std param_dim nbits size size_cum percentage size_bar"
    _print("param stats:", params, header.split())


def print_activations_stats(activations: list[Row], has_input: bool = False) -> None:
    """Log the rows of `sum_activations_stats`; with `has_input` their means too."""
    moments = " mean std" if has_input else ""
    header = f"name class_name dtype shape{moments} nbits act_dim size size_cum percentage size_bar"
    _print("activations stats:", activations, header.split())


def print_summary(**kwargs: Any) -> None:
    """Log names and values as a table of two columns."""
    _print("summary", ({"item": k, "value": v} for k, v in kwargs.items()), ["item", "value"])


__all__ = own_names(globals())
