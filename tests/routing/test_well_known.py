"""Documents below `/.well-known/`: what belongs to our path is asked of the upstream under its own.

Contract section 6; RFC 9728 section 3.1; field report F28.
"""

from __future__ import annotations

import anyio
import pytest

from proxy.errors import AccessDenied
from proxy.routing.well_known import WellKnown
from tests.routing.fake_forwarder import JSON, FakeForwarder

pytestmark = pytest.mark.anyio

PRM = "/.well-known/oauth-protected-resource"


@pytest.mark.parametrize(
    "ours, theirs, asked, reached",
    [
        ("/mcp", "/mcp", PRM + "/mcp", PRM + "/mcp"),
        ("/mcp", "/v1/server/", PRM + "/mcp", PRM + "/v1/server"),
        ("/mcp", "/v1", PRM + "/mcp/", PRM + "/v1"),
        ("/team/mcp", "/mcp", PRM + "/team/mcp", PRM + "/mcp"),
        ("/team/mcp", "/mcp", PRM + "/mcp", PRM + "/mcp"),
        ("/mcp", "/v1", PRM, PRM),
        ("/mcp", "/v1", PRM + "/mcp/other", PRM + "/mcp/other"),
        ("/mcp", "/v1", PRM + "/mcpx", PRM + "/mcpx"),
        ("/mcp", "/", PRM + "/mcp", PRM),
        (
            "/mcp",
            "",
            "/.well-known/oauth-authorization-server/mcp",
            "/.well-known/oauth-authorization-server",
        ),
        ("/", "/v1", PRM, PRM + "/v1"),
        ("/", "/v1", PRM + "/x", PRM + "/x"),
        ("/mcp", "/v1", "/.well-known/a%2Fmcp", "/.well-known/a%2Fmcp"),
    ],
)
def test_our_path_becomes_the_upstreams(ours: str, theirs: str, asked: str, reached: str) -> None:
    assert WellKnown(FakeForwarder(), path=ours, upstream_path=theirs).upstream_of(asked) == reached


@pytest.mark.parametrize(
    "path", ["../admin", "a/../../admin", "%2e%2E/admin", "a%2F..%2fb", "a\\..\\b", "./a"]
)
def test_a_path_that_leads_out_of_there_is_refused(path: str) -> None:
    with pytest.raises(AccessDenied):
        WellKnown(FakeForwarder(), path="/mcp", upstream_path="/mcp").upstream_of("/.well-known/" + path)


async def test_the_answer_comes_back_as_it_was_given() -> None:
    upstream = FakeForwarder()
    upstream.will(404, JSON, b"{}")
    documents = WellKnown(upstream, path="/mcp", upstream_path="/v1")
    with anyio.fail_after(5):
        async with documents.document("HEAD", PRM + "/mcp", "a=1", [("X-A", "1")]) as reply:
            assert (reply.status, reply.headers) == (404, JSON)
    [asked] = upstream.asked
    assert (asked.method, asked.path, asked.query, asked.body) == ("HEAD", PRM + "/v1", "a=1", None)
    assert asked.headers == [("X-A", "1")]
