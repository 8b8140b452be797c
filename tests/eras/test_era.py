"""Which era one message belongs to."""

from __future__ import annotations

import pytest

from proxy.eras.era import Era, client_era

LEGACY_HEADERS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
OTHER_HEADERS = ["2026-07-28", "2027-01-01", "1900-01-01", "", "v999", "2025-11-25 ", "draft"]


@pytest.mark.parametrize("header", [None, *LEGACY_HEADERS, *OTHER_HEADERS])
def test_the_version_key_in_meta_makes_a_message_modern_whatever_the_header_says(
    header: str | None,
) -> None:
    """VER-003, VER-005."""
    assert client_era(has_meta_version=True, version_header=header) is Era.MODERN


@pytest.mark.parametrize("header", [None, *LEGACY_HEADERS])
def test_without_the_key_a_legacy_version_or_none_is_legacy(header: str | None) -> None:
    """VER-020."""
    assert client_era(has_meta_version=False, version_header=header) is Era.LEGACY


@pytest.mark.parametrize("header", OTHER_HEADERS)
def test_a_version_that_is_not_legacy_is_judged_by_modern_rules(header: str) -> None:
    """VER-003: unknown versions too, so that their error names what we serve."""
    assert client_era(has_meta_version=False, version_header=header) is Era.MODERN
