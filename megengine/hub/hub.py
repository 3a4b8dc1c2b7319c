"""Entries of a repository's `hubconf.py`, and weights from an address."""

from __future__ import annotations

import builtins
import functools
import hashlib
import inspect
import os
import re
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from megengine.core.calls import shown
from megengine.core.errors import ArgumentError, FileFormatError, OptionError, nearest
from megengine.dispatch.refusal import checked
from megengine.hub.exceptions import InvalidProtocol, InvalidRepo
from megengine.hub.fetcher import GitHTTPSFetcher, GitSSHFetcher, RepoFetcherBase, check_host, is_repository
from megengine.hub.tools import cache_folder, check_module_exists, load_module
from megengine.logger import get_logger
from megengine.serialization import load as load_file
from megengine.utils.http_download import download_from_url

_FILE = "hubconf.py"
_HOST = "github.com"
_FETCHERS: dict[str, type[RepoFetcherBase]] = {"HTTPS": GitHTTPSFetcher, "SSH": GitSSHFetcher}
_HASH = re.compile(r"[-_]([0-9a-f]{8,64})\.\w+$")
Repository = str | os.PathLike[str]


def _check_place(repo_info: Repository, git_host: str, protocol: str) -> str:
    """The code that would run, as a text. Raises for names that are not of the expected form; nothing is fetched."""
    local = Path(repo_info).is_dir()
    if not local and not is_repository(str(repo_info)):
        raise InvalidRepo(f"hub: {str(repo_info)!r} has no {_FILE}; expected a local folder, or 'owner/name[:branch]'")
    check_host(git_host)
    if protocol not in _FETCHERS:
        raise InvalidProtocol(f"hub: protocol is {protocol!r}; expected HTTPS or SSH{nearest(protocol, _FETCHERS)}")
    if local:
        if not (Path(repo_info) / _FILE).is_file():
            raise OptionError(f"hub: folder {str(repo_info)!r} has no {_FILE}")
        return str(Path(repo_info).resolve() / _FILE)
    return f"{git_host}/{repo_info}"


@checked
def import_module(
    repo_info: Repository,
    git_host: str = _HOST,
    use_cache: bool = True,
    commit: str | None = None,
    protocol: str = "HTTPS",
    *,
    trust: bool = False,
) -> ModuleType:
    """The `hubconf.py` of a local folder or of a repository, as a module; it can import from its folder while it runs.

    Args:
        repo_info: a folder, or "owner/name" or "owner/name:branch" of a repository.
        git_host: the host of the repository.
        use_cache: use an earlier copy of the repository, if there is one.
        commit: of the repository; the tip of the branch without one.
        protocol: "HTTPS", or "SSH" with your key.
        trust: True if you trust the author: the code runs with your rights.

    Raises:
        OptionError: trust is not given, or there is no `hubconf.py`.
        InvalidRepo, InvalidGitHost, InvalidProtocol: a name is not of the expected form.
        FetcherError: the repository cannot be fetched.
    """
    place = _check_place(repo_info, git_host, protocol)
    if trust is not True:
        raise OptionError(f"hub: {place!r} is code that would run with your rights; pass trust=True if you trust it")
    folder = Path(repo_info).resolve()
    if not Path(repo_info).is_dir():
        folder = Path(_FETCHERS[protocol].fetch(git_host, str(repo_info), use_cache, commit))
    if not (folder / _FILE).is_file():
        raise OptionError(f"hub: repository {str(repo_info)!r} has no {_FILE}; it offers no models")
    return load_module("hubconf", folder / _FILE)


def _entries(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """All callables, imported ones too: repositories define most of their entries in other files."""
    return {n: value for n, value in vars(module).items() if callable(value) and not n.startswith("__")}


def _entry(module: ModuleType, repo_info: Repository, name: str) -> Callable[..., Any]:
    if not isinstance(name, str):
        raise ArgumentError(f"hub: entry is {shown(name)}; expected the name of one")
    entries = _entries(module)
    if name not in entries:
        hint = nearest(name, entries)
        raise OptionError(f"hub: {str(repo_info)!r} has no entry {name!r}; it has {sorted(entries)}{hint}")
    return entries[name]


@checked
def list(
    repo_info: Repository,
    git_host: str = _HOST,
    use_cache: bool = True,
    commit: str | None = None,
    protocol: str = "HTTPS",
    *,
    trust: bool = False,
) -> builtins.list[str]:
    """Names of the entries, in alphabetical order. Arguments and errors are those of `import_module`."""
    return sorted(_entries(import_module(repo_info, git_host, use_cache, commit, protocol, trust=trust)))


@checked
def help(
    repo_info: Repository,
    entry: str,
    git_host: str = _HOST,
    use_cache: bool = True,
    commit: str | None = None,
    protocol: str = "HTTPS",
    *,
    trust: bool = False,
) -> str | None:
    """The docstring of an entry, or None. Other arguments and errors are those of `import_module`."""
    module = import_module(repo_info, git_host, use_cache, commit, protocol, trust=trust)
    return inspect.getdoc(_entry(module, repo_info, entry))


@checked
def load(
    repo_info: Repository,
    entry: str,
    *args: Any,
    git_host: str = _HOST,
    use_cache: bool = True,
    commit: str | None = None,
    protocol: str = "HTTPS",
    trust: bool = False,
    **kwargs: Any,
) -> Any:
    """Call an entry with the other arguments, and return its result. The named ones are those of `import_module`.

    Raises OptionError too if a package is missing that `hubconf.py` names in its list `dependencies`.

    >>> net = load("clones/models", "resnet18", trust=True)
    """
    module = import_module(repo_info, git_host, use_cache, commit, protocol, trust=trust)
    missing = [name for name in getattr(module, "dependencies", ()) if not check_module_exists(name)]
    if missing:
        raise OptionError(f"hub: {str(repo_info)!r} needs packages that are not installed: {missing}; install them")
    return _entry(module, repo_info, entry)(*args, **kwargs)


def _matches(path: Path, digest: str) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest().startswith(digest)


@checked
def load_serialized_obj_from_url(url: str, model_dir: str | os.PathLike[str] | None = None) -> Any:
    """Weights or another object from an address, kept in `model_dir` (by default, in the cache) for later calls.

    If the name ends in "-<sha256>" or "_<sha256>" before its extension (the first 8 digits or more), the content is
    compared with it, and a kept file that differs is fetched again. The file is read by `megengine.load`, so none of
    its code runs.

    Raises:
        HTTPDownloadError: the address cannot be read.
        FileFormatError: the content does not have the SHA-256 of the name, or is no file of MegEngine's.
    """
    name = Path(urllib.parse.urlsplit(url).path).name
    if not name:
        raise OptionError(f"hub: {url!r} names no file; expected an address that ends in a file name")
    folder = cache_folder("serialized") if model_dir is None else Path(model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path, digest = folder / name, _HASH.search(name)
    if path.exists() and digest and not _matches(path, digest[1]):
        path.unlink()
    if not path.exists():
        get_logger(__name__).info(f"downloading {url} to {path}")
        download_from_url(url, path)
        if digest and not _matches(path, digest[1]):
            path.unlink()
            raise FileFormatError(
                f"hub: the content of {url} does not have the SHA-256 {digest[1]}... of its name; it was deleted"
            )
    return load_file(path)


class pretrained:  # noqa: N801 (MegEngine's name)
    """Decorator of a function that makes a model: with `pretrained=True` it gets the weights from an address.

    >>> @pretrained("https://example.org/weights-0123abcd.pkl")
    ... def resnet18(**kwargs):
    ...     return ResNet(**kwargs)
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with the argument `pretrained`."""

        @functools.wraps(function)
        def make(pretrained: bool = False, **kwargs: Any) -> Any:
            model = function(**kwargs)
            if pretrained:
                model.load_state_dict(load_serialized_obj_from_url(self.url))
            return model

        return make


__all__ = ["help", "import_module", "list", "load", "load_serialized_obj_from_url", "pretrained"]
