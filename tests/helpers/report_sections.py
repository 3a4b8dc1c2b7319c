"""Sections of reports, made without quantizing anything."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine.cli.report import Section
from megengine.core.spec import TensorSpec
from megengine.quantization import TensorStatistics
from megengine.traced_module import InternalGraph
from megengine.traced_module.editing.expressions import add_input, set_outputs


def edge(name: str, **changes: Any) -> dict[str, Any]:
    """An edge as `analyze` describes it."""
    values = {"op": "conv2d", "module": "m", "dtype": "quint8", "scale": 0.1, "zero_point": 3, "sqnr_db": 20.0}
    more = {
        "cosine": 0.9,
        "cut": 0.001,
        "steps_sqnr_db": 30.0,
        "noise_from": "its own steps",
        "observed": (-1.0, 2.0),
        "representable": (-0.5, 1.5),
    }
    return {"name": name, **values, **more, **changes}


def long_section(count: int, name: str = "network", layers: Sequence[dict[str, Any]] = ()) -> Section:
    """A network of so many edges, with their statistics and a graph in which each is a box."""
    rng = np.random.default_rng(0)
    layers = layers or [edge(f"edge_{i}", sqnr_db=20.0 + i % 7) for i in range(count)]
    statistics = {}
    for one in layers:
        statistics[one["name"]] = TensorStatistics(one["name"])
        statistics[one["name"]].update(rng.standard_normal(1000).astype(np.float32))
    graph = InternalGraph(name)
    x = add_input(graph, "x", TensorSpec((1, 4), np.dtype(np.float32)))
    for i in range(count):
        x = graph.apply("relu", x, name=f"edge_{i}", meta={"module": name})
    set_outputs(graph, [x])
    return Section(name, layers=layers, statistics=statistics, graph=graph)
