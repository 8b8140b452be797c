"""Bounds on what clients may hold at a time and on how fast they come, each with a clear error and a time to
come back.

Above: `downstream` and `routing`. Contract section 8, "Bounds".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from typing import Final

from proxy.clock import Clock, Pulse
from proxy.errors import LimitReached, PolledTooFast
from proxy.logs import get_logger
from proxy.owners import Owner

BUSY_RETRY_S: Final = 1
MAX_BUCKETS: Final = 10_000
LOOKUP_BURST_S: Final = 10.0  # a client comes back after a night, and asks for all the tasks it knew

log = get_logger()


class Gauge:
    """At most `limit` at a time, and `per_owner` of one owner if that is less. `setting` is the name of the
    first; that of the other ends with `_per_owner`.

    `make_room` is asked where `take` finds none: it ends something that nobody waits for any more, if there
    is such, and says whether it did.
    """

    def __init__(self, what: str, limit: int, setting: str, *, per_owner: int | None = None) -> None:
        self._what = what
        self._limit = limit
        self._setting = setting
        self._per_owner = None if per_owner is None or per_owner >= limit else per_owner
        self._shares: dict[str, int] = {}
        self.held = 0
        self.make_room: Callable[[Owner], bool] | None = None
        self._emptied = Pulse()

    def hold(self, owner: Owner | None = None) -> Gauge | _Share:
        """One more while inside. Raises LimitReached (429) on entry if `limit` are held already, or the
        owner's share."""
        if owner is None or self._per_owner is None:
            return self
        return _Share(self, self._shares, owner.key, self._per_owner)

    def take(self, owner: Owner) -> Callable[[], None]:
        """As `hold`, until what it returns is called, once."""
        one = self.hold(owner)
        try:
            one.__enter__()
        except LimitReached:
            if self.make_room is None or not self.make_room(owner):
                raise
            one.__enter__()
        return one.__exit__

    def count(self, owner: Owner) -> Callable[[], None]:
        """As `take`, of what is there already: it is not refused."""
        one = self.hold(owner)
        one.add()
        return one.__exit__

    def has_all_of_one(self, owner: Owner) -> bool:
        """Whether this owner holds as many as one may, however many others hold."""
        return self._per_owner is not None and self._shares.get(owner.key, 0) >= self._per_owner

    def __enter__(self) -> None:
        if self.held >= self._limit:
            raise self.reached(self._limit, self._setting)
        self.held += 1

    def add(self) -> None:
        self.held += 1

    def __exit__(self, *raised: object) -> None:
        self.held -= 1
        if not self.held:
            self._emptied.beat()

    def reached(self, limit: int, setting: str | None = None) -> LimitReached:
        """`setting` None: that of one owner's."""
        setting, whose = (setting, "") if setting is not None else (f"{self._setting}_per_owner", " of yours")
        return LimitReached(
            f"{limit} {self._what}{whose} are in progress ({setting}); try again later",
            retry_after_s=BUSY_RETRY_S,
        )

    async def wait_empty(self) -> None:
        """Until none is held."""
        while self.held:
            await self._emptied.event.wait()


class _Share:
    """One more of an owner's."""

    __slots__ = ("_gauge", "_limit", "_owner", "_shares")

    def __init__(self, gauge: Gauge, shares: dict[str, int], owner: str, limit: int) -> None:
        self._gauge = gauge
        self._shares = shares
        self._owner = owner
        self._limit = limit

    def __enter__(self) -> None:
        held = self._shares.get(self._owner, 0)
        if held >= self._limit:
            raise self._gauge.reached(self._limit)
        self._gauge.__enter__()
        self._shares[self._owner] = held + 1

    def add(self) -> None:
        self._gauge.add()
        self._shares[self._owner] = self._shares.get(self._owner, 0) + 1

    def __exit__(self, *raised: object) -> None:
        self._gauge.__exit__(*raised)
        left = self._shares[self._owner] - 1
        if left:
            self._shares[self._owner] = left
        else:
            del self._shares[self._owner]


class TokenBuckets:
    """One for each key: `per_second` tokens; `burst` can be saved up, one second's worth if not given.

    A bucket is a time and a count; those that were not used for long are the first to be forgotten. The
    libraries for it count in whole seconds of the wall clock, start threads, or make the caller wait.
    """

    def __init__(self, per_second: float, clock: Clock, *, burst: float | None = None) -> None:
        self._per_second = per_second
        self._clock = clock
        self._burst = max(1.0, per_second if burst is None else burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: str) -> int:
        """Seconds until there is a token; 0 if there is one now, which is left where it is."""
        return self._wait_s(self._tokens(key, self._clock.monotonic()))

    def take(self, key: str) -> int:
        """As `wait_s`; a token that is there is taken. To be refused costs nothing: else who comes a little
        too fast would never be served again."""
        now = self._clock.monotonic()
        tokens = self._tokens(key, now)
        wait_s = self._wait_s(tokens)
        self._keep(key, now, tokens if wait_s else tokens - 1)
        return wait_s

    def owe(self, key: str) -> None:
        """Take a token, also one that is not there yet: what was done already is paid for later."""
        now = self._clock.monotonic()
        self._keep(key, now, self._tokens(key, now) - 1)

    def _keep(self, key: str, now: float, tokens: float) -> None:
        self._buckets[key] = (now, tokens)
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)

    def _tokens(self, key: str, now: float) -> float:
        at, tokens = self._buckets.get(key, (now, self._burst))
        return min(self._burst, tokens + (now - at) * self._per_second)

    def _wait_s(self, tokens: float) -> int:
        return 0 if tokens >= 1 else ceil((1 - tokens) / self._per_second)


class PollLimit:
    """How often each task is asked for."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._buckets = TokenBuckets(per_second, clock)

    def take(self, task_id: str) -> None:
        """Raises PolledTooFast (429) if this id is polled too fast."""
        if wait_s := self._buckets.take(task_id):
            raise PolledTooFast("this task is polled too fast (limits.polls_per_task)", retry_after_s=wait_s)


class LookupLimit:
    """How often one peer asks for tasks that are not there for it, against enumeration.

    Each owner of a peer counts alone: many stand behind one gateway, and a guess with somebody's token, or
    with one that was made up, tells nothing that others do not know. After too many nothing is looked up for
    a while: the longer, the more ids one request has named.
    """

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._buckets = TokenBuckets(per_second, clock, burst=per_second * LOOKUP_BURST_S)

    def begin(self, peer: str, owner: Owner) -> Callable[[], None]:
        """To be asked before a task is looked up; what it returns, to be called for each that is not found.
        Raises PolledTooFast (429)."""
        key = f"{peer} {owner.key}"
        if wait_s := self._buckets.wait_s(key):
            raise PolledTooFast(
                "too many tasks were asked for that are not there (limits.failed_lookups)",
                retry_after_s=wait_s,
            )

        def failed() -> None:
            had_some = not self._buckets.wait_s(key)
            self._buckets.owe(key)
            if had_some and self._buckets.wait_s(key):
                log.warning("task_lookups_limited", peer=peer)

        return failed
