"""Errors a user can meet. Each message names the value, the limit and the way out."""

from __future__ import annotations

from collections.abc import Mapping


class TaktError(Exception):
    """Base of every error raised on purpose; its text is fit to be shown as it stands.

    `exit_code` is the program's: 2 if what was asked must change, 1 if trying again may help.
    """

    exit_code = 1


class ConfigError(TaktError):
    """A flag or a combination of flags that cannot work."""

    exit_code = 2


class ModelError(TaktError):
    """A model that cannot be found, read or run: names the file and the field."""

    exit_code = 2


class UnsupportedModelError(ModelError):
    """A well-formed model of an architecture, tokenizer or type we do not know."""


class FetchError(ModelError):
    """A model that exists and cannot be fetched now: no network, or no room on the disk."""

    exit_code = 1


class InvalidRequestError(TaktError):
    """A request that can never be served as asked; HTTP 400. `param` names the field."""

    exit_code = 2

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class OverloadedError(TaktError):
    """The queue is full, or targets could not be met; HTTP 429.

    `retry_after_seconds` is an estimate for the client, `code` the reason, and `details` what a
    client's program can read of it.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_seconds: int = 1,
        code: str = "rate_limit_exceeded",
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.code = code
        self.details = details


class EngineDeadError(TaktError):
    """The engine process died or was stopped while the request ran; HTTP 503."""


class EngineStartError(TaktError):
    """The engine cannot start, and trying again would not help."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class InvariantError(Exception):
    """A broken invariant of our own; never the user's fault."""
