"""Changes of an edit log in words: what those of a step come to, by the module whose graph they change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Edit = Mapping[str, Any]


def in_words(edits: Iterable[Edit]) -> str:
    """What changes come to in a few words; "" for what follows from others."""
    of_module: dict[str, _Sum] = {}
    for edit in edits:
        path = str(edit["graph"][0]) if edit.get("graph") else ""
        of_module.setdefault(path, _Sum()).add(edit)
    parts = [(path, made.words()) for path, made in of_module.items()]
    return "; ".join(f"in {path}: {words}" if path else words for path, words in parts if words)


class _Sum:
    """The changes of the graphs of one module. What is put in and taken out in between is left out."""

    def __init__(self) -> None:
        self.put: list[_Value] = []  # values that are new, in order
        self.now: dict[str, _Value] = {}  # those by their names of the moment
        self.layers: dict[str, bool] = {}  # path -> whether there was one
        self.gone: dict[str, bool] = {}  # name -> whether it was a constant
        self.others: list[tuple[Edit, list[_Value]]] = []

    def add(self, edit: Edit) -> None:
        do = edit.get("do")
        if do == "link":
            for item in edit["expr"]["outputs"]:
                value = self.now[str(item["name"])] = _Value(str(item["name"]))
                self.put.append(value)
        elif do == "unlink":
            self._take_out(str(edit["expr"]), str(edit.get("was", "")).startswith("Constant("))
        elif do == "rename" and edit["node"] in self.now:
            value = self.now[str(edit["new"])] = self.now.pop(edit["node"])
            value.name = str(edit["new"])
        elif do == "module":
            self.layers.setdefault(str(edit["path"]), bool(edit["was"]))
        elif do == "drop":
            path = ".".join(str(part) for part in (edit["path"], edit["name"]) if part)
            self.gone.setdefault(path, False)
        elif str(edit.get("expr")) not in self.now:
            used = edit.get("inputs") or edit.get("nodes") or ()
            self.others.append((edit, [self.now.get(name) or _Value(str(name)) for name in used]))

    def _take_out(self, name: str, constant: bool) -> None:
        value = self.now.pop(name, None)
        if value is None:
            self.gone[name] = constant
        else:
            value.name = ""

    def words(self) -> str:
        values = [value.name for value in self.put if value.name]
        layers = {path: was for path, was in self.layers.items() if path not in self.gone}
        another = [path for path, was in layers.items() if was] + [name for name in values if name in self.gone]
        new = [path for path, was in layers.items() if not was] + [name for name in values if name not in self.gone]
        gone = [name for name in self.gone if name not in values]
        calls = [name for name in gone if not self.gone[name]]  # constants go with the calls that used them
        sentences = [f"another {', '.join(dict.fromkeys(another))}" if another else ""]
        sentences.append(f"new {', '.join(dict.fromkeys(new))}" if new else "")
        sentences += [_sentence(edit, inputs) for edit, inputs in self.others if edit.get("expr") not in gone]
        sentences.append(f"without {', '.join(calls or gone)}" if gone else "")
        return "; ".join(text for text in sentences if text)


class _Value:
    """A value by the name that it has in the end; "" if it is taken out again."""

    def __init__(self, name: str) -> None:
        self.name = name


def _sentence(edit: Edit, used: list[_Value]) -> str:
    do = edit.get("do")
    if do == "use":
        changed = [f"{a} -> {b.name}" for a, b in zip(edit["was"], used, strict=False) if a != b.name]
        return f"{edit['expr']} uses {', '.join(changed)}" if changed else ""
    if do in ("arguments", "attrs"):
        return f"{edit['expr']} has other arguments"
    if do == "results":
        return f"{edit['expr']} gives {', '.join(str(item['name']) for item in edit['outputs'])}"
    if do == "rename":
        return f"{edit['node']} is now called {edit['new']}"
    if do == "meta":
        return f"{edit['expr']} is left in float" if edit["meta"].get("float") is True else ""
    if do == "setting":
        return f"{edit['name']} of {edit['node']} is {json.dumps(edit['value'])}"
    if do in ("inputs", "outputs") and edit["was"] != edit["nodes"]:
        return f"{do} are {', '.join(value.name for value in used)}"
    return str(edit.get("why", "")) if do == "unknown" else ""
