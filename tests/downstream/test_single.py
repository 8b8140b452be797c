"""Headers that stand twice: nobody is judged by one line and served by another.

On a real socket. Contract section 8; AUTH-003, SEC-001, SEC-004, HTTP-002.
"""

from __future__ import annotations

import json
from typing import Final

import aiohttp
import pytest
from multidict import CIMultiDict

from proxy.protocol import names
from proxy.routing.well_known import WellKnown
from tests.downstream.http_rig import OK, ORIGIN, Rig, http_rig, message, raw_post, read_all
from tests.downstream.played_legacy import PlayedLegacy, legacy_call
from tests.routing.fake_forwarder import JSON, FakeForwarder

pytestmark = pytest.mark.anyio

EVIL: Final = "https://evil.example"
LEGACY: Final = json.dumps(legacy_call()).encode()
ASKS_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


def asked(rig: Rig, how: str, *twice: tuple[str, str]) -> aiohttp.client._RequestContextManager:
    """A request of this kind, with these headers beside."""
    headers = CIMultiDict(twice)
    match how:
        case "modern":
            headers.extend({names.H_PROTOCOL_VERSION: names.LATEST_MODERN, names.H_METHOD: "tools/list"})
            return rig.session.post(rig.url, data=message(), headers=headers)
        case "legacy":
            return rig.session.post(rig.url, data=LEGACY, headers=headers)
        case "notification":
            note = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
            return rig.session.post(rig.url, data=note, headers=headers)
        case "document":
            return rig.session.get(rig.url.replace("/mcp", ASKS_WELL_KNOWN), headers=headers)
        case _:
            return rig.session.request(how, rig.url, headers=headers)


@pytest.mark.parametrize(
    "how", ["modern", "legacy", "notification", "GET", "DELETE", "HEAD", "OPTIONS", "document"]
)
@pytest.mark.parametrize("second", [EVIL, "null", ORIGIN])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_request_of_two_pages_is_refused(how: str, second: str, is_first: bool) -> None:
    """HTTP-002, SEC-001: 403, whichever of them is allowed, and neither may read it."""
    upstream, legacy = FakeForwarder(), PlayedLegacy()
    documents = WellKnown(upstream, path="/mcp", upstream_path="/mcp")
    pair = [("Origin", ORIGIN), ("Origin", second)]
    async with http_rig(legacy=legacy, well_known=documents) as rig:
        rig.router.always = OK
        async with asked(rig, how, *(pair if is_first else reversed(pair))) as response:
            assert response.status == 403
            assert not [name for name in response.headers if name.startswith("Access-Control")]
        assert (rig.router.seen, legacy.seen, upstream.asked) == ([], [], [])


@pytest.mark.parametrize("how", ["modern", "legacy", "notification", "GET", "DELETE", "HEAD"])
@pytest.mark.parametrize("second", ["Bearer ada", "Bearer bob", ""])
async def test_a_request_of_two_owners_is_refused(how: str, second: str) -> None:
    """SEC-004: 400; else the owner would be that of one, and the server might look at the other."""
    legacy = PlayedLegacy()
    async with http_rig(legacy=legacy) as rig:
        rig.router.always = OK
        pair = [("Authorization", "Bearer ada"), ("Authorization", second)]
        async with asked(rig, how, *pair) as response:
            assert response.status == 400
        assert (rig.router.seen, legacy.seen) == ([], [])


async def test_documents_are_asked_for_by_nobody_in_particular() -> None:
    """What is not judged here is for the upstream to judge."""
    upstream = FakeForwarder()
    upstream.will(200, JSON, b"{}")
    async with http_rig(well_known=WellKnown(upstream, path="/mcp", upstream_path="/mcp")) as rig:
        pair = [("Authorization", "a"), ("Authorization", "b")]
        async with asked(rig, "document", *pair) as response:
            assert response.status == 200
    assert [value for key, value in upstream.asked[0].headers if key == "Authorization"] == ["a", "b"]


@pytest.mark.parametrize("name", [names.H_METHOD, names.H_PROTOCOL_VERSION])
async def test_a_modern_request_says_once_what_it_is(name: str) -> None:
    """Contract section 3: -32020, whichever of them is right."""
    async with http_rig() as rig:
        for value in ("tools/call", "2026-07-29"):
            async with asked(rig, "modern", (name, value)) as response:
                assert (response.status, json.loads(await response.read())["error"]["code"]) == (400, -32020)
        assert rig.router.seen == []


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://evil.example/mcp", b"403"),
        ("http://localhost@evil.example/mcp", b"403"),
        ("http://localhost/mcp", b"200"),
    ],
)
async def test_the_authority_of_a_target_counts_and_not_the_host_beside_it(
    target: str, status: bytes
) -> None:
    """SEC-001; RFC 9112, section 3.2.2."""
    async with http_rig() as rig, await rig.connect() as stream:
        rig.router.always = OK
        await stream.send(raw_post(message(), path=target, more="Connection: close\r\n"))
        assert (await read_all(stream)).split()[1] == status


@pytest.mark.parametrize("order", [["identity", "gzip"], ["gzip", "identity"], ["", "br"]])
async def test_no_line_hides_that_a_body_is_compressed(order: list[str]) -> None:
    """SEC-003."""
    async with http_rig() as rig, await rig.connect() as stream:
        lines = "".join(f"Content-Encoding: {one}\r\n" for one in order)
        await stream.send(raw_post(message(), more=lines + "Connection: close\r\n"))
        assert (await read_all(stream)).split()[1] == b"415"


@pytest.mark.parametrize(
    "name, value",
    [
        ("Host", "localhost"),
        ("host", "evil.example"),
        ("Content-Type", "application/json"),
        ("Content-Length", "1"),
        ("content-length", str(len(message()))),
        ("Transfer-Encoding", "chunked"),
    ],
)
async def test_what_http_has_once_is_no_http_twice(name: str, value: str) -> None:
    """SEC-001: aiohttp sees to it; what stands behind such a request is not served."""
    async with http_rig() as rig, await rig.connect() as stream:
        twice = "Content-Type: application/json\r\n" if name == "Content-Type" else ""
        await stream.send(raw_post(message(), more=f"{twice}{name}: {value}\r\n") + raw_post(message()))
        answer = await read_all(stream)
        assert (answer.split()[1], answer.count(b"\r\n\r\n")) == (b"400", 1)
        assert rig.router.seen == []
