"""Stores and upstreams know a key by bytes that stay the same from version to version."""

from __future__ import annotations

from takt.gateway.keys import KeyRules, Tenants, request_key
from takt.idempotency import fingerprint


def test_a_record_is_found_again_by_every_version() -> None:
    rules = KeyRules(business_id_header="X-Order")
    tenant = Tenants(rules).of({"Authorization": "Bearer a"})
    assert tenant == "ef1f3e16fab9d83b54037554dea7aaa2"
    key = request_key(
        method="POST", path="/v1", query="", headers={"X-Order": "7"}, body=b"{}", service="s",
        tenant=tenant, rules=rules,
    )  # fmt: skip
    assert key is not None
    filed_under = "fe0bd908917836e1cb7020fd60674b53df36daa7687c37f961e311482eac512e"
    assert (key.identity.digest, key.forwarded) == (filed_under, filed_under)


def test_its_content_is_compared_alike_by_every_version() -> None:
    plain = "70fe54124ee97d5c930e86292c68ca593f852154566e9422c8dd65b35549a095"
    keyed = "b99b612fe21c13f66a547ab62cfa610ccf4756c4cbaf2f562ae30faee10c413e"
    assert fingerprint(b"{}") == plain
    assert fingerprint(b"{}", secret=b"s" * 32) == keyed
