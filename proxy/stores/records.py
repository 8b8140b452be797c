"""How a record looks in bytes: sealed with a format number and a checksum, so that torn data is noticed.

Above: `disk`, `rows`, `results`. Below: `tasks.task`, `encryption`. A seal is a header of fixed size, the
same in every version of the format: three letters, the format's number, and a BLAKE2b digest of number and
payload. The content of a record is a msgpack map of the task's fields (fields that a later version adds have
defaults, so older records stay readable), or the same as JSON where a text cannot be written as UTF-8; the
content of a result file is the raw result itself. In format 1 it is the payload; in format 2 the payload is
the content encrypted, and bound to the row or file where it stands.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.stores.encryption import NO_KEYS, PIECE_BYTES, Keys, MissingKey, NotAuthentic
from proxy.tasks.task import Task

PLAIN: Final = 1
ENCRYPTED: Final = 2
FORMAT: Final = ENCRYPTED
HEADER_SIZE: Final = 20
_LETTERS: Final = b"tpx"
_DIGEST_SIZE: Final = 16
_HIDDEN: Final = b"\0task:"  # no task id begins with a zero byte


class DamagedData(Exception):
    """Torn, foreign or tampered with; the message says what is wrong."""


class NewerFormat(Exception):
    """Sound, but written by a later version of the proxy, whose format this one does not know."""

    def __init__(self, found: int) -> None:
        super().__init__(f"format {found}, while this version reads up to {FORMAT}")
        self.found = found


UNREADABLE: Final = (NewerFormat, MissingKey)
"""Nothing is wrong with the data; another process of the proxy can read it."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept in a task's row: the task, and where its result is if that is too large for the row.

    `result_file` names a file of `results`, `result_size` is the size of its payload; `task` then comes
    without the result.
    """

    task: Task
    result_file: str | None = None
    result_size: int = 0


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Record)


def encode(record: Record, keys: Keys = NO_KEYS, key: bytes | None = None) -> bytes:
    """What stands in the row `key`; that of a new record if none is given."""
    try:
        content = _encoder.encode(record)
    except UnicodeEncodeError:  # half an emoji, which JSON may hold and UTF-8 may not
        content = json.dumps(msgspec.to_builtins(record)).encode()
    return pack_row(key or row_key(record.task.id, keys), content, keys)


def decode(key: bytes, data: bytes, keys: Keys = NO_KEYS) -> Record:
    """The record in the row `key`. Raises DamagedData, NewerFormat or MissingKey."""
    content = unpack_row(key, data, keys)
    try:
        if content.startswith(b"{"):
            record = msgspec.convert(json.loads(content), Record)
        else:
            record = _decoder.decode(content)
        task_id = record.task.id.encode()
    except ValueError as exc:  # of msgspec, of json, of Task itself, or of an id that no row could have
        raise DamagedData("not a task record") from exc
    if key not in (task_id, _HIDDEN + _hidden(task_id)):
        raise DamagedData("it stands under the key of another task")
    return record


def row_key(task_id: str, keys: Keys = NO_KEYS) -> bytes:
    """Of a new record. Where there is encryption the id stays out, for it can act as a bearer token."""
    key = task_id.encode()
    return _HIDDEN + _hidden(key) if keys else key


def stand_in(task_id: str) -> str:
    """What may stand for a task where its id may not: a hash of it, in hexadecimal."""
    return stand_in_of_row(task_id.encode())


def stand_in_of_row(key: bytes) -> str:
    """The same, of the task in the row `key`, whatever the key looks like."""
    return (key.removeprefix(_HIDDEN) if key.startswith(_HIDDEN) else _hidden(key)).hex()


def _hidden(task_id: bytes) -> bytes:
    return hashlib.sha256(task_id).digest()


def pack_row(key: bytes, content: bytes, keys: Keys) -> bytes:
    return b"".join(pack(content, _in_row(key), keys))


def unpack_row(key: bytes, data: bytes, keys: Keys) -> bytes:
    """Raises DamagedData, NewerFormat or MissingKey."""
    return unpack(data[:HEADER_SIZE], data[HEADER_SIZE:], _in_row(key), keys)


def pack(content: bytes, place: bytes, keys: Keys) -> Sequence[bytes | memoryview]:
    """What is to be written, in pieces of bounded size: the seal, and the payload that it belongs before."""
    pieces: Sequence[bytes | memoryview]
    if keys:
        pieces, version = [*keys.encrypt(content, place)], ENCRYPTED
    else:
        starts, whole = range(0, len(content), PIECE_BYTES), memoryview(content)
        pieces, version = [whole[start : start + PIECE_BYTES] for start in starts], PLAIN
    return [_header(version, pieces), *pieces]


def unpack(header: bytes, payload: bytes, place: bytes, keys: Keys) -> bytes:
    """The content. Raises DamagedData, NewerFormat or MissingKey."""
    version = _checked_version(header, payload)
    if version == PLAIN:
        return payload
    if version != ENCRYPTED:
        raise NewerFormat(version)
    try:
        return keys.decrypt(payload, place)
    except NotAuthentic as exc:
        raise DamagedData("it is not what was encrypted for this place") from exc


def is_encrypted(data: bytes) -> bool:
    """Whether this row, which is sound, is."""
    return data[len(_LETTERS)] == ENCRYPTED


def is_as_written_now(key: bytes, data: bytes, keys: Keys) -> bool:
    """Whether this row, which need not be sound, says that it is encrypted with the first key; and stands
    under a key that shows no id. Those of `memos` never do: they begin with a zero byte, too."""
    version = data[len(_LETTERS) : len(_LETTERS) + 1]
    is_encrypted_now = version == bytes([ENCRYPTED]) and data.startswith(keys.first_id, HEADER_SIZE)
    return is_encrypted_now and key.startswith(b"\0")


def seal(payload: bytes, version: int = PLAIN) -> bytes:
    """The header that belongs before `payload`."""
    return _header(version, [payload])


def _checked_version(header: bytes, payload: bytes) -> int:
    """Raises DamagedData unless `header` belongs before `payload`."""
    if len(header) < HEADER_SIZE or not header.startswith(_LETTERS):
        raise DamagedData("no seal")
    version = header[len(_LETTERS)]
    if header != seal(payload, version):
        raise DamagedData("checksum does not match")
    return version


def _header(version: int, payload: Sequence[bytes | memoryview]) -> bytes:
    digest = hashlib.blake2b(bytes([version]), digest_size=_DIGEST_SIZE)
    for piece in payload:
        digest.update(piece)
    return _LETTERS + bytes([version]) + digest.digest()


def _in_row(key: bytes) -> bytes:
    return b"row " + key
