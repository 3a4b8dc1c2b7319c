"""A process that answers questions, and is started again when it dies or does not answer: for fuzzing."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from typing import Any

WALL_SECONDS = 60.0
START_SECONDS = 300.0  # a busy machine, or one that watches every access, takes long to import
DEATHS = ("does not end", "ends the program")


class Worker:
    """A process that runs `serve(connection, *arguments)`, in a folder and with environment variables of its own.

    The first that it sends is a greeting, which `start` keeps; each answer after that is to a question.
    """

    def __init__(self, serve: Callable[..., None], *arguments: Any, environment: dict[str, str] | None = None) -> None:
        self.serve, self.arguments, self.environment = serve, arguments, environment or {}
        self.folder = tempfile.TemporaryDirectory()
        self.process: Any = None
        self.greeting: Any = None

    def start(self) -> None:
        """A fresh process."""
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        arguments = (self.serve, self.folder.name, other, *self.arguments)
        self.process = context.Process(target=_run, args=arguments, daemon=True)
        before = dict(os.environ)
        os.environ.update(self.environment)
        try:
            self.process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        other.close()
        self.greeting = self.answer(START_SECONDS)

    def ask(self, question: Any) -> None:
        """Send a question."""
        if self.process is None:
            self.start()
        self.connection.send(question)

    def answer(self, seconds: float = WALL_SECONDS) -> Any:
        """The answer. EOFError tells how the process ended without one."""
        try:
            if self.connection.poll(seconds):
                return self.connection.recv()
            found = f"{DEATHS[0]} within {seconds:.0f} s"
        except (EOFError, ConnectionError):
            self.process.join()
            found = f"{DEATHS[1]} with code {self.process.exitcode}"
        self.stop()
        raise EOFError(found)

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


def _run(serve: Callable[..., None], folder: str, *arguments: Any) -> None:
    os.chdir(folder)  # what a call writes does not land where the tests run
    serve(*arguments)
