"""Documents below `/.well-known/`: what belongs to our path is asked of the upstream under its own.

Contract section 6; RFC 9728 section 3.1; field report F28.
"""

from __future__ import annotations

import json

import anyio
import pytest

from proxy.auth.challenges import UrlMap
from proxy.errors import AccessDenied
from proxy.routing.legacy import Reply
from proxy.routing.well_known import Documents, OwnMetadata, WellKnown
from tests.routing.fake_forwarder import JSON, FakeForwarder, body_of

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


# -- under a public URL ------------------------------------------------------------------------------


async def asked_for(documents: Documents, path: str, method: str = "GET") -> Reply:
    with anyio.fail_after(5):
        async with documents.document(method, path, "", []) as reply:
            return Reply(reply.status, reply.headers, await body_of(reply))


def mapped(upstream: FakeForwarder, path: str = "/mcp") -> WellKnown:
    urls = UrlMap("https://u.internal:9/v1", "https://p.example/team/mcp")
    return WellKnown(upstream, path=path, upstream_path="/v1", urls=urls)


METADATA = b'{"resource":"https://u.internal:9/v1","authorization_servers":["https://u.internal:9/"]}'
TOLD = b'{"resource":"https://p.example/team/mcp","authorization_servers":["https://u.internal:9/"]}'


@pytest.mark.parametrize("path", [PRM + "/mcp", PRM + "/team/mcp", PRM])
async def test_the_metadata_name_the_resource_as_clients_do(path: str) -> None:
    """F28: by the path that we have, by that which clients know, and by none."""
    upstream = FakeForwarder()
    upstream.will(200, [*JSON, ("Content-Length", str(len(METADATA))), ("ETag", "1")], METADATA)
    reply = await asked_for(mapped(upstream), path)
    assert (reply.body, reply.headers) == (TOLD, [*JSON, ("ETag", "1")])
    assert [asked.path for asked in upstream.asked] == [PRM if path == PRM else PRM + "/v1"]
    assert upstream.asked[0].plain


async def test_metadata_that_the_server_has_elsewhere_are_found_where_clients_look() -> None:
    """F28: both well-known forms."""
    upstream = FakeForwarder()
    upstream.will(404, [], b"")
    upstream.will(200, JSON, METADATA)
    assert (await asked_for(mapped(upstream), PRM + "/team/mcp")).body == TOLD
    assert [asked.path for asked in upstream.asked] == [PRM + "/v1", PRM]
    assert all(asked.left for asked in upstream.asked)


@pytest.mark.parametrize("path", [PRM, PRM + "/other"])
async def test_what_is_nowhere_is_not_found(path: str) -> None:
    upstream = FakeForwarder()
    upstream.will(404, JSON, b"{}")
    reply = await asked_for(mapped(upstream), path)
    assert (reply.status, reply.body, reply.headers) == (404, b"{}", JSON)


@pytest.mark.parametrize(
    "path, status, headers, body",
    [
        ("/.well-known/oauth-authorization-server", 200, JSON, METADATA),
        (PRM + "/other", 200, JSON, METADATA),
        (PRM + "/v1/more", 200, JSON, METADATA),
        (PRM, 500, JSON, METADATA),
        (PRM, 200, [*JSON, ("Content-Encoding", "gzip")], METADATA),
        (PRM, 200, [("Content-Type", "text/html")], b"<h1>"),
    ],
)
async def test_other_documents_pass_as_they_are(
    path: str, status: int, headers: list[tuple[str, str]], body: bytes
) -> None:
    upstream = FakeForwarder()
    upstream.will(status, headers, body)
    reply = await asked_for(mapped(upstream), path)
    assert (reply.status, reply.headers, reply.body) == (status, headers, body)


# -- a resource of our own ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", [PRM, PRM + "/mcp", PRM + "/team/mcp", PRM + "/team/mcp/"])
async def test_our_own_metadata_are_where_clients_look_for_them(path: str) -> None:
    """AUTH-006; RFC 9728, section 3.1."""
    own = OwnMetadata(
        "https://p.example/team/mcp", path="/mcp", authorization_server="https://i.example", scopes=("a",)
    )
    reply = await asked_for(own, path)
    assert isinstance(reply.body, bytes)
    assert reply.status == 200
    assert json.loads(reply.body) == {
        "resource": "https://p.example/team/mcp",
        "authorization_servers": ["https://i.example"],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["a"],
    }


@pytest.mark.parametrize("path", [PRM + "/other", "/.well-known/oauth-authorization-server", PRM + "x"])
async def test_nothing_else_is_there(path: str) -> None:
    own = OwnMetadata("https://p.example/mcp", path="/mcp", authorization_server="i", scopes=())
    assert (await asked_for(own, path)).status == 404
