"""Copies of git repositories in the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from megengine.hub.exceptions import FetcherError, GitCheckoutError, GitPullError, InvalidGitHost, InvalidRepo
from megengine.hub.tools import cache_folder

_REPO = re.compile(r"(?P<owner>\w[\w.-]*)/(?P<name>\w[\w.-]*)(:(?P<branch>\w[\w./-]*))?")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d+)?")
_COMMIT = re.compile(r"[0-9a-fA-F]{4,40}")
_SECONDS = 600


def is_repository(text: str) -> bool:
    """True for "owner/name" and "owner/name:branch"."""
    return _REPO.fullmatch(text) is not None and ".." not in text


def check_host(name: str) -> None:
    """Raise InvalidGitHost for a text that cannot be the name of a host."""
    if not _HOST.fullmatch(name):
        raise InvalidGitHost(f"hub: {name!r} is no host; expected something like 'github.com'")


class RepoFetcherBase:
    """Base of the fetchers, of which each protocol has one: a subclass gives the address of a repository."""

    @classmethod
    def address(cls, git_host: str, path: str) -> str:
        """The address for git, from a host and "owner/name"."""
        raise FetcherError(f"{cls.__name__} has no address; use GitHTTPSFetcher or GitSSHFetcher")

    @classmethod
    def fetch(
        cls, git_host: str, repo_info: str, use_cache: bool = False, commit: str | None = None, silent: bool = True
    ) -> str:
        """The folder with a repository's files, at the tip of its branch or at a commit; needs git.

        With `use_cache` an earlier copy is used unchanged. A new copy replaces the old one only when it is complete.

        Raises:
            InvalidRepo, InvalidGitHost: a name is not of the expected form.
            GitPullError: git is missing or cannot copy the repository.
            GitCheckoutError: there is no such commit.
        """
        match = _REPO.fullmatch(repo_info)
        if match is None or ".." in repo_info:
            raise InvalidRepo(f"hub: {repo_info!r} names no repository; expected 'owner/name' or 'owner/name:branch'")
        check_host(git_host)
        if commit is not None and not _COMMIT.fullmatch(commit):
            raise GitCheckoutError(f"hub: commit is {commit!r}; expected 4 to 40 hexadecimal digits")
        owner, name, branch = match["owner"], match["name"], match["branch"]
        label = "_".join([git_host, owner, name, branch or "", commit or ""])
        target = cache_folder("repositories") / re.sub(r"[^\w.-]", "-", label)
        if use_cache and target.is_dir():
            return str(target)
        with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
            copy = Path(temporary) / "copy"
            _clone(cls.address(git_host, f"{owner}/{name}"), copy, branch, commit, silent)
            if target.exists():
                target.rename(Path(temporary) / "old")
            copy.rename(target)
        return str(target)


def _clone(address: str, folder: Path, branch: str | None, commit: str | None, silent: bool) -> None:
    if shutil.which("git") is None:
        raise GitPullError("hub: git is not installed; install it, or pass a folder with the repository's files")
    options = (["--branch", branch] if branch else []) + ([] if commit else ["--depth", "1"])
    done = _git("clone", *options, "--", address, str(folder), silent=silent)
    if done.returncode:
        raise GitPullError(
            f"hub: {address} cannot be copied{f' at branch {branch!r}' if branch else ''}: {_last_line(done.stderr)}; "
            "check the name, the network and your access"
        )
    if commit:
        done = _git("-C", str(folder), "checkout", "--detach", commit, silent=silent)
        if done.returncode:
            raise GitCheckoutError(f"hub: {address} has no commit {commit!r}: {_last_line(done.stderr)}")


def _git(*arguments: str, silent: bool) -> subprocess.CompletedProcess[str]:
    # git must not ask for input: a wrong name would wait for a password
    environment = {"GIT_SSH_COMMAND": "ssh -o BatchMode=yes", **os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "check": False}
        options |= {"text": True, "errors": "replace", "env": environment, "timeout": _SECONDS}
        done = subprocess.run(["git", *arguments], **options)
    except subprocess.TimeoutExpired as exc:
        raise GitPullError(f"hub: git did not end within {_SECONDS} s; check the network") from exc
    if not silent:
        print(done.stderr, end="")
    return done


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "git gave no reason"


class GitHTTPSFetcher(RepoFetcherBase):
    """Copies over HTTPS: public repositories."""

    @classmethod
    def address(cls, git_host: str, path: str) -> str:
        """https://host/owner/name.git"""
        return f"https://{git_host}/{path}.git"


class GitSSHFetcher(RepoFetcherBase):
    """Copies over SSH, with your key: private repositories too."""

    @classmethod
    def address(cls, git_host: str, path: str) -> str:
        """git@host:owner/name.git"""
        return f"git@{git_host}:{path}.git"


__all__ = ["GitHTTPSFetcher", "GitSSHFetcher", "RepoFetcherBase"]
