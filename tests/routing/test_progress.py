"""Progress in words."""

from __future__ import annotations

import pytest

from proxy.protocol.envelope import dumps
from proxy.routing.progress import MAX_CHARS, progress_text


@pytest.mark.parametrize(
    "params, text",
    [
        (b'{"progress":3,"total":10,"message":"rows copied"}', "3/10 rows copied"),
        (b'{"progress":0.50}', "0.50"),
        (b'{"progress":1e2,"total":null}', "1e2"),
        (b'{"message":"half way"}', "half way"),
        (b'{"progress":true,"total":"x","message":7}', None),
        (b'{"progress":' + b"9" * 100 + b',"message":"far"}', "far"),
        (b'{"progress":1,"progress":2}', None),
        (b'{"message":"a\\ud83d"}', "a\ud83d"),
        (b"{}", None),
        (b"[]", None),
    ],
)
def test_progress_is_told_as_the_upstream_wrote_it(params: bytes, text: str | None) -> None:
    """TX-NEW-008."""
    assert progress_text(params) == text


def test_a_message_that_would_weigh_on_every_poll_is_shortened() -> None:
    """PROG-004."""
    text = progress_text(dumps({"message": "x" * 1_000_000}))
    assert text is not None
    assert len(text) == MAX_CHARS
    assert text.endswith("…")
