"""What was done to a graph, so that it can be undone and done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from megengine.traced_module.ir.methods import methods

Action = Callable[..., None]


class _Transaction:
    __slots__ = ("deferring", "is_first", "journal", "mark", "what")

    def __init__(self, journal: Journal, what: str, deferring: bool) -> None:
        self.journal, self.what, self.deferring = journal, what, deferring

    def __enter__(self) -> None:
        self.is_first = self.journal.begin(self.what, deferring=self.deferring)
        step = self.journal.open
        assert step is not None
        if not self.is_first:
            self.mark = step.mark(self.journal)
            step.enter(self.what)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        journal, step = self.journal, self.journal.open
        assert step is not None
        if not self.is_first:
            step.depth -= 1
            if kind is not None:
                journal.revert_to(self.mark)
            return
        if kind is None:
            try:
                settle(journal)
            except BaseException:
                journal.roll_back()
                raise
            journal.commit()
            return
        if error is not None and step.postponed:
            error.add_note(_unrepaired(step))
        journal.roll_back()


@dataclass(frozen=True, slots=True)
class Origin:
    """`function(*given)` gives a layer or tensor, or several of them, of which this is the one at `index`."""

    function: str
    given: tuple[Any, ...]
    index: int | None = None


class Mark(NamedTuple):
    """A place in a step, to which it can be taken back."""

    changes: int
    made: int
    told: tuple[int, int]  # in the recorder
    counters: tuple[int, int]


@dataclass(slots=True)
class Step:
    """One transaction: its changes in order, what they are as data, and the counters before and after it.

    A *deferring* one may make calls impossible as long as later edits repair them: these are `postponed`.
    """

    before: tuple[int, int]
    what: str = ""
    changes: list[tuple[Action, Action, tuple[Any, ...]]] = field(default_factory=list)  # (do, undo, their arguments)
    after: tuple[int, int] = (0, 0)
    recorder: Any = None  # the `Recorder` of what the edit log tells
    made: list[Any] = field(default_factory=list)  # expressions that it linked
    deferring: bool = False
    depth: int = 0  # of edits in edits
    edits: list[tuple[str, int]] = field(default_factory=list)  # (name, how many changes were told before it)
    postponed: dict[Any, tuple[int, Exception]] = field(default_factory=dict)  # expression -> edit, what it raises
    origins: dict[int, tuple[Any, Origin]] = field(default_factory=dict)  # id of a layer or tensor -> it, how it came

    def mark(self, journal: Journal) -> Mark:
        """Where the step is."""
        told = (0, 0) if self.recorder is None else self.recorder.told
        return Mark(len(self.changes), len(self.made), told, (journal.next_node, journal.next_expr))

    def enter(self, what: str) -> None:
        """An edit begins."""
        self.depth += 1
        if self.deferring and self.depth == 1:
            self.edits.append((what, 0 if self.recorder is None else self.recorder.told[0]))


def settle(journal: Journal) -> None:
    """Infer again what edits of a transaction made impossible. Raises the error of the first that stays so."""
    step = journal.open
    assert step is not None
    before: set[Any] | None = None
    while step.postponed and step.postponed.keys() != before:
        before = set(step.postponed)
        for expr in list(before):
            methods.retry(expr)
    if not step.postponed:
        return
    expr, (_, error) = min(step.postponed.items(), key=lambda item: item[1][0])
    error.args = (f"{error.args[0] if error.args else error}; {_unrepaired(step)}; nothing was changed",)
    error.add_note(f"in {expr!r}")
    raise error


def _unrepaired(step: Step) -> str:
    """The first edit that made a call impossible."""
    expr, (number, _) = min(step.postponed.items(), key=lambda item: item[1][0])
    if not step.edits:
        return f"{step.what} makes {expr.name!r} of {expr.top_graph.qualname} impossible"
    what, start = step.edits[number]
    end = step.edits[number + 1][1] if number + 1 < len(step.edits) else None
    words = "" if step.recorder is None else step.recorder.in_words(start, end)
    told = f" ({words})" if words else ""
    return (
        f"edit {number + 1} of {len(step.edits)} in this transaction, {what}{told}, makes {expr.name!r} of "
        f"{expr.top_graph.qualname} impossible, and no later edit repairs it"
    )


class Journal:
    """Transactions done and undone. While `recording` is off nothing is kept (graphs under construction)."""

    __slots__ = ("addresses", "done", "next_expr", "next_node", "open", "recording", "running", "undone")

    def __init__(self) -> None:
        self.next_node = 0
        self.next_expr = 0
        self.recording = False
        self.open: Step | None = None
        self.done: list[Step] = []
        self.undone: list[Step] = []
        self.running: list[str] = []  # passes and rules at work
        self.addresses: dict[int, Any] = {}  # how logs name the graphs (see `edit_records.address_of`)

    def change(self, do: Action, undo: Action, args: tuple[Any, ...], record: tuple[Any, ...] = ()) -> None:
        """Perform one primitive change, `do(*args)`, and remember it when a transaction is open; `undo(*args)` takes
        it back.

        Functions of the module and their arguments, not closures: a long session keeps many, and what they hold is
        what the search for garbage looks through. `record` says what the change is: the name of a method of
        `Recorder` and its arguments.
        """
        step = self.open
        if step is None:
            do(*args)
            return
        if record and self.recording:
            if step.recorder is None:
                step.recorder = methods.recorder(self, step.origins)
            step.recorder.note(*record)
        do(*args)
        step.changes.append((do, undo, args))

    @contextmanager
    def runs(self, name: str) -> Iterator[None]:
        """A pass or rule of that name is at work in the body."""
        self.running.append(name)
        try:
            yield
        finally:
            self.running.pop()

    def note_origins(self, function: str, given: tuple[Any, ...], made: Any) -> None:
        """Remember how layers or tensors were computed that become a part of the graph."""
        if self.open is None or not self.recording:
            return
        for i, value in enumerate(made) if isinstance(made, tuple) else [(None, made)]:
            self.open.origins[id(value)] = value, Origin(function, given, i)

    def step(self, what: str, *, deferring: bool = False) -> AbstractContextManager[None]:
        """A transaction around the body, or a part of the open one; what the body did is taken back if it raises."""
        return _Transaction(self, what, deferring)

    def begin(self, what: str = "", *, deferring: bool = False) -> bool:
        """Open a transaction; False if one is open already, which the new one then joins."""
        if self.open is not None:
            return False
        self.open = Step((self.next_node, self.next_expr), what, deferring=deferring)
        return True

    @property
    def deferring(self) -> bool:
        """True in a transaction whose edits may be checked at its end."""
        return self.open is not None and self.open.deferring

    def postpone(self, expr: Any, error: Exception) -> None:
        """Remember that an expression has become impossible. Raises the error where nothing can repair it later."""
        step = self.open
        if step is None or not step.deferring:
            raise error
        first = step.postponed.get(expr)
        step.postponed[expr] = (max(len(step.edits) - 1, 0) if first is None else first[0], error)

    def revert_to(self, mark: Mark) -> None:
        """Take back what the open transaction did since."""
        step = self.open
        assert step is not None
        for _, undo, args in reversed(step.changes[mark.changes :]):
            undo(*args)
        del step.changes[mark.changes :], step.made[mark.made :]
        if step.recorder is not None:
            step.recorder.forget_since(mark.told)
        self.next_node, self.next_expr = mark.counters

    def commit(self) -> None:
        """Close the transaction; what was undone before it cannot be done again."""
        step, self.open = self.open, None
        if step is not None and step.changes and self.recording:
            step.after = (self.next_node, self.next_expr)
            if step.recorder is not None:
                step.recorder.close()
            self.done.append(step)
            self.undone.clear()

    def roll_back(self) -> None:
        """Close the transaction and take back what it did."""
        step, self.open = self.open, None
        assert step is not None
        self._revert(step)

    def _revert(self, step: Step) -> None:
        for _, undo, args in reversed(step.changes):
            undo(*args)
        self.next_node, self.next_expr = step.before

    def undo(self) -> bool:
        """Take back the last transaction; False if there is none."""
        if not self.done:
            return False
        step = self.done.pop()
        self._revert(step)
        self.undone.append(step)
        return True

    def redo(self) -> bool:
        """Do again what was undone last; False if there is nothing."""
        if not self.undone:
            return False
        step = self.undone.pop()
        for do, _, args in step.changes:
            do(*args)
        self.next_node, self.next_expr = step.after
        self.done.append(step)
        return True
