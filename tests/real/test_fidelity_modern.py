"""The same text on both sides of a proxy before a modern server: what it says passes as it stands.

Holds I1 of the contract and its section 2, "pass through"; F17, F18 of the field reports; BASE-023, MRTR-017.
See `test_fidelity` for legacy servers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.protocol import names
from tests.real.raw_pair import Pair, flat_members
from tests.real.raw_scene import Scene, ended, kept, open_scene, task_with
from tests.real.raw_texts import (
    ODD,
    OF_A_CALL,
    Ending,
    directed,
    errors,
    generated,
    objects,
    others,
    strings,
    vendor,
)
from tests.real.upstreams import echo
from tests.real.upstreams.raw_json import Members, flat, joined, members, value

pytestmark = pytest.mark.anyio

TRANSPORTS: Final = ("modern stdio", "modern http")
COMPLETE: Final = (b'"resultType"', b'"complete"')

results = st.builds(
    lambda more, meta: joined([*more, (b'"_meta"', joined(meta)), COMPLETE]),
    others("_meta", "resultType"),
    vendor,
)
endings = st.tuples(st.just(echo.RESULT), results) | st.tuples(st.just(echo.ERROR), errors)


@pytest.fixture(scope="module", params=TRANSPORTS)
async def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    async with open_scene(tmp_path_factory.mktemp("modern"), request.param) as made:
        yield made


@pytest.fixture(params=["modern_http", "modern_stdio"])
def pair(request: pytest.FixtureRequest, scene: Scene) -> Pair:
    found: Pair = getattr(scene, request.param)
    return found


def asks(question: bytes, state: bytes) -> bytes:
    """An InputRequiredResult with one question."""
    requests = b'{"k\\u0031": {"method":"elicitation/create" ,"params":' + question + b"}}"
    return (
        b'{ "requestState":' + state + b',"resultType":"input_required","inputRequests": ' + requests + b"}"
    )


def answers(content: bytes) -> bytes:
    return b'{"x":1.0,"action":"accept", "content":' + content + b"}"


# ------------------------------------------------------------------------------ calls


@generated
@given(arguments=objects, more=others("name", "arguments", *OF_A_CALL), meta=vendor)
@example(arguments=ODD, more=[], meta=[])
async def test_requests_go_out_as_they_came(
    pair: Pair, arguments: bytes, more: Members, meta: Members
) -> None:
    """BASE-023."""
    params = [(b'"arguments"', arguments), *more, (b'"name"', b'"any"')]
    pair.assert_sent_on(await pair.ask(names.TOOLS_CALL, params, meta))


METHODS: Final = (names.TOOLS_CALL, names.TOOLS_LIST, names.RESOURCES_LIST, "vendor/unknown")


@generated
@given(method=st.sampled_from(METHODS), result=results, progress=st.booleans())
@example(
    method=names.TOOLS_CALL,
    result=b'{"structuredContent":' + ODD + b',"resultType" : "complete"}',
    progress=True,
)
@example(
    method=names.TOOLS_LIST, result=b'{"tools":[{"execution":1.0}],"resultType":"complete"}', progress=False
)
async def test_results_come_back_as_they_were_said(
    pair: Pair, method: str, result: bytes, progress: bool
) -> None:
    directions = directed((echo.RESULT, result))
    if progress:
        directions += [(b'"progressToken"', b'"t"'), *directed((echo.PROGRESS, b'{"progress":1.10}'))]
    exchange = await pair.ask(method, [(b'"name"', b'"any"')], directions)
    assert flat(exchange.result) == flat(result)
    for notification in exchange.notifications:
        assert value(notification, "params") == b'{"progressToken":"t","progress":1.10}'


@generated
@given(error=errors, code=st.sampled_from([b"-32603", b"-32020", b"7"]))
async def test_errors_come_back_as_they_were_said(pair: Pair, error: bytes, code: bytes) -> None:
    """Its own codes are the modern server's to choose, those of the modern specification included."""
    said = with_code(error, code)
    exchange = await pair.ask(names.TOOLS_CALL, [(b'"name"', b'"any"')], directed((echo.ERROR, said)))
    assert flat(exchange.error) == flat(said)


@generated
@given(error=errors)
async def test_the_old_code_of_a_missing_resource_never_leaves(pair: Pair, error: bytes) -> None:
    """Not even from a modern server; all else in the error stays (contract section 3)."""
    said = with_code(error, b"-32002")
    exchange = await pair.ask(names.TOOLS_CALL, [(b'"name"', b'"any"')], directed((echo.ERROR, said)))
    assert flat(exchange.error) == flat(with_code(error, b"-32602"))


@generated
@given(error=errors)
async def test_a_code_that_modern_reserves_never_leaves(pair: Pair, error: bytes) -> None:
    """The error itself is all there, in `data` (contract section 3)."""
    said = with_code(error, b"-32050")
    exchange = await pair.ask(names.TOOLS_CALL, [(b'"name"', b'"any"')], directed((echo.ERROR, said)))
    assert value(exchange.error, "code") == b"-32603"
    assert flat(value(exchange.error, "data", "upstreamError") or b"") == flat(said)


def with_code(error: bytes, code: bytes) -> bytes:
    return joined([(key, code if key == b'"code"' else raw) for key, raw in members(error)])


async def test_discovery_is_the_servers_own_with_the_extension(pair: Pair) -> None:
    """F18."""
    result = (await pair.ask(names.DISCOVER, [], [])).result
    capabilities = value(result, "capabilities") or b""
    assert flat_members(capabilities, {"extensions"}) == list(echo.CAPABILITIES)
    owned = {"capabilities", "supportedVersions"}
    assert flat_members(result, owned) == flat_members(echo.DISCOVERED, owned)


@generated
@given(question=others("mode").map(joined), state=strings, content=objects)
async def test_questions_and_their_answers_are_passed_on_as_they_came(
    pair: Pair, question: bytes, state: bytes, content: bytes
) -> None:
    """MRTR before the threshold is between the client and the server."""
    said = asks(question, state)
    name = (b'"name"', b'"any"')
    asked = await pair.ask(names.TOOLS_CALL, [name], directed((echo.RESULT, said)))
    assert flat(asked.result) == flat(said)
    responses = joined([(b'"k\\u0031"', answers(content))])
    again = [name, (b'"inputResponses"', responses), (b'"requestState"', state)]
    exchange = await pair.ask(names.TOOLS_CALL, again, [])
    pair.assert_sent_on(exchange)
    assert flat(value(exchange.result, "answers") or b"") == flat(responses)


# ------------------------------------------------------------------------------ tasks


@settings(generated, max_examples=10)
@given(ending=endings)
@example(ending=(echo.RESULT, b'{"ttlMs":1.0,"content":[ ],"resultType" : "complete"}'))
@example(ending=(echo.ERROR, b'{"code":-32050 ,"message":"", "data":1.10}'))
async def test_a_task_ends_with_what_the_blocking_call_would_have_said(pair: Pair, ending: Ending) -> None:
    """Contract section 4, TX-GET-004, TX-GET-006."""
    part = ending[0].removeprefix("test/")
    blocking = await pair.ask(names.TOOLS_CALL, [(b'"name"', b'"any"')], directed(ending))
    task = await ended(pair, await kept(pair, directed(ending)))
    assert flat(value(task, part) or b"") == flat(value(blocking.answer, part) or b"")


@settings(generated, max_examples=8)
@given(question=others("mode").map(joined), state=strings, content=objects)
async def test_a_task_asks_and_is_answered_with_the_texts_of_both_sides(
    pair: Pair, question: bytes, state: bytes, content: bytes
) -> None:
    """MRTR-017: the retry is ours, its state and its answers are theirs."""
    task_id = await kept(pair, directed((echo.RESULT, asks(question, state))))
    task = await task_with(pair, task_id, b'"input_required"')
    [(key, shown)] = members(value(task, "inputRequests") or b"")
    assert flat(value(shown, "params") or b"") == flat(question)
    given_answer = joined([(key, answers(content))])
    update = [(b'"taskId"', task_id), (b'"inputResponses"', given_answer)]
    await pair.ask(names.TASKS_UPDATE, update, [])
    task = await ended(pair, task_id)
    got = value(task, "result", "answers")
    assert flat(got or b"") == flat(joined([(b'"k1"', answers(content))]))
