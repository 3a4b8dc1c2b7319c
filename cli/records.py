"""What a result stores about its own making: enough to repeat it, and to see whether something else was used."""

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from megengine.cli.images import METADATA as PREPARATION
from megengine.cli.output import Output
from megengine.cli.recipes import NOT_IN_FILES, settable
from megengine.cli.samples import Index
from megengine.core.errors import FileFormatError
from megengine.traced_module import InternalGraph, TracedModule
from megengine.traced_module.formats.native import digest
from megengine.traced_module.ir.names import END_NAMES

METADATA = "megengine.record"  # under which a model stores its record
REPEATED = "megengine.repeated"  # under which the context of a command holds the record that it repeats
_PACKAGES = ("megengine", "numpy", "onnx")
_ELSEWHERE = (*NOT_IN_FILES, "overwrite", "workers")


def record_of(*, digests: Mapping[str, str], counts: Mapping[str, int], samples: Index) -> dict[str, Any]:
    """The record of the running command: its options, versions, counts and digests; plain values.

    Options that name files to write, and those that change no result, are left out. A command that is repeated stores
    its old options, which may name other places of the same model and data. `samples` tell what was left out or added.

    Raises:
        FileFormatError: a repeated command got another model or other data.
    """
    ctx = click.get_current_context()
    repeated = ctx.meta.get(REPEATED)
    if repeated is not None:
        _require_same(repeated, digests, samples)
    recipe = {} if repeated is None else dict(repeated["recipe"])
    for key, parameter in settable(ctx.command).items():
        name = str(parameter.name)
        value = ctx.params.get(name)
        if key in recipe or name in _ELSEWHERE or value in (None, ()) or isinstance(value, Path):
            continue
        recipe[key] = [_plain(one) for one in value] if isinstance(value, tuple) else _plain(value)
    return {
        "command": ctx.command.name,
        "recipe": recipe,
        "versions": {name: version(name) for name in _PACKAGES},
        "counts": dict(counts),
        "digests": dict(digests),
        "samples": samples.short,
    }


def version(package: str) -> str:
    """The version of an installed package; "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _require_same(record: Mapping[str, Any], new: Mapping[str, str], samples: Index) -> None:
    other = [name for name, digest in new.items() if record["digests"].get(name) != digest]
    if not other:
        return
    text = f"the {' and the '.join(other)} differ{'s' * (len(other) == 1)} from what the record was made with"
    if "data" in other and (how := _how_data_differs(record, samples)):
        text += f": {how}"
    raise FileFormatError(f"{text}; give the same files, or quantize anew")


def _how_data_differs(record: Mapping[str, Any], samples: Index) -> str:
    if "samples" not in record:
        return "an earlier version wrote it, which took samples by their places"
    return samples.differing(record["samples"])


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):  # --input-shape: name and lengths
        name, shape = value
        return f"{name}={','.join(map(str, shape))}" if name else ",".join(map(str, shape))
    return value


def digest_of(graph: InternalGraph) -> str:
    """SHA-256 of a graph of ops: its expressions, constants and metadata, whatever file they came from."""
    about = {key: text for key, text in graph.metadata.items() if key != END_NAMES}
    return hashlib.sha256(repr((digest(graph), sorted(about.items()))).encode()).hexdigest()


def tell_another_network(out: Output, models: Iterable[tuple[str, TracedModule]]) -> None:
    """Warn of a function among the models that gives another network than the one of which a model was made."""
    known = dict(models)
    for name, model in known.items():
        record = from_metadata(model.graph.metadata, name) if METADATA in model.graph.metadata else {"recipe": {}}
        source = str(record["recipe"].get("model", ""))
        if ".py:" in source and source in known and not _made_of(model.graph, known[source].graph, record["digests"]):
            out.say(
                f"warning: {source} gives another network than the one of which {name} was made; set a seed or load "
                "weights in the function, and quantize again",
                "yellow",
            )


def _made_of(made: InternalGraph, source: InternalGraph, digests: Mapping[str, Any]) -> bool:
    """Whether a network has the digest of a record, with the preparation of pictures that the result stores."""
    about = dict(source.metadata)
    source.metadata.update({PREPARATION: made.metadata[PREPARATION]} if PREPARATION in made.metadata else {})
    same = digest_of(source) == digests.get("model")
    source.metadata.clear()
    source.metadata.update(about)
    return same


def to_metadata(record: Mapping[str, Any]) -> dict[str, str]:
    """The metadata in which a model stores its record."""
    return {METADATA: json.dumps(record, sort_keys=True)}


def shown(metadata: Mapping[str, str], name: str) -> dict[str, Any]:
    """The record of the model `name` for readers: without the digests of single samples."""
    return {key: value for key, value in from_metadata(metadata, name).items() if key != "samples"}


def from_metadata(metadata: Mapping[str, str], name: str) -> dict[str, Any]:
    """The record that the model `name` stores. Raises FileFormatError if it has none, or a damaged one."""
    if METADATA not in metadata:
        raise FileFormatError(
            f"model {name!r}: stores no record of its making, as files that this command quantized do; quantize the "
            "float network first: mge-quantize ptq NETWORK --data DATA -o q.mgt"
        )
    try:
        record = json.loads(metadata[METADATA])
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"model {name!r}: its record is damaged ({error})") from error
    parts = ("recipe", "versions", "counts", "digests")
    whole = isinstance(record, dict) and isinstance(record.get("command"), str)
    whole = whole and isinstance(record.get("samples", ""), str)
    if not whole or not all(isinstance(record.get(part), dict) for part in parts):
        raise FileFormatError(f"model {name!r}: its record is damaged (command, {', '.join(parts)} are expected)")
    return record
