"""From modern to legacy: the params of a modern request as a legacy server expects them.

Whatever is not ours stays, byte for byte: arguments, cursors, trace context, vendor keys of `_meta`.
Contract section 3; requirement BASE-023.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from proxy.protocol import names
from proxy.protocol.envelope import RawObject, dumps, splice

_MODERN_META: Final = (
    names.META_PROTOCOL_VERSION,
    names.META_CLIENT_INFO,
    names.META_CLIENT_CAPABILITIES,
    names.META_LOG_LEVEL,
)
_MRTR_MEMBERS: Final = ("inputResponses", "requestState")


def lower_params(method: str, params: bytes | None, progress_token: int | None) -> bytes | None:
    """`params` without what only the modern era knows, with our progress token instead of the client's.

    `params` is None or a raw object.
    """
    token = None if progress_token is None else b"%d" % progress_token
    if params is None:
        return None if token is None else b'{"_meta":{"progressToken":' + token + b"}}"
    changes: dict[str, bytes | None] = {}
    if method in names.CARRIES_INPUT:
        changes |= dict.fromkeys(_MRTR_MEMBERS)
    if method == names.TOOLS_CALL:
        changes["task"] = None
    meta = RawObject.parse(params).object(names.META)
    meta_changes: dict[str, bytes | None] = dict.fromkeys(_MODERN_META)
    meta_changes[names.META_PROGRESS_TOKEN] = token
    lowered = splice(b"{}" if meta is None else meta.raw, meta_changes)
    changes[names.META] = None if lowered == b"{}" else lowered
    return splice(params, changes)


def with_progress_token(params: bytes | None, progress_token: int | None) -> bytes:
    """The params of a modern request for a modern server: as they are, but with our progress token."""
    obj = RawObject.parse(params if params is not None else b"{}")
    meta = obj.object(names.META)
    token = None if progress_token is None else b"%d" % progress_token
    changed = splice(meta.raw if meta is not None else b"{}", {names.META_PROGRESS_TOKEN: token})
    return obj.raw if meta is None and token is None else splice(obj.raw, {names.META: changed})


def call_digest(method: str, params: bytes | None) -> bytes:
    """What identifies a call across its MRTR rounds: method and params without `_meta` and MRTR members.

    Independent of member order and spacing, since a client may write its retry anew; numbers count by
    their spelling.
    """
    value: Any = {}
    if params is not None:
        value = json.loads(params, parse_int=_Number, parse_float=_Number)
        for name in (names.META, "task", *_MRTR_MEMBERS):
            value.pop(name, None)
    canonical = json.dumps([method, value], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).digest()


class _Number(str):
    """A number's spelling; differs from the string of the same text by its mark."""

    __slots__ = ()

    def __new__(cls, text: str) -> _Number:
        return super().__new__(cls, f"\0number {text}")


def lower_name(params: bytes | None, member: str) -> str | None:
    """The tool, prompt or resource that `params` names, None if it names none."""
    return None if params is None else RawObject.parse(params).text(member)


def cancelled_params(request_id: int, reason: str) -> bytes:
    return dumps({"requestId": request_id, "reason": reason})
