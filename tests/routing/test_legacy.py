"""What an HTTP request of a legacy client says of itself. Contract section 6."""

from __future__ import annotations

from http import HTTPMethod, HTTPStatus

import pytest

from proxy.errors import ClientProtocolError
from proxy.owners import ANONYMOUS
from proxy.protocol import names
from proxy.routing.legacy import HttpMessage

OTHERS = [("Accept", "application/json"), ("accept", "text/event-stream"), ("X-A", "1"), ("x-a", "2")]


def message(*headers: tuple[str, str]) -> HttpMessage:
    return HttpMessage(HTTPMethod.GET, [*OTHERS, *headers], ANONYMOUS)


def test_of_a_header_that_may_stand_twice_the_first_is_told() -> None:
    asked = message(("Mcp-Session-Id", "s"))
    assert [asked.header(name) for name in ("ACCEPT", "X-a", "mcp-session-id", "X-B")] == [
        "application/json",
        "1",
        "s",
        None,
    ]


@pytest.mark.parametrize("name", [names.H_SESSION_ID, names.H_PROTOCOL_VERSION, names.H_LAST_EVENT_ID])
@pytest.mark.parametrize("asked", [names.H_SESSION_ID, "X-Other"])
def test_a_message_of_two_sessions_is_of_none(name: str, asked: str) -> None:
    """SEC-004: also where somebody else's is not the first, and each time it is asked."""
    twice = message((name, "a"), (name.upper(), "b"))
    for _ in range(2):
        with pytest.raises(ClientProtocolError, match=f"(?i){name} is given more than once") as caught:
            twice.header(asked)
        assert caught.value.http_status == HTTPStatus.BAD_REQUEST


def test_the_same_session_twice_is_one() -> None:
    assert message(("Mcp-Session-Id", "s"), ("mcp-session-id", " s ")).header("Mcp-Session-Id") == "s"
