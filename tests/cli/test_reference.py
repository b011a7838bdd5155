"""docs/reference is what the code says."""

from pathlib import Path

import pytest

from takt.cli.reference import PAGES

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", sorted(PAGES))
def test_reference_is_up_to_date(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name](), "run `make reference`"
