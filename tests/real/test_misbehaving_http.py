"""HTTP servers that refuse, redirect, break off or answer nonsense: what the client sees, and how soon.

Holds the section "Faults" of the contract; F20, F22, F23, F25, F26, F27, F28, F31 of the field reports.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import anyio
import pytest
from aiohttp import web

from proxy.protocol import names
from proxy.upstream.cursor import DEFAULT_RETRY_S
from tests.real.modern_client import Answer, ModernClient
from tests.real.owned_http import OldServer, OwnedHttp, answer_to, calls, in_calls, owned_http, well
from tests.real.processes import free_port
from tests.real.stage import Stage, stage
from tests.real.waiting import until
from tests.upstream.fake_http import (
    EVENT_STREAM,
    FakeHttp,
    Handler,
    Seen,
    event,
    hang,
    replies,
    short_of_its_length,
    status,
    stream,
    vanish,
)
from tests.upstream.fake_sse import announce

pytestmark = pytest.mark.anyio

SOON_S: Final = 8.0  # "at once", on a machine that has much else to do; a silent server is given 10 s
MIB: Final = 1 << 20
HUGE: Final = 50 * MIB
PAGE: Final = (
    b"<!doctype html><html><head><title>Oh no</title></head><body>" + b"x" * 5_000 + b"</body></html>"
)
SETTINGS: Final = {"limits": {"message": "4MiB"}}


@dataclass(frozen=True, slots=True)
class Address:
    upstream: OwnedHttp
    stage: Stage


@dataclass(frozen=True, slots=True)
class Scene:
    """A server of this test's own, and the client of its owner."""

    server: FakeHttp
    client: ModernClient
    owner: str


@pytest.fixture(scope="module")
async def _address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Address]:
    async with owned_http() as upstream, stage(tmp_path_factory.mktemp("http"), upstream.url, SETTINGS) as on:
        async with on.client() as client:
            assert (await client.call_tool("any")).text == "done"  # from now on it is known to be legacy
        yield Address(upstream, on)


@pytest.fixture
async def scene(_address: Address) -> AsyncIterator[Scene]:
    owner = _address.stage.new_owner()
    server = _address.upstream.owned_by(owner)
    async with _address.stage.client(owner, tasks=False) as client:
        yield Scene(server, client, owner)


def message_of(answer: Answer) -> str:
    """Of an error that is the server's fault."""
    assert answer.status == 200
    assert answer.error["code"] == -32603
    return str(answer.error["message"])


async def assert_fails_once(scene: Scene, said: str, *, sent: int = 1) -> None:
    """The call fails at once and is not sent again; the next one works."""
    with anyio.fail_after(SOON_S):
        assert said in message_of(await scene.client.call_tool("any"))
        assert len(calls(scene.server)) == sent
        assert (await scene.client.call_tool("any")).text == "done"


def result_text(seen: Seen, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (seen.message["id"], result)


def json_of(make: Callable[[Seen], bytes]) -> Handler:
    """A JSON body that is made from the request."""

    async def play(seen: Seen) -> web.StreamResponse:
        return web.Response(body=make(seen), content_type="application/json")

    return play


# ------------------------------------------------------------------------------ refusals


CHALLENGES: Final = (
    'Bearer realm="r", error="invalid_token", scope="a b", resource_metadata="https://u.example:9/x"',
    'Basic realm="old"',
)


@pytest.mark.parametrize("code", [401, 403])
@pytest.mark.parametrize("when", ["at the handshake", "in a call"])
async def test_a_refusal_reaches_the_client_with_all_its_challenges(
    scene: Scene, code: int, when: str
) -> None:
    """F28: and a token that is accepted later is tried at once."""

    async def refuse(seen: Seen) -> web.StreamResponse:
        response = web.Response(status=code, text="no")
        for challenge in CHALLENGES:
            response.headers.add("WWW-Authenticate", challenge)
        return response

    scene.server.handlers["POST"] = refuse if when == "at the handshake" else in_calls(refuse)
    with anyio.fail_after(SOON_S):
        refused = await raw_call(scene)
        assert refused.status == code
        assert tuple(refused.headers.getall("WWW-Authenticate")) == CHALLENGES
        scene.server.handlers["POST"] = well
        assert (await scene.client.call_tool("any")).text == "done"


async def raw_call(scene: Scene) -> aiohttp.ClientResponse:
    """A call whose headers are of interest."""
    meta = {names.META_PROTOCOL_VERSION: names.LATEST_MODERN, names.META_CLIENT_CAPABILITIES: {}}
    params = {"name": "any", names.META: meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": names.TOOLS_CALL, "params": params}
    headers = {
        "Authorization": scene.owner,
        names.H_PROTOCOL_VERSION: names.LATEST_MODERN,
        names.H_METHOD: names.TOOLS_CALL,
        names.H_NAME: "any",
    }
    async with (
        aiohttp.ClientSession() as session,
        session.post(scene.client.url, json=body, headers=headers) as response,
    ):
        await response.read()
        return response


@pytest.mark.parametrize(
    "handler, said",
    [
        (status(500, PAGE, Content_Type="text/html"), "500"),
        (status(502), "502"),
        (status(503, b"busy", Retry_After="1"), "503"),
        (status(200, PAGE, Content_Type="text/html"), "Oh no"),
        (status(200), "200"),
        (status(202), "202"),
        (status(200, b'{"jsonrpc":"2.0","id":4711,"result":{}}', Content_Type="application/json"), "4711"),
        (status(200, b'{"jsonrpc":', Content_Type="application/json"), '{"jsonrpc":'),
        (json_of(lambda seen: result_text(seen, b"[" * 2_000 + b"]" * 2_000)), "deep"),
        (json_of(lambda seen: result_text(seen, b'{"text":"\xff"}')), "UTF-8"),
    ],
    ids=[
        "500 page",
        "502",
        "503",
        "200 page",
        "200 empty",
        "202",
        "another id",
        "cut JSON",
        "deep",
        "not UTF-8",
    ],
)
async def test_an_answer_that_is_none_fails_its_call(scene: Scene, handler: Handler, said: str) -> None:
    scene.server.handlers["POST"] = in_calls(handler)
    await assert_fails_once(scene, said)


async def test_an_error_page_is_not_shown_whole(scene: Scene) -> None:
    scene.server.handlers["POST"] = in_calls(status(500, PAGE, Content_Type="text/html"))
    assert len(message_of(await scene.client.call_tool("any"))) < 500


async def test_a_session_that_the_server_forgot_is_replaced(scene: Scene) -> None:
    """HTTP-073: the call that meets the 404 has not run, and runs in a new session."""
    with anyio.fail_after(SOON_S):
        assert (await scene.client.call_tool("any")).text == "done"
        scene.server.handlers["POST"] = in_calls(status(404, b"no such session"))
        assert (await scene.client.call_tool("any")).text == "done"
    first, refused, last = [call.headers[names.H_SESSION_ID] for call in calls(scene.server)]
    assert first == refused != last


# ------------------------------------------------------------------------------ breaks


@pytest.mark.parametrize(
    "handler",
    [vanish, short_of_its_length, stream(event(b'{"jsonrpc":"2.0","method":"notifications/x"}'), cut=True)],
    ids=["reset", "short", "cut stream"],
)
async def test_a_break_in_a_call_leaves_the_outcome_unknown(scene: Scene, handler: Handler) -> None:
    """I2: said plainly, and nothing is sent again."""
    scene.server.handlers["POST"] = in_calls(handler)
    await assert_fails_once(scene, "outcome unknown")


async def test_a_stream_that_ends_without_the_answer_fails_its_call(scene: Scene) -> None:
    scene.server.handlers["POST"] = in_calls(stream(event(b'{"jsonrpc":"2.0","id":4711,"result":{}}')))
    await assert_fails_once(scene, "without an answer")


async def test_a_break_with_event_ids_is_resumed_and_the_call_answered(scene: Scene) -> None:
    """F22, F24: fetched by GET from the last event on."""
    sent: list[Seen] = []

    async def begin(seen: Seen) -> web.StreamResponse:
        sent.append(seen)
        told = event(b'{"jsonrpc":"2.0","method":"notifications/x"}', id="e1", retry=50)
        return await stream(told, cut=True)(seen)

    async def resume(seen: Seen) -> web.StreamResponse:
        if seen.headers.get(names.H_LAST_EVENT_ID) != "e1":
            return await status(405)(seen)
        return await stream(event(answer_to(sent[0]), id="e2"))(seen)

    scene.server.handlers["POST"] = in_calls(begin)
    scene.server.handlers["GET"] = resume
    with anyio.fail_after(SOON_S):
        assert (await scene.client.call_tool("any")).text == "done"
    assert len(calls(scene.server)) == 1


# ------------------------------------------------------------------------------ encodings and redirects


@pytest.mark.parametrize("kind", ["application/json", EVENT_STREAM])
@pytest.mark.parametrize("encoding", ["gzip", "br"])
async def test_an_encoding_that_nobody_asked_for_is_a_clear_error(
    scene: Scene, kind: str, encoding: str
) -> None:
    """F31."""

    async def encoded(seen: Seen) -> web.StreamResponse:
        assert seen.headers["Accept-Encoding"] == "identity"
        text = answer_to(seen)
        body = gzip.compress(text if kind != EVENT_STREAM else event(text))
        return web.Response(body=body, headers={"Content-Type": kind, "Content-Encoding": encoding})

    scene.server.handlers["POST"] = in_calls(encoded)
    await assert_fails_once(scene, encoding)


@pytest.mark.parametrize("code", [301, 302, 307, 308])
async def test_a_redirect_to_another_origin_is_refused_and_told_nothing(scene: Scene, code: int) -> None:
    """F26: no request, so no credential, arrives there."""
    async with FakeHttp().serving() as elsewhere:
        scene.server.handlers["POST"] = in_calls(status(code, Location=elsewhere.url))
        await assert_fails_once(scene, "is not followed")
        assert elsewhere.seen == []


@pytest.mark.parametrize("code", [301, 302])
async def test_a_redirect_that_would_change_the_method_is_not_followed(scene: Scene, code: int) -> None:
    """F26."""
    scene.server.handlers["POST"] = in_calls(status(code, Location="/mcp/"))
    await assert_fails_once(scene, "is not followed")


async def test_a_redirect_within_the_origin_is_followed_with_method_and_body(scene: Scene) -> None:
    """F26: a trailing slash."""

    async def moved(seen: Seen) -> web.StreamResponse:
        return await (status(307, Location="/mcp/") if seen.path == "/mcp" else well)(seen)

    scene.server.handlers["POST"] = moved
    with anyio.fail_after(SOON_S):
        assert (await scene.client.call_tool("any")).text == "done"


async def test_a_redirect_in_circles_is_given_up(scene: Scene) -> None:
    """F26."""
    scene.server.handlers["POST"] = in_calls(*[status(307, Location="/mcp")] * 6)
    with anyio.fail_after(SOON_S):
        assert "redirected more than" in message_of(await scene.client.call_tool("any"))


# ------------------------------------------------------------------------------ the GET stream


@pytest.mark.parametrize(
    "handler",
    [
        *(status(code) for code in (405, 404, 400, 401, 403, 500)),
        status(
            200,
            b'{"jsonrpc":"2.0","id":"x","error":{"code":-32000,"message":"no"}}',
            Content_Type="application/json",
        ),
        status(200, PAGE, Content_Type="text/html"),
        stream(),
        vanish,
        hang,
    ],
    ids=[
        *("405", "404", "400", "401", "403", "500"),
        "200 JSON",
        "200 page",
        "ends at once",
        "reset",
        "hangs",
    ],
)
async def test_calls_work_however_the_get_stream_is_refused(scene: Scene, handler: Handler) -> None:
    """F25: and it is not asked for again and again, but after a pause."""
    scene.server.handlers["GET"] = handler
    began = anyio.current_time()
    with anyio.fail_after(SOON_S):
        assert (await scene.client.call_tool("any")).text == "done"
        await until(lambda: scene.server.by("GET"), "the stream is asked for")
        assert (await scene.client.call_tool("any")).text == "done"
        for _ in range(50):  # in their time a tight loop would show
            assert (await scene.client.call_tool("any")).text == "done"
    attempts = 1 + (anyio.current_time() - began) / DEFAULT_RETRY_S
    assert len(scene.server.by("GET")) <= 2 * attempts  # a GET on a kept connection that breaks is sent again


# ------------------------------------------------------------------------------ what is odd, and works


def as_text_id(seen: Seen) -> bytes:
    return answer_to(seen).replace(b'"id": %d' % seen.message["id"], b'"id": "%d"' % seen.message["id"])


def odd_events(seen: Seen) -> bytes:
    """A priming event, heartbeats that are no messages, CR LF, an answer on three lines and once more."""
    answer = answer_to(seen).replace(b", ", b",\r\ndata:", 2)
    before = b': hi\n\nid: 0\nretry: 50\ndata:\n\ndata: {"type":"heartbeat"}\n\nevent: ping\ndata: x\n\n'
    return before.replace(b"\n", b"\r\n") + (b"data:" + answer + b"\r\n\r\n") * 2


@pytest.mark.parametrize(
    "handler",
    [
        json_of(lambda seen: b"[" + answer_to(seen) + b"]"),
        json_of(lambda seen: b"\xef\xbb\xbf\r\n" + answer_to(seen) + b"\n"),
        json_of(as_text_id),
        replies(lambda seen: [odd_events(seen)]),
        replies(lambda seen: [bytes([byte]) for byte in odd_events(seen)]),
        replies(lambda seen: [event(answer_to(seen))], hold=True),
    ],
    ids=["array", "BOM", "text id", "odd events", "odd events byte by byte", "stream left open"],
)
async def test_an_answer_is_found_in_whatever_form_it_comes(scene: Scene, handler: Handler) -> None:
    """F17, F20, F21, F22."""
    scene.server.handlers["POST"] = in_calls(handler)
    with anyio.fail_after(SOON_S):
        assert (await scene.client.call_tool("any")).text == "done"
        assert (await scene.client.call_tool("any")).text == "done"
    assert len(calls(scene.server)) == 2


# ------------------------------------------------------------------------------ sizes


def big(seen: Seen) -> bytes:
    return result_text(seen, b'{"content":[{"type":"text","text":"%s"}]}' % (b"x" * HUGE))


@pytest.mark.parametrize(
    "handler", [json_of(big), replies(lambda seen: [event(big(seen))])], ids=["JSON", "stream"]
)
async def test_fifty_megabytes_over_the_limit_fail_their_call(scene: Scene, handler: Handler) -> None:
    """F23."""
    scene.server.handlers["POST"] = in_calls(handler)
    await assert_fails_once(scene, "over the limit")


# ------------------------------------------------------------------------------ what is no server at all


async def test_a_url_that_answers_html_is_named(tmp_path: Path) -> None:
    async with FakeHttp().serving() as site:
        for method in ("POST", "GET"):
            site.handlers[method] = status(200, PAGE, Content_Type="text/html; charset=utf-8")
        async with stage(tmp_path, site.url) as on_stage, on_stage.client() as client:
            with anyio.fail_after(SOON_S):
                said = message_of(await client.call_tool("any"))
            assert "text/html" in said
            assert site.url in said or "Oh no" in said


async def test_a_port_where_nobody_listens_is_named(tmp_path: Path) -> None:
    """Each attempt fails at once, but for the back-off; a server that comes up is used."""
    port = free_port()
    async with stage(tmp_path, f"http://127.0.0.1:{port}/mcp") as on_stage, on_stage.client() as client:
        with anyio.fail_after(SOON_S):
            for _ in range(2):
                assert "could not be reached" in message_of(await client.call_tool("any"))


# ------------------------------------------------------------------------------ HTTP+SSE


@pytest.fixture
async def old(tmp_path: Path) -> AsyncIterator[tuple[OldServer, ModernClient]]:
    async with FakeHttp().serving() as http:
        server = OldServer(http)
        async with stage(tmp_path, http.url, SETTINGS) as on_stage, on_stage.client(tasks=False) as client:
            assert (await client.call_tool("any")).text == "done"
            yield server, client


@pytest.mark.parametrize(
    "ending, said",
    [
        ("cut", "outcome unknown"),
        ("end", "ended the event stream"),
        ("big", "over the limit"),
        ("refuse", "500"),
    ],
)
async def test_a_call_that_an_old_server_breaks_off_fails_and_the_next_works(
    old: tuple[OldServer, ModernClient], ending: str, said: str
) -> None:
    """F27: the stream is the session; a new one begins with a new handshake."""
    server, client = old

    async def play(seen: Seen) -> web.StreamResponse:
        server.in_call = server.work
        match ending:
            case "cut":
                server.cut()
            case "end":
                server.end()
            case "big":
                await server.say(event(big(seen)))
            case "refuse":
                return web.Response(status=500)
        return web.Response(status=202)

    server.in_call = play
    with anyio.fail_after(SOON_S):
        assert said in message_of(await client.call_tool("any"))
        assert (await client.call_tool("any")).text == "done"


async def test_a_call_that_an_old_server_knows_no_session_for_runs_in_a_new_one(
    old: tuple[OldServer, ModernClient],
) -> None:
    server, client = old

    async def forget(seen: Seen) -> web.StreamResponse:
        server.in_call = server.work
        return web.Response(status=404)

    server.in_call = forget
    with anyio.fail_after(SOON_S):
        assert (await client.call_tool("any")).text == "done"


@pytest.mark.parametrize(
    "result, said",
    [(b"[" * 2_000 + b"]" * 2_000, "deep"), (b'{"text":"\xff"}', "UTF-8"), (b"{}, 1", "unusable")],
)
async def test_an_answer_of_an_old_server_that_cannot_be_used_fails_its_call_at_once(
    old: tuple[OldServer, ModernClient], result: bytes, said: str
) -> None:
    """On the one stream of the session nothing but the id tells whose answer it was."""
    server, client = old

    async def play(seen: Seen) -> web.StreamResponse:
        server.in_call = server.work
        await server.say(event(result_text(seen, result)))
        return web.Response(status=202)

    server.in_call = play
    with anyio.fail_after(SOON_S):
        assert said in message_of(await client.call_tool("any"))
        assert (await client.call_tool("any")).text == "done"
    assert server.opened == 1


async def test_an_endpoint_of_another_origin_is_refused_and_told_nothing(tmp_path: Path) -> None:
    """F27."""
    async with FakeHttp().serving() as http, FakeHttp().serving() as elsewhere:
        server = OldServer(http)
        server.greeting = announce(elsewhere.url)
        async with stage(tmp_path, http.url) as on_stage, on_stage.client() as client:
            with anyio.fail_after(SOON_S):
                message_of(await client.call_tool("any"))
            log = on_stage.proxy.program
            await until(lambda: "is of another origin" in log.tail(), "the log says why")
        assert elsewhere.seen == []
