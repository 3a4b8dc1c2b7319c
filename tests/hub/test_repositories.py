"""hub: repositories through git, weights from a server; a hash that does not fit is refused."""

import hashlib
import os
import subprocess

import numpy as np
import pytest
from local_server import serving

import megengine as mge
import megengine.module as M
from megengine import hub
from megengine.core.errors import FileFormatError, OptionError
from megengine.hub import exceptions, tools
from megengine.hub.fetcher import GitHTTPSFetcher, GitSSHFetcher, RepoFetcherBase
from megengine.utils.http_download import HTTPDownloadError


def git(folder, *arguments):
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository that git takes for owner/models on every host; the cache is in the test's folder."""
    folder = tmp_path / "served" / "owner" / "models.git"
    folder.mkdir(parents=True)
    for key, value in {
        "AUTHOR_NAME": "a",
        "AUTHOR_EMAIL": "a@b",
        "COMMITTER_NAME": "a",
        "COMMITTER_EMAIL": "a@b",
    }.items():
        monkeypatch.setenv(f"GIT_{key}", value)
    base = f"url.{tmp_path / 'served'}/.insteadOf"
    addresses = ["https://github.com/", "https://example.org:443/", "git@github.com:"]
    monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(addresses)))
    for i, address in enumerate(addresses):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{i}", base)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{i}", address)
    monkeypatch.setenv("MGE_HOME", str(tmp_path / "home"))
    git(folder, "init", "-q", "-b", "main")
    write(folder, 1)
    git(folder, "branch", "old")
    return folder


def write(folder, number):
    (folder / "hubconf.py").write_text(f'def version():\n    """Version {number}."""\n    return {number}\n')
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", f"version {number}")
    return git(folder, "rev-parse", "HEAD")


def test_repositories_branches_commits_and_the_cache(repository):
    first = git(repository, "rev-parse", "HEAD")
    assert hub.list("owner/models", trust=True) == ["version"]
    write(repository, 2)
    assert hub.load("owner/models", "version", trust=True) == 1  # the copy made before
    assert hub.load("owner/models", "version", trust=True, use_cache=False) == 2
    assert hub.load("owner/models", "version", trust=True) == 2
    assert hub.help("owner/models:old", "version", trust=True) == "Version 1."
    assert hub.load("owner/models", "version", trust=True, commit=first[:10]) == 1
    assert hub.load("owner/models", "version", trust=True, protocol="SSH", use_cache=False) == 2
    assert hub.load("owner/models", "version", trust=True, git_host="example.org:443") == 2


def test_wrong_names_are_told_without_trust():
    """Of the types that MegEngine raises."""
    for arguments, error in (
        ({"repo_info": "models"}, exceptions.InvalidRepo),
        ({"git_host": "a/b"}, exceptions.InvalidGitHost),
        ({"protocol": "FTP"}, exceptions.InvalidProtocol),
    ):
        with pytest.raises(error, match="expected"):
            hub.list(**{"repo_info": "owner/models", **arguments})


def test_nothing_is_fetched_without_trust(repository, tmp_path):
    with pytest.raises(OptionError, match=r"github.com/owner/models' is code.*pass trust=True"):
        hub.load("owner/models", "version")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"repo_info": "owner/none"}, exceptions.GitPullError, "cannot be copied: .*check the name"),
        ({"repo_info": "owner/models:none"}, exceptions.GitPullError, "at branch 'none'"),
        ({"commit": "abcdef0"}, exceptions.GitCheckoutError, "no commit 'abcdef0'"),
        ({"commit": "--help"}, exceptions.GitCheckoutError, "hexadecimal"),
        ({"git_host": "-oProxyCommand=x"}, exceptions.InvalidGitHost, "is no host"),
        ({"git_host": "a/b"}, exceptions.InvalidGitHost, "is no host"),
        ({"protocol": "HTTP"}, exceptions.InvalidProtocol, "expected HTTPS or SSH; did you mean 'HTTPS'"),
        ({"repo_info": "models"}, exceptions.InvalidRepo, "expected a local folder, or 'owner/name"),
        ({"repo_info": "owner/--upload-pack=x"}, exceptions.InvalidRepo, "expected a local folder"),
        ({"repo_info": "a/../b"}, exceptions.InvalidRepo, "expected a local folder"),
    ],
)
def test_wrong_names(repository, tmp_path, arguments, error, text):
    with pytest.raises(error, match=text):
        hub.list(**{"repo_info": "owner/models", "trust": True, **arguments})
    copies = tmp_path / "home" / "hub" / "repositories"
    assert not copies.exists() or list(copies.iterdir()) == []  # no half copy


def test_a_failed_copy_leaves_the_old_one(repository, tmp_path):
    assert hub.load("owner/models", "version", trust=True) == 1
    os.rename(repository, tmp_path / "gone")
    with pytest.raises(exceptions.GitPullError):
        hub.load("owner/models", "version", trust=True, use_cache=False)
    assert hub.load("owner/models", "version", trust=True) == 1


def test_repositories_without_entries(repository):
    (repository / "hubconf.py").rename(repository / "other.py")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "moved")
    with pytest.raises(OptionError, match="has no hubconf.py; it offers no models"):
        hub.list("owner/models", trust=True)


def test_without_git(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(exceptions.GitPullError, match="git is not installed"):
        hub.list("owner/models", trust=True)


def test_fetchers_alone():
    assert GitHTTPSFetcher.address("h", "o/n") == "https://h/o/n.git"
    assert GitSSHFetcher.address("h", "o/n") == "git@h:o/n.git"
    with pytest.raises(exceptions.InvalidRepo, match="names no repository"):
        GitHTTPSFetcher.fetch("github.com", "nothing")
    with pytest.raises(exceptions.FetcherError, match="use GitHTTPSFetcher"):
        RepoFetcherBase.address("h", "o/n")


# ---------------------------------------------------------------- weights


def weights(tmp_path):
    path = tmp_path / "source.pkl"
    mge.save({"weight": mge.tensor(np.full((2, 3), 7.0)), "bias": mge.tensor([1.0, 2.0])}, path)
    content = path.read_bytes()
    return content, hashlib.sha256(content).hexdigest()


def test_weights_are_fetched_once_and_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("MGE_HOME", str(tmp_path / "home"))
    content, digest = weights(tmp_path)
    name, wrong = f"/net_{digest[:8]}.pkl", "/net-00000000.pkl"
    with serving({name: content, wrong: content, "/plain.pkl?x=1": content}) as (address, asked):
        for _ in range(2):
            assert hub.load_serialized_obj_from_url(address + name)["bias"].tolist() == [1, 2]
        assert asked == [name]
        kept = tmp_path / "home" / "hub" / "serialized" / name[1:]
        kept.write_bytes(b"spoilt")
        assert hub.load_serialized_obj_from_url(address + name)["bias"].tolist() == [1, 2]
        assert asked == [name, name]
        with pytest.raises(FileFormatError, match=r"does not have the SHA-256 00000000"):
            hub.load_serialized_obj_from_url(address + wrong, model_dir=tmp_path / "models")
        assert list((tmp_path / "models").iterdir()) == []
        hub.load_serialized_obj_from_url(address + "/plain.pkl?x=1", model_dir=tmp_path / "models")
        assert (tmp_path / "models" / "plain.pkl").exists()
        with pytest.raises(HTTPDownloadError, match="404"):
            hub.load_serialized_obj_from_url(address + "/none.pkl")
        with pytest.raises(OptionError, match="names no file"):
            hub.load_serialized_obj_from_url(address)


def test_pretrained_models(tmp_path):
    content, digest = weights(tmp_path)
    with serving({f"/net-{digest}.pkl": content}) as (address, asked), pytest.MonkeyPatch.context() as patch:
        patch.setenv("MGE_HOME", str(tmp_path / "home"))

        @hub.pretrained(f"{address}/net-{digest}.pkl")
        def net(features=3):
            """A net."""
            return M.Linear(features, 2)

        assert net.__doc__ == "A net."
        assert net(features=4).weight.shape == (2, 4)
        assert asked == []
        assert net(pretrained=True).weight.numpy().tolist() == [[7, 7, 7]] * 2


def test_tools(tmp_path):
    before = os.getcwd()
    with pytest.raises(ValueError, match="x"), tools.cd(tmp_path):
        assert os.getcwd() == str(tmp_path.resolve())
        raise ValueError("x")
    assert os.getcwd() == before
    assert tools.check_module_exists("json.decoder")
    assert not tools.check_module_exists("no_such_module.at_all")
    (tmp_path / "part.py").write_text("value = 3\n")
    assert tools.load_module("part", tmp_path / "part.py").value == 3
    with pytest.raises(OptionError, match="cannot be imported"):
        tools.load_module("part", tmp_path / "none.py")
