"""Whose request it is, which key it carries, and under which digest it is filed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from takt.errors import InvalidRequestError
from takt.gateway.states import Identity
from takt.idempotency import (
    KEY_HEADER,
    checked_key,
    credential_digest,
    digest,
    fingerprint,
    read_key,
)

CREDENTIAL_HEADERS = ("Authorization", "X-Api-Key", "Api-Key")
"""OpenAI's, Anthropic's and Azure's."""

MAX_TENANTS_KEPT = 1024
"""Credentials whose digests are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRules:
    """Where keys and tenants are found. A key never holds a time: a retry would get another."""

    business_id_header: str | None = None
    business_id_field: str | None = None
    """A path into the JSON body, such as `metadata.order_id`."""
    tenant_header: str | None = None
    """Trusted as it comes; if not given, credentials in `CREDENTIAL_HEADERS` tell tenants apart."""


class RequestKey(msgspec.Struct, frozen=True):
    """`forwarded` is the key that the upstream sees."""

    identity: Identity
    forwarded: str


class Tenants:
    """Tells tenants apart by digests that cannot be turned back into a credential."""

    def __init__(self, rules: KeyRules) -> None:
        self._rules = rules
        # Most requests come from few tenants, and a hash costs more than a look into a table.
        self._digest = lru_cache(MAX_TENANTS_KEPT)(credential_digest)

    def of(self, headers: Mapping[str, str]) -> str:
        """Raises `InvalidRequestError` where a header should name the tenant and is missing."""
        name = self._rules.tenant_header
        if name is None:
            # All that are there: an upstream may look at any of them, and ignore a placeholder.
            given = [headers[name] for name in CREDENTIAL_HEADERS if name in headers]
            return self._digest("\0".join(given))
        value = headers.get(name)
        if not value:
            raise InvalidRequestError(
                f"the header {name}, which names the tenant, is missing", param=name
            )
        return self._digest(value)


def request_key(
    *,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    body: bytes,
    service: str,
    tenant: str,
    rules: KeyRules,
    secret: bytes | None = None,
) -> RequestKey | None:
    """The key of a request; None if it carries none. `InvalidRequestError` if it is not fit."""
    found = _find(headers, body, rules)
    if found is None:
        return None
    kind, key = found
    operation = f"{method} {path}"
    filed_under = digest("\0".join((tenant, operation, kind, key)).encode())
    # The upstream sees the same credential and can keep tenants apart by it; where we trust a
    # header of our own, or made the key, it gets a key that no other tenant's can equal.
    is_plain = kind == "key" and rules.tenant_header is None
    return RequestKey(
        Identity(
            digest=filed_under,
            fingerprint=fingerprint(body, query, secret=secret),
            key=key,
            tenant=tenant,
            service=service,
            operation=operation,
        ),
        forwarded=key if is_plain else filed_under,
    )


def _find(headers: Mapping[str, str], body: bytes, rules: KeyRules) -> tuple[str, str] | None:
    given = headers.get(KEY_HEADER)
    if given is not None:
        return "key", read_key(given)
    if rules.business_id_header is not None:
        given = headers.get(rules.business_id_header)
        if given is not None:
            return "business", checked_key(given.strip(), rules.business_id_header)
    if rules.business_id_field is not None:
        value = _field(body, rules.business_id_field)
        if value is not None:
            return "business", checked_key(value, rules.business_id_field)
    return None


def _field(body: bytes, path: str) -> str | None:
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    for name in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InvalidRequestError(f"{path} must be a string or an integer", param=path)
