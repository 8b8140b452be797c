"""Encryption of what is stored, for a store that was given keys (`store.encryption`).

Above: `records`, which puts it behind the seals of rows and result files. Below: AES-256-GCM and HKDF of
`cryptography`. What is encrypted begins with which key it was and 24 random bytes; from the two comes a key
that no other value has, so nonces may simply count. What follows are pieces of bounded size (a large one
would keep Python's lock from the event loop), each with its tag; the nonce says its place and whether it is
the last, as in the STREAM construction (Hoang, Reyhanitabar, Rogaway and Vizár, 2015), so that pieces cannot
be exchanged, left out or cut off. Contract section 8.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

KEY_BYTES: Final = 32
PIECE_BYTES: Final = 256 * 1024  # with 50 MB in one go the system kept even other threads for 50 ms
_ID_BYTES: Final = 8
_SALT_BYTES: Final = 24  # random ones do not meet by chance, however much is written
_PLACE_BYTES: Final = 11
_TAG_BYTES: Final = 16
_FOR_IDS: Final = b"mcp-taskproxy store key id 1"
_FOR_VALUES: Final = b"mcp-taskproxy store value 1"


class MissingKey(Exception):
    """Encrypted with a key that was not given; `key_id` tells which, to people."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"encrypted with the key {key_id}, which was not given (store.encryption)")
        self.key_id = key_id


class NotAuthentic(Exception):
    """Not what was encrypted with this key for this place."""


class Keys:
    """The first encrypts, each decrypts; without any nothing is encrypted. Safe to use from any thread.

    `place` is where a value is kept. It stands nowhere in what is encrypted, but must be the same to decrypt.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        assert all(len(key) == KEY_BYTES for key in keys)  # `config` sees to it
        self._by_id = {_expanded(key, _FOR_IDS, _ID_BYTES): key for key in keys}
        self._first = next(iter(self._by_id), None)

    def __bool__(self) -> bool:
        return self._first is not None

    def __repr__(self) -> str:
        return f"<Keys {', '.join(key_id.hex() for key_id in self._by_id) or 'none'}>"

    @property
    def first_id(self) -> bytes:
        """By what the key that encrypts is known; shows nothing of it."""
        assert self._first is not None  # there is a key
        return self._first

    def encrypt(self, plain: bytes, place: bytes) -> Iterator[bytes]:
        """What is to be written, piece by piece."""
        salt = os.urandom(_SALT_BYTES)
        yield self.first_id + salt
        cipher, rest = _cipher(self._by_id[self.first_id], salt), memoryview(plain)
        for number, end in enumerate(_ends(len(plain), PIECE_BYTES)):
            start = number * PIECE_BYTES
            yield cipher.encrypt(_nonce(number, is_last=end == len(plain)), rest[start:end], place)

    def decrypt(self, data: bytes, place: bytes) -> bytes:
        """What was encrypted. Raises MissingKey or NotAuthentic."""
        key_id, salt = data[:_ID_BYTES], data[_ID_BYTES : _ID_BYTES + _SALT_BYTES]
        if len(salt) < _SALT_BYTES:
            raise NotAuthentic
        if (key := self._by_id.get(key_id)) is None:
            raise MissingKey(key_id.hex())
        try:
            return b"".join(
                _decrypted(_cipher(key, salt), memoryview(data)[_ID_BYTES + _SALT_BYTES :], place)
            )
        except InvalidTag as exc:
            raise NotAuthentic from exc


NO_KEYS: Final = Keys()


def _decrypted(cipher: AESGCM, pieces: memoryview, place: bytes) -> Iterator[bytes]:
    start = 0
    for number, end in enumerate(_ends(len(pieces), PIECE_BYTES + _TAG_BYTES)):
        yield cipher.decrypt(_nonce(number, is_last=end == len(pieces)), pieces[start:end], place)
        start = end


def _ends(size: int, step: int) -> Iterator[int]:
    """Where each piece ends; there is one at least."""
    yield from range(step, size, step)
    yield size


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(_PLACE_BYTES, "big") + bytes([is_last])


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    return AESGCM(_expanded(key, _FOR_VALUES + salt, KEY_BYTES))


def _expanded(key: bytes, purpose: bytes, length: int) -> bytes:
    """The keys are random bytes already, so HKDF has nothing to extract (RFC 5869, section 3.3)."""
    return HKDFExpand(SHA256(), length, purpose).derive(key)
