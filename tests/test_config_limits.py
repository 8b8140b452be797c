"""The section `limits`: shares of one owner, and that each bound is on the page that says what it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config_limits import LimitsConfig

PAGE = Path(__file__).parent.parent / "docs" / "limits.md"


def test_an_owner_gets_half_where_there_are_others_and_else_all() -> None:
    """SEC-003: so that no owner takes everything."""
    limits = LimitsConfig(calls=9, listens=1)
    assert [limits.per_owner("calls", has_others=others) for others in (True, False)] == [4, 9]
    assert limits.per_owner("listens", has_others=True) == 1


def test_a_share_that_is_set_counts_in_either_case() -> None:
    limits = LimitsConfig(sessions=9, sessions_per_owner=7)
    assert [limits.per_owner("sessions", has_others=others) for others in (True, False)] == [7, 7]


@pytest.mark.parametrize("name", LimitsConfig.model_fields)
def test_each_limit_is_documented(name: str) -> None:
    """T25-SEC-005, T25-SEC-006: with what is answered beyond it."""
    assert f"`limits.{name}`" in PAGE.read_text()
