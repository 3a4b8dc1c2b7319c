"""Type stubs (`.pyi`) of what is declared by records: the functions of `megengine.functional`, the methods of Tensor,
the layers of `megengine.module.qat` and `.quantized`.

    python cmake/stubs.py FOLDER

writes them below FOLDER, which is one that holds the package `megengine`. `make setup` does so for a checkout, and the
build of a wheel for the wheel, so that type checkers and editors know what only running the package would tell.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from megengine.core.late import parts
from megengine.dispatch import PublicFunction, public_functions
from megengine.functional import __all__ as _everything
from megengine.tensor import Tensor

_HEADER = "# Written by cmake/stubs.py from the op records.\n"
_PACKAGE = "megengine.functional"


def _is_face(module: Any) -> bool:
    """Whether a part of the package exports what records declare."""
    return any(record.home == module.__name__ for record in public_functions.values())


class _Writer:
    """The lines of a stub file, and the imports that they need."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.lines: list[str] = []

    def function(self, name: str, function: Callable[..., Any], *, method: bool = False) -> None:
        """A function with its annotations, defaults and documentation."""
        indent = "    " if method else ""
        result = inspect.signature(function).return_annotation
        text = "Any" if result is inspect.Signature.empty else self._annotation(function, result)
        ignore = "  # type: ignore" if method and name in dir(object) else ""
        self.lines.append(f"{indent}def {name}({self._parameters(function, method=method)}) -> {text}:{ignore}")
        self.lines.append(f"{indent}    {(inspect.getdoc(function) or name)!r}")

    def _parameters(self, function: Callable[..., Any], *, method: bool) -> str:
        texts, marked = [], False
        for index, parameter in enumerate(inspect.signature(function).parameters.values()):
            if method and index == 0:
                texts.append("self")
                continue
            star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
            if parameter.kind is parameter.KEYWORD_ONLY and not marked:
                texts.append("*")
            marked = marked or bool(star) or parameter.kind is parameter.KEYWORD_ONLY
            text = star + parameter.name
            if parameter.annotation is not parameter.empty:
                text += f": {self._annotation(function, parameter.annotation)}"
            if parameter.default is not parameter.empty:
                text += f" = {_default(parameter.default)}"
            texts.append(text)
        return ", ".join(texts)

    def _annotation(self, function: Callable[..., Any], annotation: Any) -> str:
        """The text of an annotation, whose names are imported from where the function's module has them."""
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        scope = _plain(function).__globals__
        for name in sorted({node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}):
            if hasattr(builtins, name):
                continue
            value = scope[name]
            if inspect.ismodule(value):
                self.imports.add(f"import {value.__name__} as {name}")
            else:
                self.imports.add(f"from {_home(name, value)} import {name} as {name}")
        return text

    def text(self) -> str:
        """The file."""
        return "\n".join([_HEADER, *sorted(self.imports), "", *self.lines, ""])


def _plain(function: Callable[..., Any]) -> Any:
    """The function that the user of the package wrote, below everything that wraps it."""
    return inspect.unwrap(function)


@functools.cache
def _home(name: str, value: Any) -> str:
    """The module that defines a class or an alias of types."""
    if inspect.isclass(value) or value is Any:
        return value.__module__
    ours = [module for at, module in list(sys.modules.items()) if at.startswith("megengine.")]
    same = [m for m in ours if vars(m).get(name) is value]
    return next(m.__name__ for m in same if re.search(rf"^{name}(: TypeAlias)? = ", inspect.getsource(m), re.MULTILINE))


def _default(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else "..."


def face(module: Any) -> str:
    """The stub of a module that exports public functions: all of its public names."""
    writer = _Writer()
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or inspect.ismodule(value) or not callable(value):
            continue
        if inspect.isclass(value) or not hasattr(value, "__public__"):
            home = getattr(value, "__module__", "")
            if home.startswith("megengine.") and not home.startswith("megengine.dispatch."):
                writer.imports.add(f"from {home} import {value.__name__} as {name}")
        else:
            writer.function(name, value)
    return writer.text()


def package() -> str:
    """The stub of `megengine.functional`: its parts, and their functions by their short names."""
    lines = [f"from {_PACKAGE} import {part} as {part}" for part in sorted(parts(_PACKAGE))]
    for name in _everything:
        home = next(r.home for r in public_functions.values() if r.name == name and r.home.startswith(_PACKAGE))
        lines.append(f"from {home} import {name} as {name}")
    return "\n".join([_HEADER, *lines, ""])


def tensor_methods() -> str:
    """The stub of a class that has the operators and methods which records give to Tensor."""
    writer = _Writer()
    writer.lines += [
        "class TensorMethods:",
        "    def __hash__(self) -> int: ...  # by identity, as __eq__ compares values",
    ]
    for name, method in sorted(vars(Tensor).items()):
        if isinstance(getattr(method, "__public__", None), PublicFunction):
            writer.function(name, method, method=True)
    return writer.text()


def layers(module: Any, base: type) -> str:
    """The stub of a module of layers that share a base class."""
    names = [name for name, value in vars(module).items() if inspect.isclass(value) and value is not base]
    lines = [f"from {base.__module__} import {base.__name__} as {base.__name__}", ""]
    return "\n".join([_HEADER, *lines, *(f"{name}: type[{base.__name__}]" for name in sorted(names)), ""])


def files() -> dict[str, str]:
    """Every stub by its path below the folder of the package."""
    modules = [importlib.import_module(f"{_PACKAGE}.{part}") for part in sorted(parts(_PACKAGE))]
    texts = {f"megengine/functional/{m.__name__.split('.')[-1]}.pyi": face(m) for m in modules if _is_face(m)}
    texts["megengine/functional/__init__.pyi"] = package()
    texts["megengine/tensor_methods.pyi"] = tensor_methods()
    for family, base in (("qat", "QATModule"), ("quantized", "QuantizedModule")):
        home = importlib.import_module(f"megengine.module.{family}")
        for part in (home, *filter(inspect.ismodule, vars(home).values())):
            path = part.__name__.replace(".", "/") + ("/__init__" if part is home else "")
            texts[f"{path}.pyi"] = layers(part, getattr(home, base))
    return texts


def main(arguments: Iterable[str]) -> None:
    """Write the stubs below a folder."""
    (folder,) = arguments
    for name, text in files().items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
