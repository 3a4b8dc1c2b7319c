"""The edits of a session as data: saved, read, and done again on another copy of the model.

A log holds primitive changes (an expression put in, taken out, operands, names, specs, layers exchanged), grouped into
the steps that `undo` takes back, and not the calls of the editing functions. All edits come down to these few, passes
and rules included, so nothing escapes the log; doing them again runs neither passes nor user code, needs no version of
either to stay the same, and gives the same names and ids. The price is that a log fits copies of one model, not
similar ones: each change states what it was made for, and the first one that does not fit ends the replay.

Copies may have other weights. Layers and constants that our passes compute from weights stand in the log by how they
are computed (`computed`), and are computed from those of the copy. What a pass or rule of the user's puts in may be
computed from weights too: then the log holds a digest of the weights, and a model of others is refused.

A file is a zip of log.json and weights.safetensors. Functions stand in it by their public names, layers by the names
of their classes and their states: reading looks names up and runs nothing.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.errors import FileFormatError, GraphError, MegEngineError, brief, nearest_file
from megengine.traced_module.editing.edit_records import EditStep
from megengine.traced_module.editing.edit_replay import Replay
from megengine.traced_module.formats.archives import read_archive, write_archive
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.journal import Journal, Transaction
from megengine.traced_module.traced import TracedModule

FORMAT, VERSION, VERSIONS = "megengine-edits", 2, (1, 2)
LOG = "log.json"
_MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class EditLog:
    """Steps in the order in which they were made."""

    steps: tuple[EditStep, ...]

    def __len__(self) -> int:
        return len(self.steps)

    def to_text(self) -> str:
        return "\n".join(step.to_text() for step in self.steps)

    def save(self, path: str | Path) -> None:
        """Write the log; a file that is there is replaced in one step.

        Raises:
            WriteError: the path cannot be written.
            FileFormatError: an edit holds a value that has no place in the format; the
                step is named.
        """
        arrays: dict[str, np.ndarray] = {}
        steps = []
        for i, step in enumerate(self.steps):
            for edit in step.edits:
                _check_known(edit, i, step, len(self))
            arrays.update({f"{i}/{name}": array for name, array in step.arrays.items()})
            counters = {"before": list(step.before), "after": list(step.after)}
            lists = {"edits": step.edits, "tensors": step.tensors, "layers": step.layers}
            steps.append(json.dumps({"what": step.what, **counters, **lists}, allow_nan=False))
        head = json.dumps({"format": FORMAT, "version": VERSION})
        text = head[:-1] + ', "steps": [\n' + ",\n".join(steps) + "\n]}\n"
        write_archive(
            Path(path), LOG, text, arrays, zipfile.ZIP_DEFLATED if len(text) < 1 << 16 else zipfile.ZIP_STORED
        )

    @classmethod
    def load(cls, path: str | Path) -> EditLog:
        """Read what `save` wrote; nothing in the file is run, now or when it is replayed.

        Raises:
            FileFormatError: no such file, damaged, or not a log.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                described, arrays = read_archive(file, str(path), LOG)
        except OSError as error:
            absent = isinstance(error, FileNotFoundError)
            reason = f"no such file{nearest_file(path)}" if absent else f"cannot be read ({error.strerror})"
            raise FileFormatError(f"{path}: {reason}") from None
        try:
            if not isinstance(described, dict) or described.get("format") != FORMAT:
                stated = described.get("format") if isinstance(described, dict) else described
                raise FileFormatError(f"format is {brief(stated)}; expected {FORMAT!r}")
            if described.get("version") not in VERSIONS:
                known = " and ".join(map(str, VERSIONS))
                raise FileFormatError(
                    f"version is {brief(described.get('version'))}; this program reads versions {known}"
                )
            of_step: dict[str, dict[str, np.ndarray]] = {}
            for name, array in arrays.items():
                index, _, rest = name.partition("/")
                of_step.setdefault(index, {})[rest] = array
            return cls(tuple(_read_step(entry, of_step.get(str(i), {})) for i, entry in enumerate(described["steps"])))
        except (MegEngineError, *_MALFORMED) as error:
            raise FileFormatError(f"{path}: not a log of edits ({str(error)[:300]})") from error

    def replay(self, model: TracedModule | InternalGraph, *, allow: Sequence[type] = ()) -> None:
        """Make the same edits on another copy of the model, in place.

        The graph then prints, computes, and is saved as that of the session; its edits can be undone, and stand in its
        own log.

        Args:
            model: a traced module (or its outermost graph) as the session's was before its first edit.
            allow: classes of layers of yours that the log may hold.

        Raises:
            GraphError: an edit does not fit the model, or holds something unknown; the step is named. The model is as
                it was.
        """
        graph = _top(model)
        journal = graph.journal
        if journal.open is not None:
            raise GraphError("replay: a transaction is open; leave it first")
        recording, undone, count = journal.recording, list(journal.undone), len(journal.done)
        journal.recording = True
        try:
            replay = Replay(graph, allow)
            for i, step in enumerate(self.steps):
                self._one(replay, i, step)
            graph.lint()
        except BaseException:
            while len(journal.done) > count:
                journal.undo()
            journal.undone[:] = undone
            raise
        finally:
            journal.recording = recording

    def _one(self, replay: Replay, i: int, step: EditStep) -> None:
        for edit in step.edits:
            _check_known(edit, i, step, len(self))
        try:
            replay.step(step)
        except (MegEngineError, *_MALFORMED) as error:
            text = str(error) if isinstance(error, MegEngineError) else f"{type(error).__name__}: {error}"
            place = f"edit {i + 1} of {len(self)} ({step.what[:100]})"
            raise GraphError(f"replay: {place} does not fit this model: {text[:500]}; nothing was changed") from error


def _check_known(edit: dict[str, Any], i: int, step: EditStep, count: int) -> None:
    if edit.get("do") == "unknown":
        raise FileFormatError(f"edit {i + 1} of {count} ({step.what}) cannot be kept in a log: {edit.get('why')}")


def log_of(journal: Journal) -> EditLog:
    """The log of what a journal holds. A tensor or layer that several steps put in is described by the first."""
    seen: dict[int, list[int]] = {}
    return EditLog(tuple(_step(done, i, seen) for i, done in enumerate(journal.done)))


def _step(done: Transaction, index: int, seen: dict[int, list[int]]) -> EditStep:
    if done.recorder is None:
        return EditStep(done.what, done.before, done.after, [], [], [], {})
    edits, values = list(done.recorder.edits), done.recorder.writer.values
    arrays = dict(values.arrays)
    lists: list[list[dict[str, Any]]] = []
    for entries, objects in zip((values.tensors, values.layers), values.described, strict=True):
        described = []
        for place, (entry, value) in enumerate(zip(entries, objects, strict=True)):
            first = seen.setdefault(id(value), [index, place])
            described.append(entry if first == [index, place] else {"same": first})
            if "array" in entry and described[-1] is not entry:
                del arrays[entry["array"]]
        lists.append(described)
    return EditStep(done.what, done.before, done.after, edits, lists[0], lists[1], arrays)


def _top(model: Any) -> InternalGraph:
    if isinstance(model, TracedModule):
        if not model.graphs:
            raise GraphError("replay: the module has no graph")
        return model.graphs[0].top
    if not isinstance(model, InternalGraph):
        raise GraphError(f"replay: expected a TracedModule or an InternalGraph, got {type(model).__name__}")
    if model.top is not model:
        raise GraphError(f"replay: {model.qualname} is called by another graph; give the outermost one")
    return model


def _read_step(entry: dict[str, Any], arrays: dict[str, np.ndarray]) -> EditStep:
    counters = [(int(entry[name][0]), int(entry[name][1])) for name in ("before", "after")]
    lists = edits, tensors, layers = [entry[name] for name in ("edits", "tensors", "layers")]
    if not all(isinstance(one, list) for one in lists):
        raise FileFormatError("a step has counters or lists of another form")
    if not all(isinstance(item, dict) for one in lists for item in one):
        raise FileFormatError("a change, tensor or layer is no object")
    return EditStep(str(entry["what"]), counters[0], counters[1], edits, tensors, layers, arrays)
