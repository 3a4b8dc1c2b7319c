"""What a search wants, and what it measured: budgets, networks, and the file with which it goes on."""

import json
import math
import numbers
from dataclasses import asdict, dataclass, field
from pathlib import Path

from megengine.core.calls import shown
from megengine.core.errors import OptionError
from megengine.core.files import replacing
from megengine.dispatch.refusal import fields_named
from megengine.quantization.pipeline.search_latency import LatencyTable


@fields_named
@dataclass(frozen=True, slots=True)
class Budget:
    """What a network may cost, and how well it must do; None for no matter.

    Args:
        bytes: of stored constants, at most.
        latency: at most, as a multiple of the network with every layer as the settings say.
        agreement: share of samples that answer as the float network, as expected by the noise; at least.
        sqnr_db: of the outputs, at least.
    """

    bytes: int | None = None
    latency: float | None = None
    agreement: float | None = None
    sqnr_db: float | None = None

    def __post_init__(self) -> None:
        if all(value is None for value in (self.bytes, self.latency, self.agreement, self.sqnr_db)):
            raise OptionError("search: no budget; give bytes, latency, agreement or sqnr_db")
        for name, value in asdict(self).items():
            if value is not None and not (isinstance(value, numbers.Real) and math.isfinite(value)):
                raise OptionError(f"search: {name} is {shown(value)}; expected a finite number or None")
        if self.agreement is not None and not 0 < self.agreement <= 1:
            raise OptionError(f"search: agreement is {self.agreement!r}; expected a share above 0, at most 1")

    def missed(self, point: "Point", base: "Point") -> float:
        """By how much a network misses the budgets, in parts of them, added up; 0 if it keeps all."""
        most = ((self.bytes, point.bytes), (self.latency, point.latency_ms / max(base.latency_ms, 1e-9)))
        least = ((self.agreement, point.agreement), (self.sqnr_db, point.sqnr_db))
        over = sum(max(0.0, has / limit - 1) for limit, has in most if limit is not None)
        return over + sum(max(0.0, 1 - has / limit) for limit, has in least if limit)


@dataclass(frozen=True, slots=True)
class Point:
    """A network that was quantized in full: its rules, and what was measured.

    `agreement` is the share of samples that is expected to answer as the float network, `counted` the share that does.
    `anew`: the rounding with which it was quantized from the start with its rules; "" for one that is put together of
    networks of one precision each.
    """

    rules: tuple[str, ...]
    bytes: int
    latency_ms: float
    sqnr_db: float
    agreement: float
    counted: float = 0.0
    anew: str = ""

    def beats(self, other: "Point") -> bool:
        """True if it is at least as good in everything, and better in something."""
        mine, theirs = ((-p.bytes, -p.latency_ms, p.sqnr_db, p.agreement) for p in (self, other))
        return mine != theirs and all(a >= b for a, b in zip(mine, theirs, strict=True))


@dataclass(slots=True)
class SearchState:
    """What a search measured, by "layer=precision".

    Args:
        key: digest of the network, the settings and the samples.
        noise: that the change alone brings to the outputs, relative to their power.
        cost: milliseconds that the change alone takes.
        steps: milliseconds of every step of the network in which nothing is changed.
        points: networks.
        table: milliseconds of the steps that were measured.
    """

    key: str
    noise: dict[str, float] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    table: LatencyTable = field(default_factory=LatencyTable)

    def save(self, path: Path) -> None:
        with replacing(path) as file:
            held = {**asdict(self), "table": [[*row, ms] for row, ms in self.table.rows.items()]}
            file.write((json.dumps(held, indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path, key: str) -> "SearchState":
        """The state of the same search. Raises OptionError for that of another one, or a damaged file."""
        if not path.exists():
            return cls(key)
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            points = [Point(**{**point, "rules": tuple(point["rules"])}) for point in held["points"]]
            noise, cost, steps = (
                {str(k): float(v) for k, v in held[name].items()} for name in ("noise", "cost", "steps")
            )
            table = LatencyTable({(op, shape, bits): float(ms) for op, shape, bits, ms in held["table"]})
            state = cls(held["key"], noise, cost, steps, points, table)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OptionError(f"search: {str(path)!r} is not the state of a search ({error}); remove it") from error
        if state.key != key:
            raise OptionError(
                f"search: {str(path)!r} is of another model, data or settings; remove it, or name another file"
            )
        return state
