"""The HTTP side."""

from __future__ import annotations

from dataclasses import dataclass

from takt.config.option import check_choices, check_positive, option
from takt.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The HTTP side."""

    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8000, "Port to listen on; 0 picks a free one and prints it.")
    uds: str | None = option(None, "Unix domain socket to listen on instead of host and port.")
    api_key: tuple[str, ...] = option(
        (),
        "Key that clients must send as a bearer token; may be given several times, or in "
        "the environment as TAKT_API_KEY.",
    )
    served_model_name: tuple[str, ...] = option(
        (), "Names clients may use; the first is reported. The model's own if not given."
    )
    chat_template: str | None = option(None, "File (or text) of a Jinja chat template.")
    ssl_keyfile: str | None = option(None, "File of the TLS private key; needs --ssl-certfile.")
    ssl_certfile: str | None = option(None, "File of the TLS certificate chain; turns HTTPS on.")
    allowed_origins: tuple[str, ...] = option((), "Origins allowed by CORS; * for all.")
    allow_unknown_fields: bool = option(
        False, "Answer a request with unknown JSON fields with a warning header, not 400."
    )
    enable_request_id_headers: bool = option(
        True, "Answer with the request's X-Request-Id, or a new one."
    )
    max_request_bytes: int = option(16 * 1024 * 1024, "Largest request body, in bytes.")
    stream_buffer_tokens: int = option(
        1024, "Tokens a slow reader may lag behind before its stream is aborted."
    )
    idempotency_ttl_seconds: float = option(
        3600.0,
        "Time that an answer is kept for requests that come again with its Idempotency-Key; with 0 "
        "they are only joined while it runs.",
    )
    idempotency_max_bytes: int = option(
        64 * 1024 * 1024, "Bytes of answers kept so; the oldest go first."
    )
    drain_timeout_seconds: float = option(
        30.0, "Time that running requests have to end after SIGTERM."
    )
    max_engine_deaths: int = option(
        3, "Engine deaths in a row, without a step between them, that end the server."
    )
    log_level: str = option(
        "info", "debug, info, warning or error.", choices=("debug", "info", "warning", "error")
    )
    disable_access_log: bool = option(False, "Do not log each request.")
    step_log: str | None = option(
        None, "File that gets the stamps and sizes of each step as a line of JSON."
    )

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(
            self,
            "max_request_bytes",
            "stream_buffer_tokens",
            "max_engine_deaths",
            "idempotency_max_bytes",
        )
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be between 0 and 65535, got {self.port}")
        for name in ("drain_timeout_seconds", "idempotency_ttl_seconds"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 0, got {value}")
        for name in ("api_key", "served_model_name"):
            if not all(getattr(self, name)):
                raise ConfigError(f"--{name.replace('_', '-')} is empty: give one or leave it out")
