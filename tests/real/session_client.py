"""A legacy client over HTTP that shows the wire: statuses, headers, events, and sockets that it can drop."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import anyio

from proxy.protocol import names
from proxy.protocol.sse import Event, EventDecoder

STREAM: Final = "text/event-stream"
BOTH: Final = f"application/json, {STREAM}"
MAX_EVENT_BYTES: Final = 1 << 28
BOUND_S: Final = 30.0

ANSWERS: Final[Mapping[str, Any]] = {
    names.ELICITATION_CREATE: {"action": "accept", "content": {"confirm": True, "name": "Ada"}},
    names.SAMPLING_CREATE_MESSAGE: {
        "role": "assistant",
        "content": {"type": "text", "text": "42"},
        "model": "m",
    },
    names.ROOTS_LIST: {"roots": [{"uri": "file:///home"}]},
}
CAN: Final[Mapping[str, Any]] = {"elicitation": {}, "sampling": {}, "roots": {"listChanged": True}}


class Exchange:
    """One HTTP request, its response being read. `events` are those so far, primings too."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.events: list[Event] = []
        self.comments = 0
        self._response = response
        self._decoder = EventDecoder(MAX_EVENT_BYTES)
        self._messages: deque[dict[str, Any]] = deque()

    @property
    def is_stream(self) -> bool:
        return self._response.content_type == STREAM

    @property
    def last_id(self) -> str:
        return [event.id for event in self.events if event.id is not None][-1]

    async def message(self, *, within_s: float = BOUND_S) -> dict[str, Any] | None:
        """The next one; None at the end of the response."""
        with anyio.fail_after(within_s):
            while not self._messages:
                if not (await self.read_on()):
                    return None
        return self._messages.popleft()

    async def read_on(self) -> bool:
        """Take in what comes next; False at the end."""
        if self.is_stream:
            chunk = await self._response.content.readany()
            self._take(chunk)
            return bool(chunk)
        body = b"" if self._response.content.at_eof() else await self._response.read()
        if body:
            whole = json.loads(body)
            self._messages += whole if isinstance(whole, list) else [whole]
        return bool(body)

    def _take(self, chunk: bytes) -> None:
        self.comments += chunk.count(b"\n: \n") + chunk.startswith(b": \n")
        events = self._decoder.feed(chunk)
        self.events += events
        self._messages += [json.loads(event.data) for event in events if event.data]

    async def all(self, *, within_s: float = BOUND_S) -> list[dict[str, Any]]:
        """What follows, to the end."""
        found = []
        with anyio.fail_after(within_s):
            while (message := await self.message(within_s=within_s)) is not None:
                found.append(message)
        return found

    async def until(self, method: str, *, within_s: float = BOUND_S) -> dict[str, Any]:
        """The next message of this method; those before it are dropped."""
        with anyio.fail_after(within_s):
            while (message := await self.message(within_s=within_s)) is not None:
                if message.get("method") == method:
                    return message
        raise AssertionError(f"the stream ended without {method}")


class SessionClient:
    """`connected` makes one. Requests carry the session id and the version once there was a handshake."""

    def __init__(self, url: str, http: aiohttp.ClientSession, headers: Mapping[str, str]) -> None:
        self.url = url
        self.session_id: str | None = None
        self.version: str | None = None
        self._http = http
        self._headers = headers
        self._ids = itertools.count(1)

    def headers(self, **more: str | None) -> dict[str, str]:
        """`more`: others, or None for a header to be left out; names with underscores."""
        said: dict[str, str | None] = {
            **self._headers,
            "Accept": BOTH,
            names.H_SESSION_ID: self.session_id,
            names.H_PROTOCOL_VERSION: self.version,
            **{key.replace("_", "-"): value for key, value in more.items()},
        }
        return {key: value for key, value in said.items() if value is not None}

    @asynccontextmanager
    async def exchange(self, method: str, body: Any = None, **headers: str | None) -> AsyncIterator[Exchange]:
        """One HTTP request. Leaving drops the connection if the response has not ended."""
        said = self.headers(**headers)
        data = None
        if body is not None:
            data, said["Content-Type"] = json.dumps(body).encode(), "application/json"
        async with self._http.request(method, self.url, data=data, headers=said) as response:
            yield Exchange(response)

    @asynccontextmanager
    async def asking(self, method: str, params: Any = None, *, rid: Any = None) -> AsyncIterator[Exchange]:
        """A request whose response is read as it comes."""
        body = {"jsonrpc": "2.0", "id": next(self._ids) if rid is None else rid, "method": method}
        async with self.exchange("POST", body if params is None else {**body, "params": params}) as exchange:
            yield exchange

    @asynccontextmanager
    async def listening(self, last_event_id: str | None = None) -> AsyncIterator[Exchange]:
        async with self.exchange("GET", Accept=STREAM, Last_Event_ID=last_event_id) as exchange:
            assert exchange.status == 200, exchange.status
            yield exchange

    async def request(self, method: str, params: Any = None, *, rid: Any = None) -> list[dict[str, Any]]:
        """All that is said in its response, the answer last. What the server asks is answered."""
        heard = []
        async with self.asking(method, params, rid=rid) as exchange:
            assert exchange.status == 200, exchange.status
            while (message := await exchange.message()) is not None:
                heard.append(message)
                if "id" in message and "method" in message:
                    await self.answer(message)
        return heard

    async def call(self, tool: str, *, token: Any = None, **arguments: Any) -> list[dict[str, Any]]:
        meta = {} if token is None else {"_meta": {"progressToken": token}}
        return await self.request(names.TOOLS_CALL, {"name": tool, "arguments": arguments, **meta})

    async def answer(self, question: Mapping[str, Any]) -> None:
        await self.tell({"id": question["id"], "result": ANSWERS[question["method"]]})

    async def tell(self, *messages: Mapping[str, Any], status: int = 202) -> None:
        """What is not answered."""
        for message in messages:
            async with self.exchange("POST", {"jsonrpc": "2.0", **message}) as exchange:
                assert exchange.status == status, exchange.status

    async def status_of(self, method: str, **headers: str | None) -> int:
        """Of a GET, a DELETE, or a POST of `tools/list`."""
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": names.TOOLS_LIST}
        async with self.exchange(method, body if method == "POST" else None, **headers) as exchange:
            return exchange.status

    async def initialize(self, version: str = names.LATEST_LEGACY, **capabilities: Any) -> dict[str, Any]:
        """A session, or a new one; the server's result."""
        self.session_id = self.version = None
        params = {
            "protocolVersion": version,
            "capabilities": capabilities,
            "clientInfo": {"name": "wire", "version": "1"},
        }
        async with self.asking(names.INITIALIZE, params) as exchange:
            [answer] = await exchange.all()
            self.session_id = exchange.headers.get(names.H_SESSION_ID)
        self.version = answer["result"]["protocolVersion"]
        await self.tell({"method": names.INITIALIZED})
        result: dict[str, Any] = answer["result"]
        return result


@asynccontextmanager
async def connected(url: str, headers: Mapping[str, str] | None = None) -> AsyncIterator[SessionClient]:
    """A client, not yet initialized, whose connections are gone afterwards."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout, read_bufsize=1 << 20
    ) as http:
        yield SessionClient(url, http, headers or {})


def text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the tool result that ends them."""
    content: str = messages[-1]["result"]["content"][0]["text"]
    return content
