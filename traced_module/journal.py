"""What was done to a graph, so that it can be undone and done again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megengine.traced_module.editing.edit_records import Recorder

Action = Callable[..., None]


class _Transaction:
    __slots__ = ("is_open", "journal", "what")

    def __init__(self, journal: Journal, what: str) -> None:
        self.journal, self.what = journal, what

    def __enter__(self) -> None:
        self.is_open = self.journal.begin(self.what)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self.is_open:
            (self.journal.commit if kind is None else self.journal.roll_back)()


@dataclass(slots=True)
class Step:
    """One transaction: its changes in order, what they are as data, and the counters before and after it."""

    before: tuple[int, int]
    what: str = ""
    changes: list[tuple[Action, Action, tuple[Any, ...]]] = field(default_factory=list)  # (do, undo, their arguments)
    after: tuple[int, int] = (0, 0)
    recorder: Recorder | None = None
    made: list[Any] = field(default_factory=list)  # expressions that it linked


class Journal:
    """Transactions done and undone. While `recording` is off nothing is kept (graphs under construction)."""

    __slots__ = ("addresses", "done", "next_expr", "next_node", "open", "recording", "undone")

    def __init__(self) -> None:
        self.next_node = 0
        self.next_expr = 0
        self.recording = False
        self.open: Step | None = None
        self.done: list[Step] = []
        self.undone: list[Step] = []
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
                from megengine.traced_module.editing.edit_records import Recorder

                step.recorder = Recorder(self.addresses)
            step.recorder.note(*record)
        do(*args)
        step.changes.append((do, undo, args))

    def step(self, what: str) -> AbstractContextManager[None]:
        """A transaction around the body, which is rolled back if the body raises."""
        return _Transaction(self, what)

    def begin(self, what: str = "") -> bool:
        """Open a transaction; False if one is open already, which the new one then joins."""
        if self.open is not None:
            return False
        self.open = Step((self.next_node, self.next_expr), what)
        return True

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
