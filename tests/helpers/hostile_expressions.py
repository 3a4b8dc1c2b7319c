"""Expressions of `edit`, and what a stranger may write instead: paths into Python, endless numbers, torn words."""

from __future__ import annotations

import functools
import random
import re
from pathlib import Path
from typing import Any

import numpy as np

import megengine.functional as F
import megengine.module as M
from megengine import tensor
from megengine.cli.edit_options import EDIT_OPTIONS, Session, take
from megengine.core.errors import MegEngineError
from megengine.traced_module import lower, trace_module

SAMPLES = (
    "calls --insert relu_out=F.minimum(_, 6) * 2",
    "calls --insert conv_out=_ - F.abs(x.reshape(1, -1)).mean() / 2 ** 3",
    "calls --insert relu_out=self.spare.inner(self.spare[0](_))",
    "calls --insert conv_out=F.concat([_, F.relu(_), -_], axis=1).sum(1, True) + conv_out",
    "calls --replace relu_out=conv_out",
    "calls --replace relu_out=megengine.functional.nn.softmax(conv_out, axis=-1)",
    "calls --set sum_out:axis=2",
    "ops --insert relu_out=relu(_ - 0.5) * 2",
    "ops --replace relu_out=abs(conv_conv2d_out)",
)
_HOSTILE = (
    "self self.owner self.owner.__dict__ self.spare self.spare.trap self.trap self.trap.go __class__ __globals__ "
    "__init__ __subclasses__() __builtins__ owner graph _graph expr undo erase clone __import__('os') eval exec open "
    "print _.numpy _.item _.set_value _._call _.graph _.owner _.spec.__class__ _.__class__.__mro__ F.copy F.full "
    "F.zeros((10**6,10**6)) F.__dict__ F.math.os np.load megengine.load M.Conv2d lambda:0 [i for i in _] {} {1:2} "
    "9**9**9 2**63 1/0 10**400 1e999 -1 0 None True ... b'x' 1j 'x' '{0._graph}'.format f'{_}' 'x'*10**9 [0]*10**9 "
    "*_ **_ a:=1 relu_out conv_out x _ ( ) [ ] , . = + - * / ** : \\ ' \" \x00 \x1b[2J \u202e \ud800"
)
HOSTILE = _HOSTILE.split(" ")


class RanError(BaseException):
    """Something that is no layer was read, called or compared."""


class Trap:
    """An attribute that is no layer: whatever is done with it is told."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RanError(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RanError("called")


class _Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = M.Conv2d(3, 4, 3, padding=1)
        self.spare = M.Sequential(M.ReLU(), M.Sigmoid())
        self.spare.inner = M.Sigmoid()

    def forward(self, x: Any) -> Any:
        return F.sum(F.relu(self.conv(x)), axis=1)


@functools.cache
def session(level: str) -> Session:
    """A model with things in it that must not be touched."""
    made = trace_module(_Net().eval(), tensor(np.zeros((1, 3, 6, 6), np.float32)))
    if level == "calls":
        for module in (made, made.spare):
            object.__getattribute__(module, "__dict__")["trap"] = Trap()
    else:
        made = lower(made)
    made.graph.keep_edits()
    return Session(made, made.graph)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Some of the words of an expression replaced, removed, doubled, or put into one another."""
    text = content.decode()
    head, _, expression = text.partition("=")
    words = re.findall(r"\w+|\s+|.", expression)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(words) + 1)
        kind = rng.randrange(7)
        if kind <= 2 and words:
            words[at % len(words)] = rng.choice(HOSTILE)
        elif kind == 3:
            words[at:at] = [rng.choice((".", "(", "*", "", ",")), rng.choice(HOSTILE)]
        elif kind == 4:
            del words[at : at + rng.randrange(1, 4)]
        elif kind == 5:
            words[at:at] = words[rng.randrange(len(words) + 1) :][: rng.randrange(1, 9)]
        else:
            words = [*rng.choice((("-",), ("(", "("), ("F.relu(",), ("_.sum(",))) * rng.choice((1, 3, 3000)), *words]
    return f"{head}={''.join(words)}".encode("utf-8", "surrogatepass")


def load(path: Path) -> str:
    """Make the edit and take it back; a refused one changes nothing.

    Raises:
        MegEngineError: it is refused.
    """
    level, option, text = path.read_bytes().decode("utf-8", "surrogatepass").split(" ", 2)
    one = session(level)
    before = repr(one.model)
    edit = next(edit for edit in EDIT_OPTIONS if option in edit.names)
    try:
        take(one, edit, [text] if edit.together else text)
    except MegEngineError:
        assert repr(one.model) == before, "a refused edit changed the model"
        raise
    one.graph.lint()
    after = repr(one.model)
    while one.graph.undo():
        pass
    assert repr(one.model) == before, "an edit was not taken back"
    return after
