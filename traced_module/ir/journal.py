"""What was done to a graph, so that it can be undone and done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from megengine.core.errors import GraphError
from megengine.traced_module.ir.methods import methods

# A primitive change is a function and its arguments, the last two of which are the old and the new value. The same
# function with these two exchanged takes the change back.
Change = tuple[Callable[..., None], tuple[Any, ...]]
Counts = tuple[int, int]  # ids of nodes and of expressions


@dataclass(frozen=True, slots=True)
class Origin:
    """`function(*given)` gives a layer or tensor, or several of them, of which this is the one at `index`."""

    function: str
    given: tuple[Any, ...]
    index: int | None = None


@dataclass(slots=True)
class Transaction:
    """Edits that are undone together: their changes in order, as data too, and the counts of ids before and after.

    A *deferring* one may make calls impossible as long as later edits repair them: these are `postponed`.
    """

    before: Counts
    what: str = ""
    changes: list[Change] = field(default_factory=list)
    after: Counts = (0, 0)
    recorder: Any = None  # the `Recorder` of the changes for the edit log
    made: list[Any] = field(default_factory=list)  # expressions that were put in
    deferring: bool = False
    depth: int = 0  # of edits in edits
    edits: list[tuple[str, int]] = field(default_factory=list)  # (name, how many changes were recorded before it)
    postponed: dict[Any, tuple[int, Exception]] = field(default_factory=dict)  # expression -> edit, what it raises
    origins: dict[int, tuple[Any, Origin]] = field(default_factory=dict)  # id of a layer or tensor -> it, its origin


class _Body:
    """The body of a transaction, or of a part of the open one. A class, as a generator takes longer to enter."""

    __slots__ = ("at", "counts", "deferring", "is_part", "journal", "what")

    def __init__(self, journal: Journal, what: str, deferring: bool) -> None:
        self.journal, self.what, self.deferring = journal, what, deferring

    def __enter__(self) -> None:
        journal, transaction = self.journal, self.journal.open
        self.is_part, self.counts = transaction is not None, journal.counts
        if transaction is None:
            journal.open = transaction = Transaction(self.counts, self.what, deferring=self.deferring)
        recorded = (0, 0) if transaction.recorder is None else transaction.recorder.size
        self.at = len(transaction.changes), len(transaction.made), recorded
        if self.is_part:
            transaction.depth += 1
            if transaction.deferring and transaction.depth == 1:
                transaction.edits.append((self.what, recorded[0]))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        journal, transaction = self.journal, self.journal.open
        assert transaction is not None
        if self.is_part:
            transaction.depth -= 1
            if error is not None:
                self._revert(transaction)
            return
        complete = False
        try:
            if error is None:
                _settle(journal)
                complete = True
            elif transaction.postponed:
                error.add_note(_unrepaired(transaction))
        finally:
            if not complete:
                self._revert(transaction)
            journal.open = None
        if complete and transaction.changes and journal.recording:
            transaction.after = journal.counts
            if transaction.recorder is not None:
                transaction.recorder.close()
            journal.done.append(transaction)
            journal.undone.clear()  # what was undone before cannot be done again

    def _revert(self, transaction: Transaction) -> None:
        changes, inserted, recorded = self.at
        _take_back(transaction.changes[changes:])
        del transaction.changes[changes:], transaction.made[inserted:]
        if transaction.recorder is not None:
            transaction.recorder.forget_since(recorded)
        self.journal.counts = self.counts


class _Run:
    """The body in which a pass or rule is at work."""

    __slots__ = ("name", "running")

    def __init__(self, running: list[str], name: str) -> None:
        self.running, self.name = running, name

    def __enter__(self) -> None:
        self.running.append(self.name)

    def __exit__(self, *error: object) -> None:
        self.running.pop()


def _settle(journal: Journal) -> None:
    """Infer again what edits of a transaction made impossible. Raises the error of the first that stays so."""
    before: set[Any] | None = None
    postponed = journal.postponed
    while postponed and postponed.keys() != before:
        before = set(postponed)
        for expr in list(before):
            methods.retry(expr)
    if not postponed:
        return
    assert journal.open is not None
    expr, (_, error) = min(postponed.items(), key=lambda item: item[1][0])
    error.args = (f"{error.args[0] if error.args else error}; {_unrepaired(journal.open)}; nothing was changed",)
    error.add_note(f"in {expr!r}")
    raise error


def _unrepaired(transaction: Transaction) -> str:
    """Which edit was the first that made a call impossible."""
    expr, (number, _) = min(transaction.postponed.items(), key=lambda item: item[1][0])
    impossible = f"makes {expr.name!r} of {expr.top_graph.qualname} impossible"
    if not transaction.edits:
        return f"{transaction.what} {impossible}"
    what, start = transaction.edits[number]
    end = transaction.edits[number + 1][1] if number + 1 < len(transaction.edits) else None
    words = "" if transaction.recorder is None else transaction.recorder.in_words(start, end)
    return (
        f"edit {number + 1} of {len(transaction.edits)} in this transaction, {what}{f' ({words})' if words else ''}, "
        f"{impossible}, and no later edit repairs it"
    )


class Journal:
    """Transactions done and undone. While `recording` is off nothing is kept (graphs under construction)."""

    __slots__ = ("addresses", "done", "next_expr", "next_node", "open", "recording", "running", "undone")

    def __init__(self) -> None:
        self.next_node = 0
        self.next_expr = 0
        self.recording = False
        self.open: Transaction | None = None
        self.done: list[Transaction] = []
        self.undone: list[Transaction] = []
        self.running: list[str] = []  # passes and rules at work
        self.addresses: dict[int, Any] = {}  # how logs name the graphs (see `edit_records.address_of`)

    @property
    def counts(self) -> Counts:
        """The ids that the next node and the next expression get."""
        return self.next_node, self.next_expr

    @counts.setter
    def counts(self, counts: Counts) -> None:
        self.next_node, self.next_expr = counts

    def new_expr_id(self) -> int:
        self.next_expr += 1
        return self.next_expr - 1

    def skip(self, counts: Counts) -> None:
        """Leave out this many ids of nodes and of expressions."""
        self.next_node += counts[0]
        self.next_expr += counts[1]

    def change(self, exchange: Callable[..., None], args: tuple[Any, ...], record: tuple[Any, ...] = ()) -> None:
        """Perform one primitive change, `exchange(*args)`, and remember it when a transaction is open.

        The last two arguments are the old and the new value; exchanged, they take the change back. A change holds a
        function of the module and its arguments and no closure: a long session keeps many, and the search for garbage
        visits all that they hold. `record` describes the change: the name of a method of `Recorder` and its arguments.
        """
        transaction = self.open
        if transaction is None:
            exchange(*args)
            return
        if record and self.recording:
            if transaction.recorder is None:
                transaction.recorder = methods.recorder(self, transaction.origins)
            transaction.recorder.note(*record)
        exchange(*args)
        transaction.changes.append((exchange, args))

    def runs(self, name: str) -> AbstractContextManager[None]:
        """A pass or rule of that name is at work in the body."""
        return _Run(self.running, name)

    def computed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function that is declared by `computed_again` gives; logs of edits that use it compute it again."""
        result = function(*arguments)
        if self.open is not None and self.recording:
            for i, value in enumerate(result) if isinstance(result, tuple) else [(None, result)]:
                self.open.origins[id(value)] = value, Origin(function.__name__, arguments, i)
        return result

    def transaction(self, what: str = "transaction", *, deferring: bool = False) -> AbstractContextManager[None]:
        """A transaction around the body, or a part of the open one. If the body raises, its changes are taken back.

        Changes are checked at once, unless it is `deferring` or a part of such a one.
        """
        return _Body(self, what, deferring)

    @property
    def made(self) -> list[Any]:
        """Expressions that the open transaction has put in so far."""
        return [] if self.open is None else self.open.made

    @property
    def deferring(self) -> bool:
        """True in a transaction whose edits may be checked at its end."""
        return self.open is not None and self.open.deferring

    @property
    def postponed(self) -> dict[Any, tuple[int, Exception]]:
        """Expressions that are impossible at present: the number of the edit, and what inferring them raises."""
        return {} if self.open is None else self.open.postponed

    def postpone(self, expr: Any, error: Exception) -> None:
        """Remember that an expression has become impossible. Raises the error where nothing can repair it later."""
        transaction = self.open
        if transaction is None or not transaction.deferring:
            raise error
        number = transaction.postponed[expr][0] if expr in transaction.postponed else max(len(transaction.edits) - 1, 0)
        transaction.postponed[expr] = number, error

    def undo(self) -> bool:
        """Take back the last transaction; False if there is none. Raises GraphError while one is open."""
        self._check_closed("undo")
        if not self.done:
            return False
        transaction = self.done.pop()
        _take_back(transaction.changes)
        self.counts = transaction.before
        self.undone.append(transaction)
        return True

    def redo(self) -> bool:
        """Do again what was undone last; False if there is nothing. Raises GraphError while a transaction is open."""
        self._check_closed("redo")
        if not self.undone:
            return False
        transaction = self.undone.pop()
        for exchange, args in transaction.changes:
            exchange(*args)
        self.counts = transaction.after
        self.done.append(transaction)
        return True

    def _check_closed(self, what: str) -> None:
        """What the open transaction made so far may need what would be taken back."""
        if self.open is not None:
            raise GraphError(
                f"{what}: {self.open.what!r} is open; leave its `with` body first (an exception that leaves it takes "
                "back what the body did)"
            )


def _take_back(changes: Sequence[Change]) -> None:
    for exchange, args in reversed(changes):
        exchange(*args[:-2], args[-1], args[-2])
