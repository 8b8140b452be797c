"""What several of these tests need."""

from __future__ import annotations

import pytest

from proxy.eras.capabilities import ClientCapabilities
from proxy.owners import ANONYMOUS
from proxy.protocol.envelope import RawObject
from proxy.protocol.jsonrpc import RequestId
from proxy.routing import served
from proxy.routing.base import ClientRequest


@pytest.fixture
def request_of_anybody() -> ClientRequest:
    """A call of the tool `slow` by a client that declares nothing."""
    return ClientRequest(
        id=RequestId(b"1", 1),
        method="tools/call",
        params=RawObject.parse(b'{"name":"slow","arguments":{}}'),
        owner=ANONYMOUS,
        capabilities=ClientCapabilities("{}", tasks=False),
    )


@pytest.fixture
def nothing_is_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever may be answered on an event stream is, as if it had taken long."""
    monkeypatch.setattr(served, "QUICK_S", 0.0)
