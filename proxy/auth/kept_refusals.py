"""The refused tokens in the memory of the store, so that a restart lets none in again.

Above: `spent`. Below: `stores.base.SessionMemory`, of which a value holds few. Those whose owners have tasks
are spread over many values, each in the place that its key names, so that a further one is one write; the
newest of the others share one, however many are made up. Nothing of a token can be read there.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, Protocol

import anyio

from proxy.auth.refusals import Refusal, Refusals
from proxy.errors import StoreError
from proxy.logs import get_logger

KEEP_S: Final = 30 * 86_400.0  # as what is remembered of sessions; tasks seldom live so long
WRITE_S: Final = 2.0  # for all of one time, also when the proxy is about to end
KEY_BYTES: Final = 16
PLACES: Final = 32  # for those whose owners have tasks

_OWNER_BYTES: Final = 72
_KEPT: Final = struct.Struct(f">{KEY_BYTES}sI{_OWNER_BYTES}s")  # a token's key, until when, and its owner
IN_ONE_PLACE: Final = 4_096 // _KEPT.size
_MEMO: Final = "refused-tokens "
_OTHERS: Final = f"{_MEMO}others"

log = get_logger()


class Memory(Protocol):
    """The part of `stores.base.SessionMemory` that is needed here."""

    async def remember(self, key: str, value: bytes, *, keep_s: float) -> None: ...

    async def remembered(self, prefix: str) -> list[tuple[str, bytes]]: ...


class KeptRefusals:
    """What is there already is not written again."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._written: dict[str, bytes] = {}

    async def recall(self) -> list[tuple[bytes, Refusal]]:
        """What an earlier process has kept. Raises StoreError."""
        self._written = dict(await self._memory.remembered(_MEMO))
        return [one for value in self._written.values() for one in _read(value)]

    async def keep(self, refusals: Refusals) -> None:
        """Bounded by WRITE_S. What could not be written is written with the next change."""
        of_owners, others = refusals.newest()
        places: defaultdict[str, list[tuple[bytes, Refusal]]] = defaultdict(list, {_OTHERS: list(others)})
        for key, refusal in of_owners:
            places[f"{_MEMO}{key[0] % PLACES}"].append((key, refusal))
        values = {place: _packed(places[place]) for place in places | dict.fromkeys(self._written, ())}
        with anyio.move_on_after(WRITE_S, shield=True):
            async with anyio.create_task_group() as tasks:  # so that they are one transaction
                for place, value in values.items():
                    if self._written.get(place, b"") != value:
                        tasks.start_soon(self._write, place, value)

    async def _write(self, place: str, value: bytes) -> None:
        try:
            await self._memory.remember(place, value, keep_s=KEEP_S)
            self._written[place] = value
        except StoreError as exc:  # they are refused until we are restarted
            log.error("refused_tokens_not_kept", reason=exc.message)


def _packed(newest_first: Iterable[tuple[bytes, Refusal]]) -> bytes:
    kept = list(newest_first)[:IN_ONE_PLACE]
    return b"".join(_KEPT.pack(key, one.until_s, one.owner.encode()) for key, one in reversed(kept))


def _read(value: bytes) -> Iterable[tuple[bytes, Refusal]]:
    whole = value[: len(value) // _KEPT.size * _KEPT.size]
    for key, until_s, owner in _KEPT.iter_unpack(whole):
        yield key, Refusal(owner.rstrip(b"\0").decode(), until_s)
