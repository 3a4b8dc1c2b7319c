"""What graphs, expressions and nodes do with the help of code that stands on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class Methods:
    """Functions that methods of the same names call: `methods.replace_node(graph, {old: new})`."""

    # of expressions and nodes
    run: Callable[[Any, Sequence[Any]], Sequence[Any]]
    set_arg: Callable[[Any, str | int, Any], None]
    set_arguments: Callable[[Any, Sequence[Any], Mapping[str, Any]], None]
    set_attribute: Callable[[Any, str, Any], str]
    set_inputs: Callable[[Any, Sequence[Any]], None]
    # edits of graphs
    add_input_node: Callable[[Any, Sequence[int], Any, str], Any]
    add_output_node: Callable[..., None]
    apply: Callable[..., Any]
    compile: Callable[[Any], None]
    constant: Callable[..., Any]
    erase: Callable[[Any, Any], None]
    insertion: Callable[..., AbstractContextManager[None]]
    rename: Callable[..., None]
    replace_module: Callable[[Any, Any, Any], None]
    replace_node: Callable[[Any, Mapping[Any, Any]], None]
    reset_inputs: Callable[[Any, Sequence[Any], Mapping[str, Any]], list[Any]]
    reset_outputs: Callable[[Any, Any], None]
    value_of: Callable[..., Any]
    # of traced modules
    assigned: Callable[[Any, str, Any, Any], bool]
    check_deletable: Callable[[Any, str], None]
    pieces: Callable[[Any], tuple[Any, ...]]
    rebuilt: Callable[..., Any]
    # the rest
    check_same: Callable[[Any, Sequence[Any]], None]
    cloned: Callable[[Any], Any]
    interpret: Callable[[Any, Sequence[Any]], list[Any]]
    lint: Callable[[Any], None]
    log_of: Callable[[Any], Any]
    notebook_html: Callable[[Sequence[Any]], str | None]
    notebook_svg: Callable[[Sequence[Any]], str | None]
    recorder: Callable[[Any, dict[int, Any]], Any]
    reduced: Callable[[Any], Any]
    retry: Callable[[Any], None]
    to_graphviz: Callable[..., Any]


methods: Methods = object.__new__(Methods)


def hand_in(functions: Methods) -> None:
    """Let methods call these functions. `megengine.traced_module.methods` does it: the core imports nothing above."""
    vars(methods).update(vars(functions))
