"""Waiting for other processes, which set no events here, and for many calls at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import anyio

Seen = TypeVar("Seen")

LOOK_AGAIN_S: Final = 0.02


async def until(look: Callable[[], Seen], what: str, *, within_s: float = 30.0) -> Seen:
    """Look again and again until `look` returns something true, and return that.

    Raises AssertionError naming `what` if it takes longer than `within_s`.
    """
    with anyio.move_on_after(within_s):
        while not (seen := look()):  # noqa: ASYNC110 - another process cannot set an event here
            await anyio.sleep(LOOK_AGAIN_S)
        return seen
    raise AssertionError(f"not within {within_s} s: {what}")


async def asked_until(
    ask: Callable[[], Awaitable[Seen]],
    enough: Callable[[Seen], bool],
    what: str,
    *,
    within_s: float = 30.0,
    every_s: float = 0.1,
) -> Seen:
    """Ask again and again until an answer is `enough`, and return that one.

    Raises AssertionError naming `what` and the last answer if it takes longer than `within_s`.
    """
    last: Seen | None = None
    with anyio.move_on_after(within_s):
        while not enough(answer := await ask()):
            last = answer
            await anyio.sleep(every_s)
        return answer
    raise AssertionError(f"not within {within_s} s: {what}; last answer: {last!r}")


async def together(calls: Iterable[Awaitable[Seen]]) -> list[Seen]:
    """Await all of them at once; what they returned, in their order. One failure cancels the rest."""
    awaited = list(calls)
    results: dict[int, Seen] = {}

    async def one(place: int, call: Awaitable[Seen]) -> None:
        results[place] = await call

    async with anyio.create_task_group() as group:
        for place, call in enumerate(awaited):
            group.start_soon(one, place, call)
    return [results[place] for place in range(len(awaited))]
