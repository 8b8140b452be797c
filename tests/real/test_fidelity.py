"""The same text on both sides: generated JSON, odd in every way that JSON may be, over every pair of transports.

Holds I1 of the contract; F17, F18, F19 and F21 of the field reports; BASE-001. A client writes raw bytes, the
server writes back the raw bytes it was told to, and records what it got; nothing between them may have
understood a number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from proxy.eras.era import Era
from proxy.protocol import names
from proxy.protocol.envelope import dumps
from tests.protocol import json_texts
from tests.real.processes import Program, accepts, free_port
from tests.real.proxy_process import ProxyProcess
from tests.real.raw_links import http_link, stdio_link
from tests.real.raw_pair import (
    TRANSPORTS,
    Exchange,
    Pair,
    Transport,
    assert_lifted,
    echo_command,
    flat_members,
    upstream_of,
)
from tests.real.upstreams import echo
from tests.real.upstreams.raw_json import Members, elements, flat, joined, meaning, members, value
from tests.real.upstreams.record import Record
from tests.real.waiting import asked_until, until

pytestmark = pytest.mark.anyio

SETTINGS: Final = {"tasks": {"tools": [{"match": "kept", "threshold": "0s"}]}, "drain": "1s"}
DEEPEST: Final = 480  # with what is around it, below the default bound of 512

generated = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

# ------------------------------------------------------------------------------ what is sent


def nested(depth: int) -> bytes:
    return b'{"a": [' * (depth // 2) + b'"\\udc00"' + b"]}" * (depth // 2)


anything = st.one_of(json_texts.texts(), json_texts.texts(), st.integers(65, DEEPEST).map(nested))
objects = json_texts.objects(anything).map(lambda made: made[0])


def others(*read: str) -> st.SearchStrategy[Members]:
    """Members of which the proxy reads none; some keys stand twice."""
    keys = json_texts.keys.filter(lambda key: meaning(key) not in read)
    return st.lists(st.tuples(keys, anything), max_size=4)


vendor = others()
TEXT: Final = b'"content":[{"type":"hologram","x":1.10,"x":1.1}]'
ODD: Final = b'{"n":[1E400, -0,1.10,\r\n9007199254740993 ] ,"n":"\\ud83d\xe2\x80\xa8", "a":null}'


def directed(*more: tuple[str, bytes]) -> Members:
    """Members of `_meta` that tell the echo server what to say."""
    return [(dumps(key), raw) for key, raw in more]


# ------------------------------------------------------------------------------ the pairs


@dataclass(frozen=True, slots=True)
class Scene:
    """A server behind one transport, and two proxies in front: one on HTTP, one on stdio."""

    transport: Transport
    pairs: dict[str, Pair]
    initialized: bytes
    """What the legacy client got from its handshake."""


@pytest.fixture(scope="module", params=TRANSPORTS)
async def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    transport: Transport = request.param
    home = tmp_path_factory.mktemp(transport)
    async with AsyncExitStack() as stack:
        record = Record(home / "record")
        upstream = await started_upstream(home, transport, stack)
        proxy = ProxyProcess(home, upstream, SETTINGS)
        stack.push_async_callback(proxy.stop)
        await proxy.start()
        http = await stack.enter_async_context(http_link(proxy.url))
        stdio = await stack.enter_async_context(
            stdio_link(stdio_proxy(home, upstream, SETTINGS), home / "stdio.log")
        )
        legacy = Pair(Era.LEGACY, stdio, record)
        yield Scene(
            transport,
            {
                "modern http": Pair(Era.MODERN, http, record),
                "modern stdio": Pair(Era.MODERN, stdio, record),
                "legacy stdio": legacy,
            },
            await legacy.initialize(),
        )


async def started_upstream(home: Path, transport: Transport, stack: AsyncExitStack) -> Upstream:
    """Where the server is; over stdio it is the proxy that starts it."""
    if transport == "stdio":
        return echo_command(home / "record", transport)
    port = free_port()
    server = Program(echo_command(home / "record", transport, port), log=home / "server.log")
    stack.push_async_callback(server.stop)
    await until(lambda: accepts(port), "the echo server listens")
    return f"http://127.0.0.1:{port}/mcp"


@pytest.fixture(params=["modern http", "modern stdio", "legacy stdio"])
def pair(request: pytest.FixtureRequest, scene: Scene) -> Pair:
    return scene.pairs[request.param]


@pytest.fixture(params=["modern http", "modern stdio"])
def modern(request: pytest.FixtureRequest, scene: Scene) -> Pair:
    return scene.pairs[request.param]


# ------------------------------------------------------------------------------ requests


@generated
@given(arguments=objects, more=others("name", "arguments", *OF_A_CALL), meta=vendor)
@example(arguments=ODD, more=[], meta=[])
async def test_arguments_and_meta_go_out_as_they_came(
    pair: Pair, arguments: bytes, more: Members, meta: Members
) -> None:
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
