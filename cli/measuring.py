"""What the report of a network measures: time, the check of the integers, the plan, pictures with predictions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine import plan
from megengine.cli.benching import interleaved
from megengine.cli.drawing_parts import predictions
from megengine.cli.images import Recipe
from megengine.cli.verifying import verify_line
from megengine.quantization import verify


def measured(model: Any, held: Sequence[Any], how: Recipe | None) -> tuple[dict[str, str], dict[str, Any]]:
    """Facts and parts of a section that take runs of the network: time, the check, the plan, pictures."""
    plans = [plan.compile(graph, threads=1) for graph in (model.float_graph, model.integer_graph)]
    ms = interleaved({"float": lambda: plans[0](*held[0]), "int8": lambda: plans[1](*held[0])}, rounds=10)
    checked = verify(model, held[:2])
    before, after = ([one(*x)[0] for x in held] for one in plans)
    rows = before[0].ndim == 2 and len(held[0]) == 1 and len(before[0]) == 1
    shown = predictions([x for (x,) in held], *map(np.concatenate, (before, after)), how) if rows else []
    more = {"plan": plans[1].describe(), "verify": verify_line(checked), "exact": checked.exact, "pictures": shown}
    return {"CPU time, one thread": f"{ms['float']:.2f} → {ms['int8']:.2f} ms"}, more
