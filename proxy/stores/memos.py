"""What a store remembers beside the tasks: small pieces of bytes, each under a key and for some time.

Above: `memory`, where this is all there is, and `disk_memos`, which carries it to the disk. Below: `records`
(seal and encryption). All of them are held in memory. Synchronous, used from the event loop alone. Contract
sections 5 ("what must be remembered of a session ... is stored") and 6 (our restart breaks no session).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from proxy.logs import get_logger
from proxy.stores.encryption import NO_KEYS, Keys
from proxy.stores.records import DamagedData, pack_row, unpack_row

KEY_MAX_CHARS: Final = 200
VALUE_MAX_BYTES: Final = 4096
MAX_MEMOS: Final = 10_000  # some 3 MB as sessions are remembered, 45 MB if each is as large as allowed
_ROW_PREFIX: Final = b"\0memo:"  # no task id begins with a zero byte

log = get_logger()


@dataclass(frozen=True, slots=True)
class Memo:
    """One thing remembered, until the wall clock shows `expires_at_ms`."""

    key: str
    value: bytes
    remembered_at_ms: int
    expires_at_ms: int

    def __post_init__(self) -> None:
        if len(self.key) > KEY_MAX_CHARS:
            raise ValueError(f"a key of {len(self.key)} characters, over {KEY_MAX_CHARS}")
        if len(self.value) > VALUE_MAX_BYTES:
            raise ValueError(f"a value of {len(self.value)} bytes, over {VALUE_MAX_BYTES}")
        self.key.encode()  # lone surrogates raise; no row could have such a key

    def __repr__(self) -> str:
        """Without its content, which is for whoever wrote it."""
        return f"<Memo, {len(self.value)} bytes>"


def new_memo(key: str, value: bytes, keep_s: float, now_ms: int) -> Memo:
    """Raises ValueError if key or value is too large."""
    return Memo(key, value, now_ms, now_ms + int(keep_s * 1000))


class Memos:
    """Looks memos up. One whose time is over is gone for the readers; the rest stand in order of age."""

    def __init__(self, found: Iterable[Memo] = ()) -> None:
        self._memos = {memo.key: memo for memo in sorted(found, key=lambda memo: memo.remembered_at_ms)}
        self._told = False

    def __len__(self) -> int:
        return len(self._memos)

    def __contains__(self, key: str) -> bool:
        """Whether there is one under this key, also one that is over."""
        return key in self._memos

    def value(self, key: str, now_ms: int) -> bytes | None:
        memo = self._memos.get(key)
        return None if memo is None or memo.expires_at_ms <= now_ms else memo.value

    def live(self, prefix: str, now_ms: int) -> list[Memo]:
        """Those whose keys begin with `prefix`, oldest first."""
        found = self._memos.values()
        return [memo for memo in found if memo.expires_at_ms > now_ms and memo.key.startswith(prefix)]

    def put(self, memo: Memo) -> None:
        """Take one in as the newest, in place of what stood under its key."""
        self._memos.pop(memo.key, None)
        self._memos[memo.key] = memo

    def remove(self, key: str) -> None:
        """Forget one; one that is not there is no fault."""
        self._memos.pop(key, None)

    def over(self, now_ms: int) -> list[str]:
        """The keys of those whose time is over."""
        return [key for key, memo in self._memos.items() if memo.expires_at_ms <= now_ms]

    def surplus(self) -> list[str]:
        """The keys of the oldest, which must go since there are too many. Says so in the log, once."""
        count = len(self._memos) - MAX_MEMOS
        if count > 0 and not self._told:
            self._told = True
            log.warning("memory_full", limit=MAX_MEMOS, forgotten="the oldest")
        return list(islice(self._memos, max(0, count)))


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Memo)


def row_key(key: str) -> bytes:
    return _ROW_PREFIX + key.encode()


def is_row_key(key: bytes) -> bool:
    return key.startswith(_ROW_PREFIX)


def encode(memo: Memo, keys: Keys = NO_KEYS) -> bytes:
    return pack_row(row_key(memo.key), _encoder.encode(memo), keys)


def decode(key: bytes, data: bytes, keys: Keys = NO_KEYS) -> Memo:
    """The memo in the row `key`. Raises DamagedData, NewerFormat or MissingKey."""
    try:
        memo = _decoder.decode(unpack_row(key, data, keys))
    except ValueError as exc:  # of msgspec, or of Memo itself
        raise DamagedData("not a memo") from exc
    if row_key(memo.key) != key:
        raise DamagedData("it stands under the key of another memo")
    return memo
