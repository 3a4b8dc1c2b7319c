"""A headless Chromium, spoken to over two pipes in its DevTools protocol: what a page asks for, shows and prints."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")


class Browser:
    """One page in a browser of its own; use it in a `with` statement.

    Attributes:
        requests: addresses that the page asked for, those of the page itself included.
        complaints: what it wrote to the console, and errors of its scripts.
    """

    def __init__(self, folder: Path, limit: float = 60):
        program = shutil.which("chromium") or shutil.which("google-chrome")
        if program is None:
            pytest.skip("no chromium here")
        self.limit, self.requests, self.complaints = limit, [], []
        (theirs, self.ours), (self.answers, them) = os.pipe(), os.pipe()
        os.set_inheritable(theirs, True)
        os.set_inheritable(them, True)
        words = [program, *FLAGS, f"--user-data-dir={folder}", "--remote-debugging-pipe"]
        script = f'exec "$@" 3<&{theirs} 4>&{them}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "browser", *words], pass_fds=(theirs, them), stderr=subprocess.DEVNULL
        )
        os.close(theirs)
        os.close(them)
        self.sent, self.rest, self.session = 0, b"", None
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.answers)

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command."""
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.ours, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next(time.monotonic() + self.limit)
            if found.get("id") == self.sent:
                assert "error" not in found, (method, found["error"])
                return found["result"]

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.answers], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser did not answer"
            more = os.read(self.answers, 1 << 20)
            assert more, "the browser has gone"
            self.rest += more
        one, _, self.rest = self.rest.partition(b"\0")
        found = json.loads(one)
        self._note(found.get("method"), found.get("params", {}))
        return found

    def _note(self, method: str | None, values: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(values["exceptionDetails"].get("exception", {}).get("description", "an error"))
        elif method == "Log.entryAdded":
            self.complaints.append(values["entry"]["text"])

    def open(self, path: Path, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Show a file in a window of this size, for readers who like light or dark pages."""
        self("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self("Page.navigate", url=path.as_uri())
        until = time.monotonic() + self.limit
        while self.ask("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < until, "the page does not load"
            time.sleep(0.05)

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page; promises are waited for."""
        done = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def picture(self, *, whole: bool = False) -> bytes:
        """What is shown, as PNG; the whole page if wanted."""
        return base64.b64decode(self("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def printed(self) -> bytes:
        """The page as it prints, as PDF."""
        done = self("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        return base64.b64decode(done["data"])
