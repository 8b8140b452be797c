"""One answer of the upstream rewritten on its way to a legacy client: as JSON, or on an event stream.

Above: `http_tasks`, for `initialize` and `tools/list`. Below: a `Reply` as it was passed on. Whatever else is
in it stays as it came. Contract section 5.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Final

from proxy.errors import UpstreamProtocolError
from proxy.protocol import jsonrpc, sse
from proxy.protocol.jsonrpc import MessageError, RequestId, ResultResponse
from proxy.protocol.sse import Block, BlockSplitter, EventTooLarge
from proxy.routing.legacy import Reply
from proxy.routing.own_server import with_values

Header = tuple[str, str]
Reword = Callable[[bytes], Awaitable[bytes]]
"""From the upstream's raw result to the client's; the very same object where nothing changes."""

_LENGTH: Final = "content-length"


class Rewording:
    """Of the result of the request `rid`. `max_bytes` and `max_depth` bound what is read."""

    def __init__(self, rid: RequestId, reword: Reword, *, max_bytes: int, max_depth: int) -> None:
        self._rid = rid
        self._reword = reword
        self._max_bytes = max_bytes
        self._max_depth = max_depth

    async def of(self, reply: Reply) -> Reply:
        """The reply with its result reworded; an error, or what is no answer, is left as it is. Raises
        UpstreamProtocolError if the body is over the limit."""
        kind = header_in(reply.headers, "content-type").partition(";")[0].strip().lower()
        encoding = header_in(reply.headers, "content-encoding").lower()
        if reply.status != HTTPStatus.OK or encoding not in ("", "identity"):
            return reply
        headers = [(key, value) for key, value in reply.headers if key.lower() != _LENGTH]
        if kind == "text/event-stream":
            return Reply(reply.status, headers, self._events(_chunks(reply.body)))
        if kind == "application/json":
            body = await self._message(await whole(reply.body, self._max_bytes))
            return Reply(reply.status, [*headers, ("Content-Length", str(len(body)))], body)
        return reply

    async def _events(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        splitter = BlockSplitter(self._max_bytes)
        try:
            async for chunk in chunks:
                for block in splitter.feed(chunk):
                    yield await self._block(block)
        except EventTooLarge as exc:
            raise UpstreamProtocolError(f"{exc} (limits.message)") from exc
        yield splitter.rest()

    async def _block(self, block: Block) -> bytes:
        event = block.event
        if event is None or event.event != sse.MESSAGE or not event.data:
            return block.raw
        data = await self._message(event.data)
        if data is event.data:
            return block.raw
        return sse.encode(data, event_id=event.id, retry_ms=event.retry_ms)

    async def _message(self, raw: bytes) -> bytes:
        """The very same object where there is nothing to reword."""
        try:
            message = jsonrpc.parse(raw, self._max_depth)
        except MessageError:
            return raw
        if not isinstance(message, ResultResponse) or message.id.value != self._rid.value:
            return raw
        result = await self._reword(message.result)
        return raw if result is message.result else with_values(raw, {"result": result})


async def whole(body: bytes | AsyncIterator[bytes], max_bytes: int) -> bytes:
    """Raises UpstreamProtocolError if it is over the limit."""
    read = bytearray()
    async for chunk in _chunks(body):
        read += chunk
        if len(read) > max_bytes:
            raise UpstreamProtocolError(
                f"the upstream's answer is over the limit of {max_bytes} bytes (limits.message)"
            )
    return bytes(read)


def without_header(headers: Sequence[Header], name: str) -> list[Header]:
    return [(key, value) for key, value in headers if key.lower() != name.lower()]


def header_in(headers: Sequence[Header], name: str) -> str:
    """The first value of a header; `name` in lower case. Empty if there is none."""
    return next((value.strip() for key, value in headers if key.lower() == name), "")


async def _chunks(body: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if isinstance(body, bytes):
        yield body
    else:
        async for chunk in body:
            yield chunk
