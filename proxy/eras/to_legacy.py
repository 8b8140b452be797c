"""From modern to legacy: the params of a modern request as a legacy server expects them.

Whatever is not ours stays, byte for byte: arguments, cursors, trace context, vendor keys of `_meta`.
Contract section 3; requirement BASE-023.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from proxy.protocol import names
from proxy.protocol.envelope import LARGE, RawObject, dumps, splice

_MODERN_META: Final = (
    names.META_PROTOCOL_VERSION,
    names.META_CLIENT_INFO,
    names.META_CLIENT_CAPABILITIES,
    names.META_LOG_LEVEL,
)
_MRTR_MEMBERS: Final = ("inputResponses", "requestState")


def lower_params(method: str, params: RawObject | bytes | None, progress_token: int | None) -> bytes | None:
    """`params` without what only the modern era knows, with our progress token instead of the client's.

    `params` is None or an object, raw or as far as it is known.
    """
    token = None if progress_token is None else b"%d" % progress_token
    if params is None:
        return None if token is None else b'{"_meta":{"progressToken":' + token + b"}}"
    changes: dict[str, bytes | None] = {}
    if method in names.CARRIES_INPUT:
        changes |= dict.fromkeys(_MRTR_MEMBERS)
    if method == names.TOOLS_CALL:
        changes["task"] = None
    obj = RawObject.parse(params) if isinstance(params, bytes) else params
    meta = obj.object(names.META)
    meta_changes: dict[str, bytes | None] = dict.fromkeys(_MODERN_META)
    meta_changes[names.META_PROGRESS_TOKEN] = token
    lowered = splice(b"{}" if meta is None else meta.raw, meta_changes)
    changes[names.META] = None if lowered == b"{}" else lowered
    return splice(obj, changes)


def with_progress_token(params: RawObject | bytes | None, progress_token: int | None) -> bytes:
    """The params of a modern request for a modern server: as they are, but with our progress token."""
    obj = (
        params if isinstance(params, RawObject) else RawObject.parse(params if params is not None else b"{}")
    )
    meta = obj.object(names.META)
    token = None if progress_token is None else b"%d" % progress_token
    changed = splice(meta.raw if meta is not None else b"{}", {names.META_PROGRESS_TOKEN: token})
    return obj.raw if meta is None and token is None else splice(obj, {names.META: changed})


def call_digest(method: str, params: RawObject | bytes | None) -> bytes:
    """What identifies a call across its MRTR rounds: method and params without `_meta` and MRTR members.

    Independent of member order and spacing, since a client may write its retry anew; numbers count by
    their spelling. Of large ones all values count by it: to read them would take half a minute.
    """
    not_its_own = (names.META, "task", *_MRTR_MEMBERS)
    if isinstance(params, RawObject):
        if len(params.raw) > LARGE:
            return _digest_of_large(method, params, not_its_own)
        params = params.raw
    value: Any = {}
    if params is not None:
        value = json.loads(params, parse_int=_Number, parse_float=_Number)
        for name in not_its_own:
            value.pop(name, None)
    canonical = json.dumps([method, value], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).digest()


def _digest_of_large(method: str, params: RawObject, left_out: Sequence[str]) -> bytes:
    digest, text = hashlib.sha256(dumps(method)), memoryview(params.raw)
    for member in sorted(params.members, key=lambda member: (member.key, member.start)):
        if member.key not in left_out:
            value = text[member.value_start : member.end]
            digest.update(dumps([member.key, len(value)]))
            digest.update(value)
    return digest.digest()


class _Number(str):
    """A number's spelling; differs from the string of the same text by its mark."""

    __slots__ = ()

    def __new__(cls, text: str) -> _Number:
        return super().__new__(cls, f"\0number {text}")


def lower_name(params: RawObject | bytes | None, member: str) -> str | None:
    """The tool, prompt or resource that `params` names, None if it names none."""
    obj = RawObject.parse(params) if isinstance(params, bytes) else params
    return None if obj is None else obj.text(member)


def cancelled_params(request_id: int, reason: str) -> bytes:
    return dumps({"requestId": request_id, "reason": reason})
