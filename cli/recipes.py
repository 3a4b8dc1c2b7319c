"""Recipe files: TOML with a table for each command, whose keys are its arguments and the long names of its options.

    [ptq]
    model = "net.onnx"
    data = "photos"
    preprocess = "imagenet"
    exclude = ["classifier", "op:sigmoid"]
    bias-correction = false

An option on the command line replaces the one of the file.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from megengine.core.errors import nearest, nearest_file

NOT_IN_FILES = ("as_json", "debug", "recipe", "help")


def recipe_option(function: Any) -> Any:
    """`--recipe`: values of options from a file."""
    return click.option(
        "--recipe",
        type=click.Path(dir_okay=False, path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_read,
        help="Take options from this TOML file, in a table named like the command.",
    )(function)


def key_of(parameter: click.Parameter) -> str:
    """The key of a parameter in a recipe: the long name of an option, the name of an argument."""
    longest = max(parameter.opts, key=len)
    return longest.lstrip("-").replace("_", "-")


def settable(command: click.Command) -> dict[str, click.Parameter]:
    """The parameters of a command that a recipe sets, by key."""
    return {key_of(p): p for p in command.params if p.name not in NOT_IN_FILES}


def in_options(text: str, command: click.Command) -> str:
    """A message about arguments of Python in the words of the command line: `depth=1` is `--depth 1`."""
    known = {key.replace("-", "_"): p for key, p in settable(command).items() if isinstance(p, click.Option)}
    names = "|".join(sorted(map(re.escape, known), key=len, reverse=True))

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2].strip("\"'")
        if not known[name].is_flag:
            return f"--{name.replace('_', '-')} {value}"
        words = {"True": known[name].opts, "False": known[name].secondary_opts}.get(value)
        return words[0] if words else found[0]

    text = re.sub(rf"^({names}): ", lambda found: f"--{found[1].replace('_', '-')}: ", text)
    text = re.sub(rf"(?<=[\s(])({names})=(\"\w+\"|'\w+'|[\w.]+)", option, text)
    return re.sub(rf"(?<=[\s(])({names}) (\"\w+\")", option, text)


def _read(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    if path is None or ctx.resilient_parsing:
        return
    if not path.exists():
        raise click.BadParameter(f"{str(path)!r}: no such file{nearest_file(path)}", ctx, parameter)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise click.BadParameter(f"{str(path)!r}: not a TOML file ({error})", ctx, parameter) from error
    name = ctx.command.name or ""
    table = tables.get(name)
    if table is not None and not isinstance(table, dict):
        raise click.BadParameter(f"{str(path)!r}: {name} is {table!r}; expected a table [{name}]", ctx, parameter)
    if table is None:
        held = ", ".join(f"[{key}]" if isinstance(one, dict) else key for key, one in tables.items()) or "nothing"
        raise click.BadParameter(f"{str(path)!r}: no table [{name}], it holds {held}", ctx, parameter)
    ctx.default_map = defaults(ctx.command, table, f"--recipe {str(path)!r}")


def defaults(command: click.Command, table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values of a recipe by the names of a command's parameters.

    Raises click.UsageError for a key that the command does not have, and for a value that cannot be one.
    """
    known = settable(command)
    values = {}
    for key, value in table.items():
        if key not in known:
            raise click.UsageError(
                f"{where}: {command.name} has no option {key!r}{nearest(key, known)}; it has {', '.join(known)}"
            )
        if isinstance(value, dict) or (isinstance(value, list) and not _takes_many(known[key])):
            raise click.UsageError(f"{where}: {key} is {value!r}; expected a single value")
        each = value if isinstance(value, list) else [value]
        wanted = _kind_of(known[key])
        for one in each:
            if not isinstance(one, _KINDS[wanted]) or (isinstance(one, bool) and wanted != "true or false"):
                raise click.UsageError(f"{where}: {key} is {one!r}; expected {wanted}")
        values[str(known[key].name)] = each if _takes_many(known[key]) else value
    return values


_KINDS: dict[str, tuple[type, ...]] = {
    "true or false": (bool, str),
    "a whole number": (int, str),
    "a number": (int, float, str),
    "text": (int, float, str),
    "a path": (str,),
}  # what click makes of text it says itself


def _kind_of(parameter: click.Parameter) -> str:
    """What a parameter takes, a key of `_KINDS`."""
    kind = parameter.type
    if isinstance(kind, click.types.BoolParamType):
        return "true or false"
    if isinstance(kind, click.types.IntParamType):
        return "a whole number"
    if isinstance(kind, click.types.FloatParamType):
        return "a number"
    return "a path" if isinstance(kind, click.Path) else "text"


def _takes_many(parameter: click.Parameter) -> bool:
    return bool(getattr(parameter, "multiple", False)) or parameter.nargs != 1
