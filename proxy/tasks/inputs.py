"""Questions of the upstream and the answers of clients: what has the right shape, and how much is too much.

Above: `task_methods` (tasks/update) and `conversion` (MRTR). The content of an answer is the server's
business; only its kind is looked at (contract section 4). MRTR 2026-07-28, "Error Handling".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from proxy.errors import ClientProtocolError, ErrorCode
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, elements, members
from proxy.tasks.task import InputAnswer

MAX_OPEN: Final = 100  # questions of one call; a server asks one or a few, and a person answers them
MAX_BYTES: Final = 16 * 1024 * 1024  # each change of a task stores them again; a picture to be described fits
LARGEST: Final = 2 * MAX_BYTES  # of all answers together, those that nobody has asked for with them
ELICIT_ACTIONS: Final = frozenset({"accept", "decline", "cancel"})
RESPONSES_MEMBER: Final = "inputResponses"


def parse_responses(params: RawObject | bytes | None) -> dict[str, bytes] | None:
    """`inputResponses` of a request's params as raw values by key; None if the member is absent.

    Raises ClientProtocolError -32602 if it is there and is no map, or names a key twice.
    """
    if params is None:
        return None
    try:
        raw = (RawObject.parse(params) if isinstance(params, bytes) else params).get(RESPONSES_MEMBER)
        if raw is not None and len(raw) > LARGEST:
            raise _invalid(f"{RESPONSES_MEMBER} has {len(raw)} bytes, over the limit of {LARGEST}")
        return None if raw is None else _by_key(raw)
    except (JsonError, DuplicateMember) as exc:
        raise _invalid(f"{RESPONSES_MEMBER}: {exc}") from exc


def _by_key(raw: bytes) -> dict[str, bytes]:
    """In one pass: a client may send as many keys as a message holds."""
    found: dict[str, bytes] = {}
    for member in members(raw):
        if member.key in found:
            raise DuplicateMember(member.key)
        found[member.key] = raw[member.value_start : member.end]
    return found


def overflow(sizes: Collection[int]) -> str | None:
    """Why so many questions, or such large ones, are not open at a time; None if they may be."""
    if len(sizes) > MAX_OPEN:
        return f"more than {MAX_OPEN} questions of one call would be open"
    if (total := sum(sizes)) > MAX_BYTES:
        return f"the open questions of one call would have {total} bytes, over the limit of {MAX_BYTES}"
    return None


def check_room(kept: Collection[InputAnswer], given: Collection[InputAnswer]) -> None:
    """Raise ClientProtocolError -32602 unless a task can keep these, too, until the server has them."""
    total = sum(len(answer.question_id) + len(answer.value) for answer in (*kept, *given))
    if total > MAX_BYTES:
        raise _invalid(
            f"the answers that wait for the server would have {total} bytes, over the limit of {MAX_BYTES}"
        )


def check_answer(key: str, method: str, value: bytes) -> None:
    """Raise ClientProtocolError -32602 unless `value` is a result of the kind that `method` asks for."""
    try:
        fault = _FAULTS[method](RawObject.parse(value))
    except (JsonError, DuplicateMember) as exc:
        fault = str(exc)
    if fault:
        raise _invalid(f"{RESPONSES_MEMBER}[{key!r}] is no answer to {method}: {fault}")


def _elicit_fault(value: RawObject) -> str | None:
    action = value.text("action")
    if action not in ELICIT_ACTIONS:
        return f"action is none of {', '.join(sorted(ELICIT_ACTIONS))}"
    content = value.get("content")
    if content is not None and content[:1] != b"{":
        return "content is not an object"
    return None


def _sampling_fault(value: RawObject) -> str | None:
    if value.text("role") is None:
        return "role is not a string"
    content = value.get("content")
    if content is None or content[:1] not in (b"{", b"["):
        return "content is neither an object nor an array"
    return None


def _roots_fault(value: RawObject) -> str | None:
    roots = value.get("roots")
    if roots is None or roots[:1] != b"[":
        return "roots is not an array"
    if any(RawObject.parse(root).text("uri") is None for root in elements(roots)):
        return "a root has no uri"
    return None


_FAULTS: Final[Mapping[str, Callable[[RawObject], str | None]]] = {
    names.ELICITATION_CREATE: _elicit_fault,
    names.SAMPLING_CREATE_MESSAGE: _sampling_fault,
    names.ROOTS_LIST: _roots_fault,
}
"""Every kind of question that can reach a client, and what is wrong with an answer to it."""

QUESTION_METHODS: Final = frozenset(_FAULTS)


def _invalid(message: str) -> ClientProtocolError:
    return ClientProtocolError(ErrorCode.INVALID_PARAMS, message)
