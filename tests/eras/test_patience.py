"""How long a server that wants to be asked again is left alone."""

from __future__ import annotations

import pytest

from proxy.eras.patience import POLL_S, again_s, poll_s


def test_rounds_without_questions_come_ever_more_slowly_up_to_a_bound() -> None:
    """MRTR-019."""
    assert [again_s(attempt) for attempt in (0, 1, 2, 49)] == [0.5, 1, 2, 30]


@pytest.mark.parametrize(
    "wish, seconds",
    [
        (b"2500", 2.5),
        (b"2.5e3", 2.5),
        (b"0", 0.1),
        (b"1", 0.1),
        (b"3600000", 60),
        (b"1e999", 60),
        (b"9" * 400, POLL_S),
        (b"9" * 5_000, POLL_S),
        (b"-1", POLL_S),
        (b'"2500"', POLL_S),
        (b"null", POLL_S),
        (b"{}", POLL_S),
        (None, POLL_S),
    ],
)
def test_a_wish_counts_within_bounds_and_what_is_none_does_not(wish: bytes | None, seconds: float) -> None:
    """T25-GET-008, TX-CAP-015."""
    assert poll_s(wish) == seconds
