"""Programs: a CUDA source with the macros that it is compiled with."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass

import numpy as np

from megengine.core.dtype import bfloat16

FOLDER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "src")
_INCLUDE = re.compile(r'#include "([\w.]+)"')
# C++'s names of the types of elements
TYPES = {
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.float16): "f16",
    bfloat16: "bf16",
    np.dtype(np.int8): "s8",
    np.dtype(np.uint8): "u8",
    np.dtype(np.int16): "short",
    np.dtype(np.uint16): "unsigned short",
    np.dtype(np.int32): "int",
    np.dtype(np.uint32): "unsigned",
    np.dtype(np.int64): "long long",
    np.dtype(np.uint64): "unsigned long long",
    np.dtype(np.bool_): "bool",
}


@functools.cache
def text_of(name: str) -> str:
    """The text of a source file or header."""
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return file.read()


def headers_of(text: str) -> dict[str, str]:
    """The headers that a source includes, directly or not, by name."""
    found: dict[str, str] = {}
    waiting = _INCLUDE.findall(text)
    while waiting:
        name = waiting.pop()
        if name not in found and os.path.exists(os.path.join(FOLDER, name)):
            found[name] = text_of(name)
            waiting += _INCLUDE.findall(found[name])
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A source file with macros, or a generated text: what is compiled as one unit. Who makes one keeps it.

    Names of macros have two letters or more, since headers have parameters of one.
    `exact` is false where the compiler may join a product and a sum into one operation that rounds once.
    """

    file: str
    macros: tuple[tuple[str, str], ...] = ()
    text: str = ""
    exact: bool = True

    @property
    def source(self) -> str:
        """The whole source, the macros included."""
        body = self.text or text_of(self.file)
        return '#include "portable.cuh"\n' + "".join(f"#define {name} {value}\n" for name, value in self.macros) + body


@functools.cache
def program(file: str, exact: bool = True, **macros: str | int) -> Program:
    """The program of a source file; each macro stands for a C++ type or a number."""
    return Program(file, tuple(sorted((name, str(value)) for name, value in macros.items())), exact=exact)


def type_name(dtype: np.dtype) -> str:
    """C++'s name of the type of elements of a dtype."""
    return TYPES[np.dtype(dtype)]
