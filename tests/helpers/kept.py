"""What takes long to make and depends on installed packages alone, kept between runs of the tests."""

import fcntl
import pickle
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "kept"


def kept(name: str, packages: tuple[str, ...], make: Callable[[], Any]) -> Any:
    """What `make` returns, of a file where earlier tests made it with the same versions of packages.

    One process makes it, others that want it at the same time wait.
    """
    path = CACHE / "-".join([name, *(f"{package}-{version(package)}" for package in packages)])
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return pickle.loads(path.read_bytes())
        made = make()
        unfinished = path.with_name(path.name + ".part")
        unfinished.write_bytes(pickle.dumps(made, pickle.HIGHEST_PROTOCOL))
        unfinished.replace(path)
        return made
