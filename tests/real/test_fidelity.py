"""The same text on both sides: generated JSON, as odd as JSON may be, over every pair of transports.

Holds I1 of the contract; F17, F18, F19 and F21 of the field reports; BASE-001. A client writes raw bytes, the
server writes back the raw bytes it was told to, and records what it got; nothing between them may have
understood a number.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.eras.era import Era
from proxy.protocol import names
from proxy.protocol.envelope import dumps
from tests.real.raw_links import http_link, stdio_link
from tests.real.raw_pair import Pair, assert_lifted, flat_members, stdio_proxy
from tests.real.raw_scene import (
    SETTINGS,
    Scene,
    ended,
    kept,
    open_scene,
    started_proxy,
    started_upstream,
    task_with,
)
from tests.real.raw_texts import (
    ODD,
    OF_A_CALL,
    Ending,
    anything,
    arrays,
    directed,
    endings,
    errors,
    generated,
    objects,
    others,
    strings,
    vendor,
)
from tests.real.upstreams import echo
from tests.real.upstreams.raw_json import Members, elements, flat, joined, members, value
from tests.real.upstreams.record import Record

pytestmark = pytest.mark.anyio

TRANSPORTS: Final = ("stdio", "http", "sse")


@pytest.fixture(scope="module", params=TRANSPORTS)
async def greeted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Scene, bytes]]:
    """A scene, and what its legacy client got from the handshake."""
    async with open_scene(tmp_path_factory.mktemp(request.param), request.param) as scene:
        yield scene, await scene.legacy_stdio.initialize()


@pytest.fixture
def scene(greeted: tuple[Scene, bytes]) -> Scene:
    return greeted[0]


MODERN: Final = ("modern_http", "modern_stdio")


@pytest.fixture(params=[*MODERN, "legacy_stdio"])
def pair(request: pytest.FixtureRequest, scene: Scene) -> Pair:
    found: Pair = getattr(scene, request.param)
    return found


@pytest.fixture(params=MODERN)
def modern(request: pytest.FixtureRequest, scene: Scene) -> Pair:
    found: Pair = getattr(scene, request.param)
    return found


# ------------------------------------------------------------------------------ requests


@generated
@given(arguments=objects, more=others("name", "arguments", *OF_A_CALL), meta=vendor)
@example(arguments=ODD, more=[], meta=[])
async def test_arguments_and_meta_go_out_as_they_came(
    pair: Pair, arguments: bytes, more: Members, meta: Members
) -> None:
    """BASE-023."""
    params = [(b'"arguments"', arguments), *more, (b'"name"', b'"any"')]
    exchange = await pair.ask(names.TOOLS_CALL, params, meta)
    pair.assert_sent_on(exchange)


@generated
@given(result=others("_meta", "resultType"), meta=vendor, progress=st.booleans())
@example(result=[(b'"structuredContent"', ODD), (b'"ttlMs"', b"-0")], meta=[], progress=True)
async def test_results_come_back_as_they_were_said(
    pair: Pair, result: Members, meta: Members, progress: bool
) -> None:
    said = joined([(b'"resultType"', b'"stray"'), *result, (b'"_meta"', joined(meta))])
    directions = directed((echo.RESULT, said))
    if progress:
        directions += [(b'"progressToken"', b'"t"'), *directed((echo.PROGRESS, b'{"progress":1}'))]
    exchange = await pair.ask(names.TOOLS_CALL, [(b'"name"', b'"any"')], directions)
    assert len(exchange.notifications) == progress
    pair.assert_result(exchange, said)


@generated
@given(error=errors)
@example(error=b'{"code" :-0,"message": "","data":' + ODD + b"}")
async def test_errors_come_back_as_they_were_said(pair: Pair, error: bytes) -> None:
    exchange = await pair.ask(names.TOOLS_CALL, [(b'"name"', b'"any"')], directed((echo.ERROR, error)))
    assert flat(exchange.error) == flat(error)


@generated
@given(data=anything, message=strings, code=st.sampled_from([-32002, -32042, -32050]))
async def test_an_error_that_modern_clients_must_not_see_keeps_its_text(
    modern: Pair, data: bytes, message: bytes, code: int
) -> None:
    """-32002 has another code now; the others are all there, in `data` (contract section 3)."""
    error = b'{"code":%d ,"message":%s, "data":%s}' % (code, message, data)
    exchange = await modern.ask(names.RESOURCES_READ, [(b'"uri"', b'"x:y"')], directed((echo.ERROR, error)))
    if code == -32002:
        assert flat_members(exchange.error, {"code"}) == flat_members(error, {"code"})
        assert value(exchange.error, "code") == b"-32602"
    else:
        assert value(exchange.error, "code") == b"-32603"
        assert flat(value(exchange.error, "data", "upstreamError") or b"") == flat(error)


CACHEABLE: Final = ("ttlMs", "cacheScope")
LISTS: Final = {
    names.TOOLS_LIST: "tools",
    names.PROMPTS_LIST: "prompts",
    names.RESOURCES_LIST: "resources",
    names.RESOURCES_TEMPLATES_LIST: "resourceTemplates",
}


@generated
@given(
    method=st.sampled_from(sorted(LISTS)),
    items=st.lists(others("execution").map(joined) | anything, max_size=4),
    more=others("_meta", "resultType", *LISTS.values(), *CACHEABLE),
    params=others(*OF_A_CALL),
)
@example(method=names.TOOLS_LIST, items=[ODD], more=[(b'"nextCursor"', b'"a/b=="')], params=[])
@example(method=names.TOOLS_LIST, items=[], more=[], params=[(b'"cursor"', b'""')])
async def test_lists_are_those_of_the_server(
    pair: Pair, method: str, items: list[bytes], more: Members, params: Members
) -> None:
    """F18, F37: unknown members of items and results, cursors, order."""
    listed = b"[" + b" ,\r\n".join(items) + b"]"
    said = joined([*more, (dumps(LISTS[method]), listed), (b'"ttlMs"', b"5")])
    exchange = await pair.ask(method, params, directed((echo.RESULT, said)))
    pair.assert_sent_on(exchange)
    pair.assert_result(exchange, said, *CACHEABLE)


@generated
@given(before=others("execution"), after=others("execution"))
async def test_a_tool_loses_its_2025_task_mark_towards_modern_clients_and_nothing_else(
    modern: Pair, before: Members, after: Members
) -> None:
    tool = joined([*before, (b'"execution"', b'{"taskSupport":"optional"}'), *after])
    said = joined([(b'"tools"', b"[1.0 ,\n" + tool + b", null]")])
    exchange = await modern.ask(names.TOOLS_LIST, [], directed((echo.RESULT, said)))
    first, shown, last = elements(value(exchange.result, "tools") or b"")
    assert (first, last) == (b"1.0", b"null")
    assert flat_members(shown, set()) == flat_members(joined([*before, *after]), set())


ANSWERS: Final = (
    b'{"action":"decline"}',
    b'{"action":"accept","content":{}}',
    b'{"action":"cancel" , "content":{"q":null,"q":"","z":-0}}',
)


@generated
@given(
    params=others("_meta", "mode", "elicitationId"),
    answer=st.builds(
        lambda content, more: joined([*more, (b'"content"', content), (b'"action"', b'"accept"')]),
        objects,
        others("action", "content"),
    )
    | st.sampled_from(ANSWERS),
)
async def test_questions_and_their_answers_are_passed_on_as_they_came(
    pair: Pair, params: Members, answer: bytes
) -> None:
    """F19: an answer without content stays without."""
    asked = b"{ " + joined(params)[1:]
    question = b'{"id":"q","method":"elicitation/create","params":' + asked + b"}"
    said = b'{"content":[]}'
    directions = directed((echo.BEFORE, b"[" + question + b"]"), (echo.RESULT, said))
    exchange = await pair.ask(names.TOOLS_CALL, [(b'"name"', b'"any"')], directions, answers=[answer])
    assert [flat(question) for question in exchange.questions] == [flat(asked)]
    [answered] = exchange.answered
    assert flat(answered) == flat(b'{"jsonrpc":"2.0","id":"q","result":' + answer + b"}")
    pair.assert_result(exchange, said)


@generated
@given(params=others("_meta", "level"), tick=others("progressToken", "progress", "_meta"))
@example(params=[(b'"data"', ODD)], tick=[(b'"total"', b"1.10"), (b'"message"', b'"\\ud83d"')])
async def test_what_the_server_tells_during_a_call_comes_as_it_was_told(
    pair: Pair, params: Members, tick: Members
) -> None:
    """F02, F18: a log message, a notification that nobody knows, and progress with the client's own token."""
    told = [
        (names.LOG_MESSAGE, joined([*params, (b'"level"', b'"error"')])),
        ("notifications/vendor", b"{ " + joined(params)[1:]),
    ]
    before = b",".join(b'{"method":' + dumps(method) + b',"params":' + text + b"}" for method, text in told)
    progress = [(b'"progress"', b"0.10"), *tick]
    exchange = await pair.ask(
        names.TOOLS_CALL,
        [(b'"name"', b'"any"')],
        [
            (b'"progressToken"', b'"t\\u006f"'),
            *([(dumps(names.META_LOG_LEVEL), b'"debug"')] if pair.is_modern else []),
            *directed((echo.BEFORE, b"[" + before + b"]"), (echo.PROGRESS, joined(progress))),
        ],
    )
    *messages, ticked = exchange.notifications
    assert [flat(value(m, "params") or b"") for m in messages] == [flat(text) for _, text in told]
    got = value(ticked, "params") or b""
    assert value(got, "progressToken") == b'"t\\u006f"'
    assert flat_members(got, {"progressToken"}) == flat_members(joined(progress), set())


# ------------------------------------------------------------------------------ ids, and what is not there

IDS: Final = (
    *(b"0", b"-1", b"-0", b"1", b'"1"', b'""', b'"0"', b"1774232524389", b"9007199254740993"),
    *('"ünï"'.encode(), b'"\\u00fcn\\ud83d"', b'"' + b"x" * 10_000 + b'"', b'"a\\/b"', b"9" * 300),
)


@pytest.mark.parametrize("rid", IDS, ids=lambda rid: rid[:20])
async def test_ids_come_back_as_they_were_written(pair: Pair, rid: bytes) -> None:
    """F17: over a server that had ids of ours."""
    exchange = await pair.ask(names.TOOLS_CALL, [(b'"name"', b'"any"')], [], rid=rid)
    assert value(exchange.answer, "id") == rid
    assert (value(exchange.seen, "id") or b"").isdigit()


@pytest.mark.parametrize("rid", [b"null", b"true", b"[]", b"{}", b"1.5"])
async def test_what_is_no_id_is_refused(pair: Pair, rid: bytes) -> None:
    """F17: never taken for a notification."""
    exchange = await pair.ask(names.TOOLS_CALL, [(b'"name"', b'"any"')], [], rid=rid)
    assert value(exchange.error, "code") == b"-32600"
    assert exchange.upstream == []


@pytest.mark.parametrize(
    "params",
    [b'"arguments":null', b'"arguments":{}', b'"arguments":{"q":null,"r":""}', b'"arguments":[]', b""],
)
async def test_null_empty_and_missing_arguments_are_three_things(pair: Pair, params: bytes) -> None:
    """F19."""
    given = [(b'"name"', b'"any"'), *members(b"{" + params + b"}")]
    exchange = await pair.ask(names.TOOLS_CALL, given, [])
    assert flat_members(value(exchange.seen, "params"), {"_meta"}) == given


PARAMS: Final = (b"", b',"params":null', b',"params":{}', b',"params":[]', b',"params":0')


@pytest.mark.parametrize("params", PARAMS)
async def test_no_params_null_and_empty_ones_reach_a_legacy_server_as_they_are(
    scene: Scene, params: bytes
) -> None:
    """F19: and are answered, whatever they are."""
    pair = scene.legacy_stdio
    answer, upstream = await pair.ask_raw(b'{"jsonrpc":"2.0","id":"r","method":"tools/list"' + params + b"}")
    assert value(answer, "id") == b'"r"'
    [seen] = upstream
    assert value(seen, "params") == value(b"{" + params[1:] + b"}", "params")


@pytest.mark.parametrize("params", PARAMS)
async def test_a_modern_request_without_usable_params_is_refused(scene: Scene, params: bytes) -> None:
    """F19: never silence."""
    pair = scene.modern_http
    answer, upstream = await pair.ask_raw(b'{"jsonrpc":"2.0","id":"r","method":"tools/list"' + params + b"}")
    assert value(answer, "error", "code") == b"-32602"
    assert upstream == []


# ------------------------------------------------------------------------------ the server itself


async def test_a_legacy_client_gets_the_handshake_as_the_server_said_it(
    greeted: tuple[Scene, bytes],
) -> None:
    """F18: where the proxy's 2025 tasks are switched off."""
    scene, initialized = greeted
    said = echo.INITIALIZED.replace(b"%s", echo.VERSIONS[scene.transport], 1)
    assert flat(initialized) == flat(echo.answer_text(b"0", b"result", said))


async def test_with_2025_tasks_the_handshake_has_their_capability_and_nothing_else(
    scene: Scene, tmp_path: Path
) -> None:
    """F18; contract section 5: a client of 2025-11-25 is held at it, whatever the server speaks."""
    async with stdio_link(stdio_proxy(tmp_path, scene.upstream, SETTINGS), tmp_path / "stdio.log") as link:
        initialized = await Pair(Era.LEGACY, link, Record(tmp_path / "record")).initialize()
    result = value(initialized, "result") or b""
    capabilities = value(result, "capabilities") or b""
    said = echo.INITIALIZED.replace(b"%s", names.LATEST_LEGACY.encode(), 1)
    assert flat_members(result, {"capabilities"}) == flat_members(said, {"capabilities"})
    assert flat_members(capabilities, {"tasks"}) == list(echo.CAPABILITIES)
    tasks = json.loads(value(capabilities, "tasks") or b"")
    assert tasks == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}


async def test_discovery_is_made_of_the_servers_own_texts(scene: Scene, modern: Pair) -> None:
    """F18: unknown capabilities, instructions and serverInfo, as they were written."""
    result = (await modern.ask(names.DISCOVER, [], [])).result
    capabilities = value(result, "capabilities") or b""
    assert flat_members(capabilities, {"extensions"}) == list(echo.CAPABILITIES)
    assert value(result, "instructions") == echo.INSTRUCTIONS
    assert value(result, "_meta", names.META_SERVER_INFO) == echo.SERVER_INFO


@generated
@given(params=others(*OF_A_CALL), said=others("_meta", "resultType"))
async def test_a_method_that_nobody_knows_is_passed_on(pair: Pair, params: Members, said: Members) -> None:
    """F18: in both directions."""
    result = joined(said)
    exchange = await pair.ask("vendor/\u00fcnknown", params, directed((echo.RESULT, result)))
    pair.assert_sent_on(exchange)
    pair.assert_result(exchange, result)


@generated
@given(params=others("_meta").map(joined) | arrays)
async def test_a_notification_that_nobody_knows_is_passed_on(scene: Scene, params: bytes) -> None:
    """F18: of a legacy client; modern clients have none but cancellations."""
    pair = scene.legacy_stdio
    text = b'{"jsonrpc":"2.0" ,"method":"notifications/vendor","params":' + flat(params) + b' ,"x":-0}'
    _, upstream = await pair.ask_raw(text, b'{"jsonrpc":"2.0","id":"r","method":"ping"}')
    assert flat(upstream[0]) == text


# ------------------------------------------------------------------------------ tasks


async def assert_ended(pair: Pair, task_id: bytes, ending: Ending) -> None:
    kind, said = ending
    task = await ended(pair, task_id)
    if kind == echo.RESULT:
        assert_lifted(value(task, "result") or b"", said)
    else:
        assert flat(value(task, "error") or b"") == flat(said)


@settings(generated, max_examples=10)
@given(ending=endings)
async def test_a_task_ends_with_what_the_server_said(modern: Pair, ending: Ending) -> None:
    """TX-GET-004, TX-GET-006: the inlined result is the text of the server."""
    await assert_ended(modern, await kept(modern, directed(ending)), ending)


@settings(generated, max_examples=3)  # the first is the plainest there is
@given(ends=st.lists(endings, min_size=20, max_size=20))
async def test_tasks_end_as_they_did_before_a_restart(
    tmp_path_factory: pytest.TempPathFactory, ends: list[Ending]
) -> None:
    """From memory, and from the disk."""
    home = tmp_path_factory.mktemp("tasks")
    async with AsyncExitStack() as stack:
        proxy = await started_proxy(home, await started_upstream(home, "stdio", stack), stack)
        async with http_link(proxy.url) as link:
            pair = Pair(Era.MODERN, link, Record(home / "record"))
            task_ids = [await kept(pair, directed(ending)) for ending in ends]
            for task_id, ending in zip(task_ids, ends, strict=True):
                await assert_ended(pair, task_id, ending)
        await proxy.kill9()
        await proxy.restart()
        async with http_link(proxy.url) as link:
            pair = Pair(Era.MODERN, link, Record(home / "record"))
            for task_id, ending in zip(task_ids, ends, strict=True):
                await assert_ended(pair, task_id, ending)


@settings(generated, max_examples=8)
@given(asked=others("_meta", "mode", "elicitationId").map(joined), content=objects)
async def test_a_task_asks_and_is_answered_with_the_texts_of_both_sides(
    modern: Pair, asked: bytes, content: bytes
) -> None:
    """TX-UPD-*: what the server says at the end is the answer that it got."""
    question = b'{"id":"q","method":"elicitation/create","params":' + asked + b"}"
    task_id = await kept(modern, directed((echo.BEFORE, b"[" + question + b"]")))
    task = await task_with(modern, task_id, b'"input_required"')
    [(key, shown)] = members(value(task, "inputRequests") or b"")
    assert flat(value(shown, "params") or b"") == flat(asked)
    answer = b'{"x":1.0,"action":"accept", "content":' + content + b"}"
    responses = (b'"inputResponses"', joined([(key, answer)]))
    await modern.ask(names.TASKS_UPDATE, [(b'"taskId"', task_id), responses], [])
    await assert_ended(modern, task_id, (echo.RESULT, b'{"answers":[' + answer + b"]}"))


# ------------------------------------------------------------------------------ what the proxy does read


@generated
@given(arguments=others("region").map(joined))
@example(arguments=b'{"n":' + b"9" * 5_000 + b"}")
async def test_arguments_of_a_tool_with_mirrored_parameters_go_out_as_they_came(
    scene: Scene, arguments: bytes
) -> None:
    """HTTP-022: they are looked at for the parameter that a header repeats."""
    pair = scene.modern_http
    params = [(b'"name"', b'"mirrored"'), (b'"arguments"', arguments)]
    exchange = await pair.ask(names.TOOLS_CALL, params, [])
    pair.assert_sent_on(exchange)


async def test_a_tool_may_have_a_name_that_is_no_unicode_text(scene: Scene) -> None:
    """On stdio, where no header has to repeat it; such a call can be a task."""
    pair = scene.modern_stdio
    exchange = await pair.ask(names.TOOLS_CALL, [(b'"name"', rb'"any\ud83d\u0000"')], [])
    pair.assert_sent_on(exchange)
    exchange = await pair.ask(names.TOOLS_CALL, [(b'"name"', rb'"k\u0065pt\ud83d"')], [])
    task_id = value(exchange.result, "taskId") or b""
    await assert_ended(pair, task_id, (echo.RESULT, b'{"answers":[]}'))
