"""Where a server is."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from takt.errors import ConfigError

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A base URL in parts. `root` is the path in front of `/v1`, without a slash at its end."""

    host: str
    port: int
    is_tls: bool
    root: str

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Reads `http(s)://host[:port][/path][/v1]`; raises `ConfigError` for anything else."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} has no valid host and port: {error}") from None
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.username:
            raise ConfigError(f"{url!r} is not a URL such as http://127.0.0.1:8000")
        root = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        if port is None:
            port = _DEFAULT_PORTS[parts.scheme]
        return cls(parts.hostname, port, parts.scheme == "https", root)

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"http{'s' if self.is_tls else ''}://{self.authority}{self.root}"
