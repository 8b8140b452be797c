"""Our own answers to legacy requests over HTTP: plain JSON, or, while `tasks/result` waits, an event stream.

Above: `http_tasks`. Below: `task_session`. A wait ends with its client's connection, or when the client
cancels the request; the task goes on in either case. Transports 2025-11-25, "Sending Messages to the Server";
contract section 5.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final, assert_never

import anyio

from proxy.errors import InternalError, LimitReached, ProxyError
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names, sse
from proxy.protocol.jsonrpc import Request, RequestId
from proxy.routing.base import ErrorAnswer, ResultAnswer
from proxy.routing.get_streams import GetStream
from proxy.routing.legacy import JSON, STREAM_HEADERS, HttpMessage, Reply
from proxy.routing.passed_session import OwnersPart

QUICK_S: Final = 0.05  # what is answered so soon needs no event stream

_CANCELLED: Final = Reply(HTTPStatus.ACCEPTED, ())

log = get_logger()


class StreamChannel:
    """An event stream of a session as a way to its client. Implements `offers.Channel`."""

    def __init__(self, stream: GetStream) -> None:
        self._stream = stream

    @property
    def is_open(self) -> bool:
        return not self._stream.ended.is_set()

    def send(self, message: bytes) -> bool:
        """A client that is too far behind is given up: what it was asked is then asked elsewhere."""
        is_taken = self._stream.send(sse.encode(message))
        if not is_taken:
            self._stream.end(LimitReached("the stream was read too slowly", retry_after_s=1))
        return is_taken


class _Wait:
    """For the answer to one request."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.reply: Reply | None = _CANCELLED


class Served:
    """Serves what is claimed, and keeps what its clients wait for."""

    def __init__(self) -> None:
        self._waits: dict[tuple[OwnersPart, int | str], _Wait] = {}

    def __repr__(self) -> str:
        return f"<Served {len(self._waits)} waiting>"

    @asynccontextmanager
    async def serve(
        self, message: HttpMessage, part: OwnersPart, request: Request
    ) -> AsyncIterator[Reply | None]:
        """The reply; None if the request belongs to the upstream after all. Raises LimitReached."""
        if request.method != names.TASKS_RESULT:
            yield await _reply(part, request, None)
            return
        wait, stream = _Wait(), GetStream()
        accept = [value for key, value in message.headers if key.lower() == "accept"]
        may_stream = any("text/event-stream" in value for value in accept)
        self._waits[(part, request.id.value)] = wait
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_wait_for, wait, part, request, stream if may_stream else None)
                with anyio.move_on_after(QUICK_S if may_stream else None):
                    await wait.done.wait()
                yield wait.reply if wait.done.is_set() else Reply(HTTPStatus.OK, STREAM_HEADERS, stream)
                tasks.cancel_scope.cancel()
        finally:
            stream.end()
            self._waits.pop((part, request.id.value), None)

    def waits(self, part: OwnersPart, rid: RequestId | None) -> bool:
        """Whether the client waits here for the request of this id."""
        return rid is not None and (part, rid.value) in self._waits

    def cancel(self, part: OwnersPart, rid: RequestId | None) -> bool:
        """The client cancels the request of this id. Whether it waited for it here."""
        wait = self._waits.get((part, rid.value)) if rid is not None else None
        if wait is not None:
            wait.scope.cancel()
        return wait is not None


async def _wait_for(wait: _Wait, part: OwnersPart, request: Request, stream: GetStream | None) -> None:
    try:
        with wait.scope:
            wait.reply = await _reply(part, request, None if stream is None else StreamChannel(stream))
            if stream is not None and wait.reply is not None:
                assert isinstance(wait.reply.body, bytes)  # an answer of ours
                stream.send(sse.encode(wait.reply.body))
    finally:
        wait.done.set()
        if stream is not None:
            stream.end()


async def _reply(part: OwnersPart, request: Request, channel: StreamChannel | None) -> Reply | None:
    """JSON-RPC errors are ordinary answers here (status 200), but for limits, which say when to come back."""
    try:
        answer = await part.tasks.serve(request, channel)
    except LimitReached:
        raise
    except ProxyError as exc:
        error = jsonrpc.error_object(exc.code, exc.message, exc.data)
        return _json(jsonrpc.error_response(request.id, error))
    except Exception:
        log.exception("request_failed", method=request.method)
        fault = InternalError()
        error = jsonrpc.error_object(fault.code, fault.message)
        return _json(jsonrpc.error_response(request.id, error))
    match answer:
        case None:
            return None
        case ResultAnswer(result):
            return _json(jsonrpc.result_response(request.id, result))
        case ErrorAnswer(error):
            return _json(jsonrpc.error_response(request.id, error))
        case _:
            assert_never(answer)


def _json(body: bytes) -> Reply:
    return Reply(HTTPStatus.OK, (JSON, ("Content-Length", str(len(body)))), body)
