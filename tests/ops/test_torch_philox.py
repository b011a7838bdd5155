"""The counter-based generator against the published answers."""

from __future__ import annotations

import pytest

from takt.ops.torch.philox import philox4x32, uniform


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    """The vectors that the authors of Philox publish with Random123."""
    assert philox4x32(counter, key) == expected


def test_uniform_lies_inside_the_open_interval_and_depends_on_each_key() -> None:
    values = {
        uniform(seed, choice, position)
        for seed in (0, 1, 2**32, 2**64 - 1)
        for choice in (0, 1)
        for position in (0, 1, 2**32 - 1)
    }
    assert len(values) == 24
    assert all(0.0 < value < 1.0 for value in values)
