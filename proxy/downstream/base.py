"""Answers and faults as JSON-RPC messages: the one place where an error becomes wire.

Above: the transports. Below: `errors`, and what the router gave back.
"""

from __future__ import annotations

from http import HTTPStatus

from proxy.errors import LimitReached, ProxyError, Unauthorized, UpstreamRefused
from proxy.protocol.jsonrpc import RequestId, error_object, error_response, result_pieces
from proxy.protocol.outline import Pieces, whole
from proxy.routing.base import Answer, ErrorAnswer, ResultAnswer


def pieces_of(rid: RequestId, answer: Answer) -> tuple[Pieces, HTTPStatus]:
    """The response to a request that was served, and its HTTP status. A large result is not copied."""
    match answer:
        case ResultAnswer():
            return result_pieces(rid, *answer.pieces), HTTPStatus.OK
        case ErrorAnswer(error, status):
            return (error_response(rid, error),), status


def message_of(rid: RequestId, answer: Answer) -> tuple[bytes, HTTPStatus]:
    """As `pieces_of`, whole."""
    pieces, status = pieces_of(rid, answer)
    return whole(pieces), status


def message_of_fault(rid: RequestId | None, fault: ProxyError) -> bytes:
    """The error response to a request that was not served. Without an id where none could be read."""
    return error_response(rid, error_object(fault.code, fault.message, fault.data))


def headers_of_fault(fault: ProxyError) -> list[tuple[str, str]]:
    """What HTTP has to say beside the body: when to come back, and challenges, the upstream's own or ours."""
    match fault:
        case LimitReached():
            return [("Retry-After", str(fault.retry_after_s))]
        case UpstreamRefused() | Unauthorized():
            return [("WWW-Authenticate", challenge) for challenge in fault.challenges]
        case _:
            return []
