"""Files from the network."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from megengine.core.errors import OptionError
from megengine.core.text import counted
from megengine.serialization import write_atomically

__all__ = ["Bar", "CHUNK_SIZE", "HTTPDownloadError", "HTTP_CONNECTION_TIMEOUT", "download_from_url"]

CHUNK_SIZE = 64 * 1024
HTTP_CONNECTION_TIMEOUT = 10


class HTTPDownloadError(OptionError, OSError):
    """A file could not be downloaded."""


class Bar:
    """Progress on stderr, in percent; call it with the number of units done since the last call. Silent in a pipe."""

    def __init__(self, total: int = 100) -> None:
        self.total, self.done = total, 0

    def __call__(self, count: int) -> None:
        """`count` more units are done."""
        before, self.done = self._percent(), self.done + count
        if self._percent() != before and sys.stderr.isatty():
            print(f"\r{self._percent():3d} %", end="\n" if self.done >= self.total else "", file=sys.stderr, flush=True)

    def _percent(self) -> int:
        return min(100 * self.done // self.total, 100) if self.total > 0 else 100


def _chunks(response: Any, url: str) -> Iterator[bytes]:
    expected = int(response.headers.get("Content-Length") or 0)
    bar, got = Bar(expected), 0
    while chunk := response.read(CHUNK_SIZE):
        got += len(chunk)
        bar(len(chunk))
        yield chunk
    if expected and got != expected:
        raise HTTPDownloadError(f"download: {url} ended after {got} of {counted(expected, 'byte')}; try again")


def download_from_url(url: str, dst: str | os.PathLike[str]) -> None:
    """Write the content of an http or https address to a file, which is replaced only by a complete download.

    Raises HTTPDownloadError, with the address and the cause.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise HTTPDownloadError(f"download: {url!r} is no address; expected http://... or https://...")
    try:
        with urllib.request.urlopen(url, timeout=HTTP_CONNECTION_TIMEOUT) as response:
            write_atomically(dst, _chunks(response, url))
    except HTTPDownloadError:
        raise
    except (OSError, ValueError) as exc:
        raise HTTPDownloadError(f"download: {url} cannot be fetched ({exc}); check address and network") from exc
