"""Errors of fetching a repository."""

from megengine.core.errors import OptionError


class FetcherError(OptionError):
    """A repository could not be fetched."""


class InvalidRepo(FetcherError):  # noqa: N818 (MegEngine's name)
    """The name of a repository is not "owner/name" or "owner/name:branch"."""


class InvalidGitHost(FetcherError):  # noqa: N818 (MegEngine's name)
    """The name of a host is not of the expected form."""


class InvalidProtocol(FetcherError):  # noqa: N818 (MegEngine's name)
    """The protocol is neither HTTPS nor SSH."""


class GitPullError(FetcherError):
    """Git could not copy the repository."""


class GitCheckoutError(FetcherError):
    """The repository has no such commit."""


__all__ = ["FetcherError", "GitCheckoutError", "GitPullError", "InvalidGitHost", "InvalidProtocol", "InvalidRepo"]
