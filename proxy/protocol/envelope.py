"""Raw JSON: checked once, taken apart by member, spliced, never re-serialised.

What the proxy need not change leaves it as the very bytes that came in (contract section 1, I1): key
order, number spelling, unknown fields, duplicate members. So messages are held as `bytes`;
`check` proves that they are JSON, `members` finds the byte ranges of one object's members, and
`splice` replaces, adds or removes some of them.

msgspec does the checking, thirty times faster than the standard library, but takes invalid UTF-8,
refuses lone surrogate escapes, and overflows its stack on deep nesting. So UTF-8 and depth are
checked first, and what msgspec refuses is judged again: by the standard library if it is small, for that
makes an object of every value, else by msgspec without those escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from itertools import accumulate
from typing import Any, Final, NoReturn

import msgspec

# Possessive: else each escape in a string costs memory for a way back that is never gone.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)
_REGULAR_DEPTH: Final = 64  # nesting that one regular expression follows; deeper values take a slow loop


def _balanced(depth: int) -> re.Pattern[bytes]:
    """A container nested at most `depth` deep. Only for text known to be JSON: brackets are not paired.

    Possessive throughout, so that it runs in linear time and fails without backtracking.
    """
    flat = rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+'
    pattern = rb"[\[{]" + flat + rb"[\]}]"
    for _ in range(depth - 1):
        pattern = rb"[\[{]" + flat + rb"(?:" + pattern + flat + rb")*+[\]}]"
    return re.compile(pattern, re.DOTALL)


_CONTAINER: Final = _balanced(_REGULAR_DEPTH)
_SCALAR: Final = re.compile(rb"[^\s,\]}]+")
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'[]{}"'))
_NOT_BRACKET: Final = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_BLOCK: Final = 32  # brackets looked at together; well below any useful limit of depth
_JUDGED_WHOLE: Final = 64 * 1024
LARGE: Final = 1 << 20
"""Bytes of one text; what is longer is worth trouble: it takes milliseconds to read, or to copy."""

_STEP: Final = 256 * 1024

MAX_PARTS: Final = 100_000
"""Members of one object, or elements of one array, that are taken apart: each costs some hundred bytes."""

_SURROGATE: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}|\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_NO_SURROGATE: Final = rb"\\u0041"
_DELTA: Final = tuple(1 if c in b"[{" else -1 for c in range(256))
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class JsonError(ValueError):
    """Not JSON, not UTF-8, or nested too deeply. The message says which."""


class DuplicateMember(ValueError):
    """A member that the proxy reads stands twice in one object; `key` names it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"member {key!r} is given twice")
        self.key = key


def check(raw: bytes, max_depth: int) -> None:
    """Raise JsonError unless `raw` is one JSON text in UTF-8, nested at most `max_depth` deep."""
    check_text(raw, max_depth)
    check_json(raw)


def check_text(raw: bytes, max_depth: int) -> None:
    """What msgspec has to be spared. Raises JsonError unless `raw` is UTF-8, nested at most so deep."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise JsonError(f"not valid UTF-8 at byte {exc.start}") from exc
    if _deeper_than(raw, max_depth):
        raise JsonError(f"nested more than {max_depth} levels deep")


def check_json(raw: bytes) -> None:
    """The rest of `check`. Raises JsonError unless `raw` is one JSON text."""
    try:
        msgspec.json.decode(raw, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        if len(raw) <= _JUDGED_WHOLE:
            _check_slowly(raw)
        else:
            _check_without_surrogates(raw)


def _check_without_surrogates(raw: bytes) -> None:
    """msgspec's verdict but for surrogate escapes. In place of each stands another of the same length; where
    that was no escape, since a backslash stands before it, the text is as valid as it was."""
    try:
        msgspec.json.decode(_SURROGATE.sub(_NO_SURROGATE, raw), type=msgspec.Raw)
    except msgspec.DecodeError as exc:
        raise JsonError(str(exc)) from exc
    except RecursionError as exc:
        raise JsonError("nested too deeply") from exc


def _check_slowly(raw: bytes) -> None:
    """The standard library's verdict: it takes lone surrogate escapes, and nothing that is not JSON."""

    def refuse(constant: str) -> NoReturn:
        raise JsonError(f"{constant} is not JSON")

    try:
        # Numbers stay text: no 4,300 digit limit, no infinity from 1E400.
        json.loads(raw.decode(), parse_int=str, parse_float=str, parse_constant=refuse)
    except json.JSONDecodeError as exc:
        raise JsonError(f"{exc.msg} at character {exc.pos}") from exc
    except RecursionError as exc:
        raise JsonError("nested too deeply") from exc


def _deeper_than(raw: bytes, limit: int) -> bool:
    """Whether brackets outside strings nest deeper than `limit`; exact for valid JSON.

    Works on a skeleton of brackets made by bytes operations, since a walk over the tokens would hold
    the event loop for a second on a large message.
    """
    if raw.count(b"[") + raw.count(b"{") <= limit:
        return False
    return exceeds(skeleton_of(raw), limit)


def skeleton_of(raw: bytes) -> bytes:
    """The brackets outside strings, if `raw` is JSON or a part of it that begins and ends outside strings."""
    skeleton = raw
    if b"\\" in skeleton:
        skeleton = skeleton.replace(b"\\\\", b"").replace(b'\\"', b"")
    skeleton = skeleton.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    if b'"' in skeleton:  # some strings hold brackets
        skeleton = _STRING.sub(b"", skeleton)
    return skeleton


def exceeds(skeleton: bytes, limit: int, depth: int = 0) -> bool:
    """Whether these brackets nest deeper than `limit` where so many are open before."""
    skeleton = skeleton.translate(_ONE_KIND, _NOT_BRACKET)
    for start in range(0, len(skeleton), _BLOCK):
        opened = skeleton.count(b"[", start, start + _BLOCK)
        block = skeleton[start : start + _BLOCK]
        if depth + opened > limit and max(accumulate(map(_DELTA.__getitem__, block), initial=depth)) > limit:
            return True
        depth += 2 * opened - len(block)
    return False


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an object: its decoded key, and where key and value stand in the text."""

    key: str
    start: int
    value_start: int
    end: int

    def moved(self, by: int) -> Member:
        """The same in a text that begins elsewhere."""
        return Member(self.key, self.start + by, self.value_start + by, self.end + by)


def members(raw: bytes) -> list[Member]:
    """The members of the object in `raw`, in order, duplicates kept.

    `raw` must have passed `check`. Raises JsonError if it is not an object, or has more than MAX_PARTS.
    """
    values = _compact(raw)
    if values is not None:
        return list(_placed(values))
    at = _skip_space(raw, 0)
    if raw[at : at + 1] != b"{":
        raise JsonError("not an object")
    at = _skip_space(raw, at + 1)
    found: list[Member] = []
    lengths = _Lengths.of(raw) if len(raw) > _JUDGED_WHOLE else None
    while raw[at : at + 1] != b"}":
        key = _STRING.match(raw, at)
        if key is None:
            raise JsonError(f"no member name at byte {at}")
        colon = _skip_space(raw, key.end())
        value_start = _skip_space(raw, colon + 1)
        end = lengths.end_of(key, value_start) if lengths is not None else None
        if end is None:
            end = _value_end(raw, value_start)
        found.append(Member(decode_string(key.group()), at, value_start, end))
        if len(found) > MAX_PARTS:
            raise _too_many("members in one object")
        at = _skip_space(raw, end)
        if raw[at : at + 1] == b",":
            at = _skip_space(raw, at + 1)
    return found


def compact_members(raw: bytes) -> dict[str, bytes] | None:
    """The raw values of a compact object's members by key, None if it is not compact. Raises JsonError if
    they are too many. See `_compact`."""
    values = _compact(raw)
    return {key: bytes(value) for key, value in values.items()} if values is not None else None


def _compact(raw: bytes) -> Mapping[str, msgspec.Raw] | None:
    """The raw values by key, in order and without copying them, if `raw` is an object as most programs write
    it: no space between members, no escape in a key, no key twice. Else None; then the text must be walked,
    which takes ten times as long. Raises JsonError if it has more than MAX_PARTS.
    """
    may_be_too_many = len(raw) > MAX_PARTS and raw.count(b":") > MAX_PARTS
    try:
        values = _decoded_counting(raw) if may_be_too_many else _MEMBERS.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    # With each key in `values` once, as it is: anything else in the text makes it longer than this.
    length = 1 + len('"":,') * len(values) + sum(map(len, values)) + sum(map(len, values.values()))
    return values if length == len(raw) else None


class _Key(str):
    """A member's name, which is counted."""

    __slots__ = ()


def _decoded_counting(raw: bytes) -> Mapping[str, msgspec.Raw]:
    """As `_MEMBERS`, which would take apart however many there are. Raises JsonError."""
    count = 0

    def counted(kind: type[_Key], key: str) -> _Key:
        nonlocal count
        count += 1
        if count > MAX_PARTS:
            raise ValueError
        return _Key(key)

    try:
        decoded = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=counted).decode(raw)
        return dict[str, msgspec.Raw](decoded.items())
    except msgspec.DecodeError:
        if count > MAX_PARTS:
            raise _too_many("members in one object") from None
        raise


def _too_many(what: str) -> JsonError:
    return JsonError(f"more than {MAX_PARTS} {what}")


def _placed(values: Mapping[str, msgspec.Raw]) -> Iterator[Member]:
    """Where the members of a compact object stand."""
    start = 1
    for key, value in values.items():
        value_start = start + len(key) + len('"":')
        end = value_start + len(value)
        yield Member(key, start, value_start, end)
        start = end + 1


class _Lengths:
    """How long the members of a large object are, as msgspec sees them: to walk over each takes ten times as
    long. `plain` is the object with other escapes in the place of surrogates (see `check`)."""

    def __init__(self, plain: bytes, values: Mapping[str, msgspec.Raw]) -> None:
        self._plain = plain
        self._values = {key: bytes(value) for key, value in values.items()}

    @classmethod
    def of(cls, raw: bytes) -> _Lengths | None:
        """None if msgspec cannot say. Raises JsonError if the members are too many."""
        plain = _SURROGATE.sub(_NO_SURROGATE, raw) if b"\\u" in raw else raw
        try:
            return cls(plain, _decoded_counting(plain))
        except (msgspec.DecodeError, RecursionError):
            return None

    def end_of(self, key: re.Match[bytes], start: int) -> int | None:
        """Where the value at `start` ends; None if that is not sure: of a key that stands twice, the last
        value is known."""
        value = self._values.get(decode_string(self._plain[key.start() : key.end()]))
        if value is None or not self._plain.startswith(value, start):
            return None
        end = start + len(value)
        after = _skip_space(self._plain, end)
        return end if self._plain[after : after + 1] in (b",", b"}") else None


def elements(raw: bytes) -> list[bytes]:
    """The elements of the array in `raw`, each as its own raw text. Raises JsonError if it is none, or has
    more than MAX_PARTS."""
    at = _skip_space(raw, 0)
    if raw[at : at + 1] != b"[":
        raise JsonError("not an array")
    at = _skip_space(raw, at + 1)
    found: list[bytes] = []
    while raw[at : at + 1] != b"]":
        end = _value_end(raw, at)
        found.append(raw[at:end])
        if len(found) > MAX_PARTS:
            raise _too_many("elements in one array")
        at = _skip_space(raw, end)
        if raw[at : at + 1] == b",":
            at = _skip_space(raw, at + 1)
    return found


def _skip_space(raw: bytes, at: int) -> int:
    space = _SPACE.match(raw, at)
    return space.end() if space else at


def _value_end(raw: bytes, at: int) -> int:
    first = raw[at : at + 1]
    if first == b'"':
        text = _STRING.match(raw, at)
        if text is None:
            raise JsonError(f"string without end at byte {at}")
        return text.end()
    if first in (b"{", b"["):
        if container := _CONTAINER.match(raw, at):
            return container.end()
        depth = 0
        for token in _TOKEN.finditer(raw, at):
            c = token.group()
            if c in (b"{", b"["):
                depth += 1
            elif c in (b"}", b"]"):
                depth -= 1
                if depth == 0:
                    return token.end()
        raise JsonError(f"value without end at byte {at}")
    scalar = _SCALAR.match(raw, at)
    if scalar is None:
        raise JsonError(f"no value at byte {at}")
    return scalar.end()


def decode_string(raw: bytes) -> str:
    """The string that the JSON string literal `raw` stands for; lone surrogates are kept."""
    if b"\\" not in raw:
        return raw[1:-1].decode()
    text = json.loads(raw.decode())
    assert isinstance(text, str)
    return text


@dataclass(frozen=True, slots=True, weakref_slot=True)
class RawObject:
    """One JSON object, as text and by member. To be made by `parse`, or from members that are known."""

    raw: bytes
    _members: tuple[Member, ...] | None
    _values: Mapping[str, msgspec.Raw] | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, raw: bytes) -> RawObject:
        """Raises JsonError if `raw`, which must have passed `check`, is not an object."""
        values = _compact(raw)
        return cls(raw, tuple(members(raw)) if values is None else None, values)

    @property
    def members(self) -> tuple[Member, ...]:
        return self._members if self._members is not None else tuple(members(self.raw))

    def get(self, key: str) -> bytes | None:
        """The raw value of `key`, or None if it is absent. Raises DuplicateMember if it stands twice."""
        if self._values is not None:
            value = self._values.get(key)
            return bytes(value) if value is not None else None
        hits = [m for m in self.members if m.key == key]
        if len(hits) > 1:
            raise DuplicateMember(key)
        return self.raw[hits[0].value_start : hits[0].end] if hits else None

    def refuse_twice(self, *keys: str) -> None:
        """Raises DuplicateMember for those that stand twice."""
        if self._values is None:
            found = [member.key for member in self.members if member.key in keys]
            if len(set(found)) < len(found):
                raise DuplicateMember(next(key for key in keys if found.count(key) > 1))

    def text(self, key: str) -> str | None:
        """The value of `key` if it is a string, else None."""
        value = self.get(key)
        return decode_string(value) if value is not None and value[:1] == b'"' else None

    def object(self, key: str) -> RawObject | None:
        """The value of `key` if it is an object, else None."""
        value = self.get(key)
        return RawObject.parse(value) if value is not None and value[:1] == b"{" else None

    def __contains__(self, key: str) -> bool:
        if self._values is not None:
            return key in self._values
        return any(m.key == key for m in self.members)


def splice(raw: bytes | RawObject, changes: Mapping[str, bytes | None]) -> bytes:
    """`raw`, an object, with each member of `changes` set to that raw value, or removed if it is None. It is
    not read again if its members are known.

    Everything else keeps its bytes and its place; new members are added at the end. Of a member that
    stands twice, the first place gets the value and the others go.
    """
    left = dict(changes)
    found, raw = (members(raw), raw) if isinstance(raw, bytes) else (raw.members, raw.raw)
    text = raw if len(raw) <= LARGE else memoryview(raw)
    parts: list[bytes | memoryview] = []
    seen: set[str] = set()
    for m in found:
        if m.key not in changes:
            parts.append(text[m.start : m.end])
            continue
        value = changes[m.key]
        left.pop(m.key, None)
        if value is not None and m.key not in seen:
            seen.add(m.key)
            parts.append(raw[m.start : m.value_start] + value)
    parts += [dumps(key) + b":" + value for key, value in left.items() if value is not None]
    if len(raw) <= LARGE or not parts:
        return b"{" + b",".join(parts) + b"}"
    separated = [piece for part in parts for piece in (b",", part)]
    return joined(b"{", *separated[1:], b"}")


def joined(*pieces: bytes | memoryview) -> bytes:
    """All of a large text, copied in steps that are short (see `sketch`)."""
    buffer = BytesIO()
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _STEP):
            buffer.write(view[start : start + _STEP])
    return buffer.getvalue()


def dumps(value: Any) -> bytes:
    """`value` as compact, ASCII-only JSON: for what the proxy itself says."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def loads(raw: bytes) -> Any:
    """`raw` as Python values: for what the proxy itself must understand, never to be sent on."""
    return json.loads(raw)


def one_line(raw: bytes) -> bytes:
    """`raw` with line ends between tokens made spaces, as stdio and event streams need it.

    Inside a JSON string a line end is always escaped, so only white space can be met here.
    """
    if b"\n" in raw or b"\r" in raw:
        return raw.replace(b"\r", b" ").replace(b"\n", b" ")
    return raw
