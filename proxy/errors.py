"""Every fault that the proxy itself can report, and the table of what each one looks like on the wire.

A fault has an owner: the operator's (`ConfigError`), the client's (`ClientProtocolError`, `AccessDenied`,
`Unauthorized`, `LimitReached`, `TaskNotFound`), the server's (`UpstreamError` and below), or ours
(`TaskConflict`, `IllegalTransition`, `StoreError`, `InternalError`). Foreign exceptions become one of
these on the line where they enter. `downstream/base.py` alone turns them into JSON-RPC errors and HTTP
statuses.

Answers of the upstream are not in here: an upstream's error travels as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from http import HTTPStatus
from typing import Any, ClassVar, Final


class ErrorCode(IntEnum):
    """JSON-RPC error codes (JSON-RPC 2.0 section 5.1; MCP 2026-07-28 "Error Codes")."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    HEADER_MISMATCH = -32020
    MISSING_CLIENT_CAPABILITY = -32021
    UNSUPPORTED_PROTOCOL_VERSION = -32022


HTTP_STATUS: Final[Mapping[ErrorCode, HTTPStatus]] = {
    ErrorCode.PARSE_ERROR: HTTPStatus.BAD_REQUEST,
    ErrorCode.INVALID_REQUEST: HTTPStatus.BAD_REQUEST,
    ErrorCode.METHOD_NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorCode.INVALID_PARAMS: HTTPStatus.OK,
    ErrorCode.INTERNAL_ERROR: HTTPStatus.OK,
    ErrorCode.HEADER_MISMATCH: HTTPStatus.BAD_REQUEST,
    ErrorCode.MISSING_CLIENT_CAPABILITY: HTTPStatus.BAD_REQUEST,
    ErrorCode.UNSUPPORTED_PROTOCOL_VERSION: HTTPStatus.BAD_REQUEST,
}
"""HTTP status of an error answer, unless the error says otherwise (Streamable HTTP 2026-07-28)."""


class ProxyError(Exception):
    """A fault with a JSON-RPC code, a message for people, and optional `data`."""

    code: ErrorCode = ErrorCode.INTERNAL_ERROR
    status: HTTPStatus | None = None
    """HTTP status where it differs from `HTTP_STATUS[code]`."""

    def __init__(self, message: str, *, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data

    @property
    def http_status(self) -> HTTPStatus:
        return self.status or HTTP_STATUS[self.code]


class ConfigError(ProxyError):
    """The operator's: a setting that cannot be used. One clear line, exit code 2."""


class ClientProtocolError(ProxyError):
    """The client's: a message that breaks the protocol."""

    def __init__(
        self, code: ErrorCode, message: str, *, data: Any = None, status: HTTPStatus | None = None
    ) -> None:
        super().__init__(message, data=data)
        self.code = code
        self.status = status


class AccessDenied(ProxyError):
    """The client's: an Origin or Host that may not talk to us (403)."""

    code = ErrorCode.INVALID_REQUEST
    status = HTTPStatus.FORBIDDEN


class Unauthorized(ProxyError):
    """The client's: a credential is missing, or is none that counts here (401), or comes from where it may
    not (403). `challenges` say how to get one; `reason` is one word for logs and metrics."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        challenges: tuple[str, ...] = (),
        status: HTTPStatus = HTTPStatus.UNAUTHORIZED,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.challenges = challenges
        self.status = status


class LimitReached(ProxyError):
    """The client's: a documented bound was hit; `retry_after_s` says when to come back."""

    code = ErrorCode.INTERNAL_ERROR
    status = HTTPStatus.TOO_MANY_REQUESTS

    def __init__(
        self, message: str, *, retry_after_s: int, status: HTTPStatus = HTTPStatus.TOO_MANY_REQUESTS
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status


class PolledTooFast(LimitReached):
    """The client's: a task was asked for more often than `limits.polls_per_task` allows."""


class ShuttingDown(LimitReached):
    """The client's: the proxy takes nothing new any more (503)."""

    def __init__(self, *, retry_after_s: int) -> None:
        super().__init__(
            "the proxy is shutting down; nothing was sent to the server",
            retry_after_s=retry_after_s,
            status=HTTPStatus.SERVICE_UNAVAILABLE,
        )


class TaskNotFound(ProxyError):
    """Missing, expired or another owner's task: one answer for all three (contract section 8)."""

    code = ErrorCode.INVALID_PARAMS
    MESSAGE: ClassVar[str] = "Task not found: no such task, or it has expired"

    def __init__(self) -> None:
        super().__init__(self.MESSAGE)


class UpstreamError(ProxyError):
    """The server's: a call could not be carried out. The message names the upstream, no internals."""

    is_for_good: bool = False
    """Whether the same message would fare no better if it was sent again."""


class UpstreamUnavailable(UpstreamError):
    """The upstream could not be reached or started; nothing was sent."""


class NoCredential(UpstreamUnavailable):
    """The proxy has no credential of its own at the moment, and nothing is sent without one."""


class ServerGone(UpstreamUnavailable):
    """The session had ended when the message came to it: another one may take it."""

    is_for_good = True


class UpstreamTimeout(UpstreamError):
    """The upstream did not answer within a bound of ours."""


class UpstreamClosed(UpstreamError):
    """The connection ended while a call was running; whether the call ran is not known."""


class SessionLost(UpstreamClosed):
    """The upstream no longer knows the session (404); the next call gets a new one."""

    is_for_good = True


class SessionUnknown(SessionLost):
    """With that it answered the request itself, of which nothing ran."""


class UpstreamProtocolError(UpstreamError):
    """The upstream sent something that is not the protocol."""


class UpstreamRefused(UpstreamError):
    """The upstream answered 401 or 403; status and challenge are passed on to the client. Without a status it
    was a credential of our own that it refused, which is no matter of the client's."""

    def __init__(self, message: str, *, status: HTTPStatus | None, challenges: tuple[str, ...]) -> None:
        super().__init__(message)
        self.status = status
        self.challenges = challenges
        self.is_for_good = status is HTTPStatus.FORBIDDEN


class TaskConflict(ProxyError):
    """Ours: the stored task is no longer the one that the change was made from; read it again."""


class IllegalTransition(ProxyError):
    """Ours: an event that the table of transitions does not allow in this status."""


class StoreError(ProxyError):
    """Ours: the store could not read or write."""


class InternalError(ProxyError):
    """Ours: a bug. What it was stands in the log alone; `consequence` is what it means to the caller."""

    def __init__(self, consequence: str | None = None) -> None:
        fault = "internal error of the proxy"
        super().__init__(fault if consequence is None else f"{fault}; {consequence}")


def only_fault(group: BaseExceptionGroup[BaseException]) -> ProxyError:
    """The one fault of ours in a group that a task group made of it; raises the group if there is more."""
    found, rest = group.split(ProxyError)
    if found is None or rest is not None:
        raise group
    error: BaseException = found
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ProxyError)
    return error
