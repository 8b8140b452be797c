"""What a POST carries: one message or a batch, and which era it is of.

Above: `http`. Below: `protocol`. The body is parsed here, once for both eras; a modern message is then
judged by `validation`. Contract section 2, "Client's era, per message"; field report F20.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from proxy.downstream.validation import Rejection, said_version
from proxy.eras.era import Era, client_era
from proxy.errors import ClientProtocolError, ErrorCode
from proxy.protocol.envelope import LARGE, JsonError, check, elements
from proxy.protocol.jsonrpc import (
    Message,
    MessageError,
    Notification,
    Request,
    RequestId,
    parse,
    parse_checked,
    parse_large,
)
from proxy.routing.passthrough import BATCHES_IN

MAX_BATCH: Final = 1_000  # messages; clients send a few
_LEGACY, _MODERN = Era.LEGACY, Era.MODERN  # to name a member of an enum takes a microsecond each time
_IS_ARRAY: Final = re.compile(rb"[ \t\r\n]*\[")


@dataclass(slots=True)  # as `HttpMessage`
class Posted:
    """`messages` is one, or those of a batch, which is legacy always."""

    era: Era
    body: bytes
    messages: Sequence[Message]
    is_batch: bool = False

    @property
    def rid(self) -> RequestId | None:
        """The id of the request that this is, if it is one."""
        message = self.messages[0]
        return message.id if isinstance(message, Request) and not self.is_batch else None


def read_posted(body: bytes, versions: Sequence[str], max_depth: int) -> Posted:
    """`versions` are the values of the version header. Raises Rejection for what is no message. Of more than
    LARGE bytes it takes long, and is no work for the event loop."""
    is_batch = body[:1] != b"{" and _IS_ARRAY.match(body) is not None
    try:
        if is_batch:
            return Posted(Era.LEGACY, body, _batch(body, versions, max_depth), is_batch)
        message = parse(body, max_depth) if len(body) <= LARGE else parse_large(body, max_depth)
    except MessageError as exc:
        rid = None if is_batch else exc.id  # one of many would be taken for its own
        raise Rejection(rid, ClientProtocolError(exc.code, exc.message)) from exc
    return Posted(_era_of(message, versions), body, (message,))


def header_era(versions: Sequence[str]) -> Era:
    """The era that the version header says; a header that names several versions is for modern rules to
    refuse."""
    for version in versions:
        if _era_of_version(version) is _MODERN:
            return _MODERN
    return _LEGACY


@lru_cache(maxsize=16)  # every message says one, and all the same few
def _era_of_version(version: str) -> Era:
    return client_era(has_meta_version=False, version_header=version.strip(" \t"))


def _era_of(message: Message, versions: Sequence[str]) -> Era:
    if isinstance(message, Request | Notification) and said_version(message) is not None:
        return _MODERN
    return header_era(versions)


def _batch(body: bytes, versions: Sequence[str], max_depth: int) -> list[Message]:
    """Of legacy messages, in the one revision that has batches, or where none is named (VER-020)."""
    if len(body) > LARGE:
        raise _refused(f"an array of more than {LARGE} bytes (send its messages one by one)")
    try:
        check(body, max_depth)
    except JsonError as exc:
        raise MessageError(ErrorCode.PARSE_ERROR, f"Parse error: {exc}") from exc
    if any(version.strip(" \t") != BATCHES_IN for version in versions):
        raise _refused("an array (batches are not supported)")
    try:
        raws = elements(body)
    except JsonError as exc:
        raise MessageError(ErrorCode.INVALID_REQUEST, f"Invalid request: {exc}") from exc
    if len(raws) > MAX_BATCH:
        raise _refused(f"an array of more than {MAX_BATCH}")
    messages = [parse_checked(raw) for raw in raws]
    if not messages:
        raise _refused("an empty array")
    if any(_era_of(message, ()) is Era.MODERN for message in messages):
        raise _refused("an array (batches are not supported)")
    return messages


def _refused(kind: str) -> MessageError:
    return MessageError(ErrorCode.INVALID_REQUEST, f"Invalid request: the message is {kind}")
