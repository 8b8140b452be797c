"""A client of one kind, the proxy, and the echo server behind one transport: texts go in, texts come out.

What differs by era is settled here: a modern request needs `_meta` of its own, and answers questions by
asking again; a legacy one comes after `initialize`, and gets questions as requests.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from proxy.eras.era import Era
from proxy.protocol import names
from proxy.protocol.envelope import dumps
from tests.real.proxy_process import Upstream
from tests.real.raw_links import Link
from tests.real.upstreams import echo
from tests.real.upstreams.raw_json import Members, flat, joined, members, value, without
from tests.real.upstreams.record import Record

COUNTER: Final = b'"test/n"'
AGAIN: Final = b'"again"'  # the id of a request that brings an answer

CLIENT_INFO: Final = b'{"name":"raw-client","version":"1"}'
CAPABILITIES: Final = b'{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}'
OF_THE_ERA: Final[Members] = [
    (dumps(names.META_PROTOCOL_VERSION), dumps(names.LATEST_MODERN)),
    (dumps(names.META_CLIENT_INFO), CLIENT_INFO),
    (dumps(names.META_CLIENT_CAPABILITIES), CAPABILITIES),
]
HANDSHAKE: Final = (
    b'{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":' + CLIENT_INFO + b"}"
)
OURS: Final = frozenset(
    {
        names.META_PROTOCOL_VERSION,
        names.META_CLIENT_INFO,
        names.META_CLIENT_CAPABILITIES,
        names.META_PROGRESS_TOKEN,
    }
)
"""Keys of a request's `_meta` that are between the client and the proxy."""


def echo_command(record: Path, transport: str, port: int = 0) -> list[str]:
    return [sys.executable, "-m", "tests.real.upstreams.echo", str(record), transport, str(port)]


def stdio_proxy(home: Path, upstream: Upstream, settings: Mapping[str, Any]) -> list[str]:
    """The command of a proxy that is started as a client's configuration says it."""
    config = home / "stdio.yaml"
    config.write_text(yaml.safe_dump({"store": {"url": f"disk:{home / 'stdio-store'}"}, **settings}))
    to = ["--upstream", upstream] if isinstance(upstream, str) else ["--", *upstream]
    return [sys.executable, "-m", "proxy", "--listen", "stdio", "--config", str(config), *to]


@dataclass(slots=True)
class Exchange:
    """One request and all that came of it, as it was written."""

    sent: bytes
    sent_id: bytes
    answer: bytes = b""
    notifications: list[bytes] = field(default_factory=list)
    questions: list[bytes] = field(default_factory=list)
    """The raw params of what the client was asked."""
    upstream: list[bytes] = field(default_factory=list)
    """What the server got meanwhile."""

    @property
    def result(self) -> bytes:
        return self._part("result")

    @property
    def error(self) -> bytes:
        return self._part("error")

    def _part(self, name: str) -> bytes:
        found = value(self.answer, name)
        assert found is not None, f"no {name}: {self.answer[:500]!r}"
        return found

    @property
    def seen(self) -> bytes:
        """The request as the server got it: once."""
        found = [m for m in self.upstream if value(m, "params", "_meta", "test/n") is not None]
        assert len(found) == 1, f"seen {len(found)} times; the answer: {self.answer[:500]!r}"
        return found[0]

    @property
    def answered(self) -> list[bytes]:
        """The answers to its questions as the server got them."""
        return [m for m in self.upstream if value(m, "method") is None]


class Pair:
    """One client over one link."""

    def __init__(self, era: Era, link: Link, record: Record) -> None:
        self.era = era
        self.link = link
        self._record = record
        self._numbers = itertools.count(1)

    @property
    def is_modern(self) -> bool:
        return self.era is Era.MODERN

    async def initialize(self) -> bytes:
        """The handshake of a legacy client; the server's answer."""
        await self.link.send(b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":' + HANDSHAKE + b"}")
        answer = await self.link.receive()
        await self.link.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        return answer

    async def ask(
        self,
        method: str,
        params: Members,
        meta: Members,
        *,
        rid: bytes | None = None,
        answers: Sequence[bytes] = (),
    ) -> Exchange:
        """Send a request, answer its questions in turn, and read to its end."""
        list(self._record.new())
        number = b"%d" % next(self._numbers)
        own = [*(OF_THE_ERA if self.is_modern else []), *meta, (COUNTER, number)]
        members_sent = [*params, (b'"_meta"', spaced(own))]
        exchange = await self._send(method, members_sent, rid or number)
        left = list(answers)
        while True:
            message = await self.link.receive()
            if value(message, "method") is None:
                exchange.answer = message
                if not left or not self._asks(message):
                    break
                exchange.questions += await self._retry(method, members_sent, message, left.pop(0))
                exchange.sent_id = AGAIN
            elif (question := value(message, "id")) is None:
                exchange.notifications.append(message)
            else:
                exchange.questions.append(value(message, "params") or b"")
                head = b'{"jsonrpc":"2.0","id":' + question
                await self.link.send(head + b',"result":' + left.pop(0) + b"}")
        exchange.upstream = list(self._record.new())
        return exchange

    async def ask_raw(self, *texts: bytes) -> tuple[bytes, list[bytes]]:
        """Send these very texts; the answer to the last one, and what the server got meanwhile."""
        list(self._record.new())
        for text in texts:
            await self.link.send(text)
        return await self.link.receive(), list(self._record.new())

    async def _send(self, method: str, params: Members, rid: bytes) -> Exchange:
        head = b'{ "jsonrpc":"2.0" ,\n\t"x-more":1.0,"id" : '
        text = head + rid + b',"method":' + dumps(method) + b' , "params":' + spaced(params) + b" \r\n}"
        exchange = Exchange(flat(text) if self.link.one_line else text, rid)
        await self.link.send(exchange.sent)
        return exchange

    def _asks(self, answer: bytes) -> bool:
        return self.is_modern and value(answer, "result", "resultType") == b'"input_required"'

    async def _retry(self, method: str, params: Members, asked: bytes, answer: bytes) -> list[bytes]:
        """Ask again, with the answer to the one question; what was asked."""
        [(key, question)] = members(value(asked, "result", "inputRequests") or b"{}")
        state = value(asked, "result", "requestState") or b""
        again = [*params, (b'"inputResponses"', joined([(key, answer)])), (b'"requestState"', state)]
        await self._send(method, again, AGAIN)
        return [value(question, "params") or b""]

    # -- what must be the same -----------------------------------------------------------------------

    def assert_sent_on(self, exchange: Exchange) -> None:
        """The request is the same text on both sides, apart from what the proxy has to change."""
        if not self.is_modern:
            head, tail = exchange.sent.split(b'"id" : ' + exchange.sent_id, 1)
            seen = flat(exchange.seen)
            assert seen.startswith(flat(head))
            assert seen.endswith(flat(tail))
            assert seen.removeprefix(flat(head)).removesuffix(flat(tail)).removeprefix(b'"id" : ').isdigit()
            return
        sent, got = value(exchange.sent, "params"), value(exchange.seen, "params")
        assert sent is not None
        assert got is not None
        assert flat_members(got, {"_meta"}) == flat_members(sent, {"_meta"})
        assert flat_members(value(got, "_meta"), OURS) == flat_members(value(sent, "_meta"), OURS)

    def assert_result(self, exchange: Exchange, said: bytes, *owned: str) -> None:
        """The result is the text that the server said, but for the members that the proxy owns."""
        if not self.is_modern:
            assert flat(exchange.answer) == flat(echo.answer_text(exchange.sent_id, b"result", said))
            return
        assert value(exchange.answer, "id") == exchange.sent_id
        assert_lifted(exchange.result, said, *owned)


def spaced(found: Members) -> bytes:
    """An object of these members, as nobody would write it."""
    return b"{\t" + b" ,\r\n".join(key + b" : " + raw for key, raw in found) + b"\n}"


def assert_lifted(result: bytes, said: bytes, *owned: str) -> None:
    """A modern result is what the legacy server said and what the modern era adds (contract, section 3)."""
    assert value(result, "resultType") == b'"complete"'
    added = {"_meta", "resultType", *owned}
    assert flat_members(result, added) == flat_members(said, added)
    meta = value(result, "_meta")
    assert value(meta or b"{}", names.META_SERVER_INFO) == echo.SERVER_INFO
    theirs = value(said, "_meta")
    assert flat_members(meta, {names.META_SERVER_INFO}) == flat_members(theirs, {names.META_SERVER_INFO})


def flat_members(raw: bytes | None, less: frozenset[str] | set[str]) -> Members:
    """The members of an object, each on one line; none if there is no object."""
    return [(key, flat(text)) for key, text in without(members(raw or b"{}"), less)]
