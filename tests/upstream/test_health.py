"""What `/readyz` may say of the server. Field report F41."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from proxy.errors import (
    InternalError,
    NoCredential,
    ProxyError,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from proxy.upstream.health import FORGOTTEN_S, OK, Health
from tests.manual_clock import ManualClock

SAID = "its last words: API_KEY=hunter2"


def test_nobody_has_tried_yet_and_that_is_fine() -> None:
    assert Health(ManualClock()).words() == OK


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (UpstreamUnavailable(SAID), "could not be started or reached"),
        (UpstreamTimeout(SAID), "did not answer in time when it was started"),
        (UpstreamClosed(SAID), "ended, or broke the connection, when it was started"),
        (UpstreamProtocolError(SAID), "did not speak the protocol when it was started"),
        (UpstreamError(SAID), "failed when it was started"),
        (InternalError(SAID), "internal error of the proxy when it was started"),
    ],
)
def test_a_fault_is_told_in_our_own_words_alone(fault: ProxyError, words: str) -> None:
    """A server's last words may hold anything, and `/readyz` is open to everybody."""
    health = Health(ManualClock())
    health.failed(fault)
    assert health.words() == words


def test_a_start_that_succeeds_ends_the_fault() -> None:
    health = Health(ManualClock())
    health.failed(UpstreamUnavailable("down"))
    health.works()
    assert health.words() == OK


def test_where_we_have_no_credential_nothing_more_is_known_of_the_server() -> None:
    """That has a line of its own in `/readyz`."""
    health = Health(ManualClock())
    health.failed(NoCredential("the authorization server is away"))
    assert health.words() == OK
    health.failed(UpstreamUnavailable("down"))
    health.failed(NoCredential("the authorization server is away"))
    assert health.words() != OK


def test_a_server_that_refuses_its_caller_is_at_work() -> None:
    health = Health(ManualClock())
    health.failed(UpstreamUnavailable("down"))
    health.failed(UpstreamRefused("401", status=HTTPStatus.UNAUTHORIZED, challenges=()))
    assert health.words() == OK


def test_a_fault_that_nobody_meets_again_is_forgotten() -> None:
    """Who is never ready gets no request that could show that the server is back."""
    clock = ManualClock()
    health = Health(clock)
    health.failed(UpstreamUnavailable("down"))
    clock.jump(FORGOTTEN_S - 1)
    health.failed(UpstreamTimeout("down"))
    clock.jump(FORGOTTEN_S - 1)
    assert health.words() != OK
    clock.jump(1)
    assert health.words() == OK
