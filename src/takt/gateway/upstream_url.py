"""What an upstream or a webhook may be called, on the command line and in a policy."""

from __future__ import annotations

from urllib.parse import urlsplit


def checked_url(url: str, name: str) -> str:
    """The URL without a slash at its end. `name` is what a message calls it by.

    Raises `ValueError` if it names no host, no possible port, or more than a place: a credential
    would stand in logs, metrics and spans, and a query has no meaning before another path.
    """
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_http = False
    if "@" in url:
        raise ValueError(f"{name} must hold no credential; api_key_env gives one to an upstream")
    if not is_http or any(char.isspace() or not char.isprintable() for char in url):
        raise ValueError(f"{name} {url!r} must be http://HOST or https://HOST")
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        raise ValueError(f"{name} {url!r} must end with its path, without ? or #")
    return url.rstrip("/")
