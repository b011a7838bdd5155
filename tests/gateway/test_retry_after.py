"""How a Retry-After header is read."""

from __future__ import annotations

import pytest

from takt.gateway.attempt import retry_after_ms
from takt.gateway.policy import MAX_WAIT_MS


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("2", 2000),
        ("0.5", 500),
        ("-1", 0),
        ("-inf", 0),
        ("soon", None),
        ("nan", None),
        ("1_0", None),
    ],
)
def test_retry_after_is_read(value: str | None, expected: int | None) -> None:
    assert retry_after_ms(value) == expected


@pytest.mark.parametrize("value", ["inf", "1e400", "9" * 400, "1e300"])
def test_retry_after_beyond_all_numbers_is_too_long_for_every_policy(value: str) -> None:
    wait_ms = retry_after_ms(value)
    assert wait_ms is not None
    assert wait_ms > MAX_WAIT_MS


def test_retry_after_as_a_date_is_a_wait_from_now() -> None:
    assert retry_after_ms("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    wait = retry_after_ms("Wed, 21 Oct 2065 07:28:00 GMT")
    assert wait is not None
    assert wait > 0
