"""The upstream as far as requests of our own go: each is kept until the test answers it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import anyio

from proxy.errors import UpstreamError
from proxy.protocol.envelope import dumps
from proxy.upstream.base import Failure, Outcome, Result
from tests.upstream.fake_transport import until


@dataclass(eq=False)
class Asked:
    """One request of ours. `cancelled` if nobody waits for its answer any more."""

    method: str
    params: Any
    cancelled: bool = False
    _outcome: Outcome | UpstreamError | None = None
    _told: anyio.Event = field(default_factory=anyio.Event)

    def answer(self, result: Any = None) -> None:
        self.answer_raw(dumps({} if result is None else result))

    def answer_raw(self, result: bytes) -> None:
        self._tell(Result(result))

    def refuse(self) -> None:
        self._tell(Failure(b'{"code":-32603,"message":"no"}'))

    def fail(self, error: UpstreamError) -> None:
        self._tell(error)

    def _tell(self, outcome: Outcome | UpstreamError) -> None:
        self._outcome = outcome
        self._told.set()

    async def wait(self) -> Outcome:
        try:
            await self._told.wait()
        except BaseException:
            self.cancelled = True
            raise
        assert self._outcome is not None
        if isinstance(self._outcome, UpstreamError):
            raise self._outcome
        return self._outcome


@dataclass
class FakeUpstream:
    """`ask` stands in for `LegacySession.ask`."""

    asked: list[Asked] = field(default_factory=list)

    async def ask(self, method: str, params: bytes | None) -> Outcome:
        request = Asked(method, None if params is None else json.loads(params))
        self.asked.append(request)
        return await request.wait()

    async def nth(self, n: int) -> Asked:
        """The `n`th request, from 1, once it is there."""
        await until(lambda: len(self.asked) >= n)
        return self.asked[n - 1]

    @property
    def said(self) -> list[tuple[str, Any]]:
        return [(a.method, a.params) for a in self.asked]
