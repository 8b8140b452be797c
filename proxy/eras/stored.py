"""Stored results as clients of either era see them: as the direct answer would have been, but told in pieces.

PURE. Above: `routing`, which serves tasks; it may be asked for the same 50 MB many times a second. Beside:
`to_modern` and `tasks_2025`, which say what is changed; here it is done by the outline that the record keeps.
Contract sections 4 and 5.
"""

from __future__ import annotations

from proxy.eras.lowering import lowered_result
from proxy.eras.tasks_2025 import with_related_task
from proxy.eras.to_modern import CACHEABLE, lift_result
from proxy.errors import UpstreamProtocolError
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, RawObject, dumps, splice
from proxy.protocol.outline import Outline, Pieces, spliced


def lift_stored(method: str, result: bytes, outline: Outline | None, server_info: bytes | None) -> Pieces:
    """As `to_modern.lift_result`. Raises UpstreamProtocolError if a `_meta` that must change stands twice."""
    if outline is None or method in CACHEABLE:
        return (lift_result(method, result, server_info),)
    changes = {"resultType": dumps(names.COMPLETE)}
    if server_info is not None:
        try:
            meta = outline.part(result).object(names.META)
        except DuplicateMember as exc:
            raise UpstreamProtocolError(f"the result of {method} cannot be used: {exc}") from exc
        changes[names.META] = splice(_raw(meta), {names.META_SERVER_INFO: server_info})
    return spliced(result, outline, changes)


def relate_stored(
    method: str, result: bytes, outline: Outline | None, server_info: bytes | None, task_id: str
) -> Pieces:
    """As `tasks_2025.with_related_task`; a modern server's result lowered before, which reads it through."""
    if outline is not None and server_info is None and _has_type(outline):
        result, outline = lowered_result(method, result), None
    if outline is None:
        return (with_related_task(result, task_id),)
    try:
        meta = outline.part(result).object(names.META)
    except DuplicateMember:
        return (with_related_task(result, task_id),)
    related = {names.META_RELATED_TASK: dumps({"taskId": task_id})}
    return spliced(result, outline, {names.META: splice(_raw(meta), related)})


def _has_type(outline: Outline) -> bool:
    """Whether the result says of what type it is. With no word of its server beside it, that is a modern one:
    legacy ones name themselves in the handshake."""
    return any(member.key == "resultType" for member in outline.members)


def _raw(meta: RawObject | None) -> bytes:
    return b"{}" if meta is None else meta.raw
