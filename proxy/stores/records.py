"""How a record looks in bytes: sealed with a format number and a checksum, so that torn data is noticed.

Above: `disk`, `rows`, `results`. Below: `tasks.task`. A seal is a header of fixed size, the same in every
version of the format: three letters, the format's number, and a BLAKE2b digest of number and payload.
The payload of a record is a msgpack map of the task's fields (fields that a later version adds have
defaults, so older records stay readable), or the same as JSON where a text cannot be written as UTF-8; the
payload of a result file is the raw result itself.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

import msgspec

from proxy.tasks.task import Task

FORMAT: Final = 1
HEADER_SIZE: Final = 20
_LETTERS: Final = b"tpx"
_DIGEST_SIZE: Final = 16


class DamagedData(Exception):
    """Torn, foreign or tampered with; the message says what is wrong."""


class NewerFormat(Exception):
    """Sound, but written by a later version of the proxy, whose format this one does not know."""

    def __init__(self, found: int) -> None:
        super().__init__(f"format {found}, while this version reads up to {FORMAT}")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept in a task's row: the task, and where its result is if that is too large for the row.

    `result_file` names a file of `results`, `result_size` is its size in bytes; `task` then comes
    without the result.
    """

    task: Task
    result_file: str | None = None
    result_size: int = 0


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    try:
        payload = _encoder.encode(record)
    except UnicodeEncodeError:  # half an emoji, which JSON may hold and UTF-8 may not
        payload = json.dumps(msgspec.to_builtins(record)).encode()
    return seal(payload) + payload


def decode(data: bytes) -> Record:
    """Raises DamagedData or NewerFormat."""
    payload = unseal(data)
    try:
        if payload.startswith(b"{"):
            return msgspec.convert(json.loads(payload), Record)
        return _decoder.decode(payload)
    except ValueError as exc:  # of msgspec, of json, or of Task itself
        raise DamagedData("not a task record") from exc


def seal(payload: bytes, version: int = FORMAT) -> bytes:
    """The header that belongs before `payload`."""
    return _LETTERS + bytes([version]) + _digest(version, payload)


def unseal(data: bytes) -> bytes:
    """The payload of sealed `data`. Raises DamagedData or NewerFormat."""
    header, payload = data[:HEADER_SIZE], data[HEADER_SIZE:]
    check_seal(header, payload)
    return payload


def check_seal(header: bytes, payload: bytes) -> None:
    """Raises DamagedData or NewerFormat unless `header` belongs before `payload`."""
    if len(header) < HEADER_SIZE or not header.startswith(_LETTERS):
        raise DamagedData("no seal")
    version = header[len(_LETTERS)]
    if header != seal(payload, version):
        raise DamagedData("checksum does not match")
    if version > FORMAT:
        raise NewerFormat(version)


def _digest(version: int, payload: bytes) -> bytes:
    digest = hashlib.blake2b(bytes([version]), digest_size=_DIGEST_SIZE)
    digest.update(payload)
    return digest.digest()
