"""Restarts over the parts of `bench`: what one process left in the store, the next one takes up.

The server is an HTTP server here whose streams have event ids: `Call.at` tells one, and what is asked for
again comes out of `FakeServer.next_resumed`. What the old process still does reaches neither store nor
server.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from proxy.owners import Credentials, Owner
from proxy.routing.adopted import Adopted, Adoption
from proxy.routing.in_flight import FIRST_TASK_ID
from proxy.routing.live import Place
from proxy.routing.recovery import Recovery
from proxy.tasks.lost_call import CallTrace
from proxy.tasks.policy import Policy, ToolPolicy
from proxy.tasks.task import Task
from proxy.upstream.pool import PoolSettings
from tests.routing.bench import POLICY, Bench, Client, bench
from tests.routing.fake_server import Asked, Call, FakeServer, Wire
from tests.routing.troubled_store import TroubledStore
from tests.upstream.fake_transport import adopted_session

REPEATABLE: Final = Policy(rules=(("again_*", ToolPolicy(repeatable=True)), *POLICY.rules))
YES: Final[dict[str, Any]] = {"action": "accept", "content": {"ok": True}}


class Restarts:
    """`rig` has the parts of the process that lives now; `resumable`: whether the next one can resume."""

    def __init__(self, rig: Bench) -> None:
        self.rig = rig
        self.server = rig.server
        self.credentials: Credentials = Credentials()
        self.resumable = True
        self.recovery: Recovery
        self._places: dict[tuple[Owner, str | None], Adopted] = {}
        self._ids = itertools.count(FIRST_TASK_ID, 1_000)

    async def restart(self, *, policy: Policy | None = None) -> None:
        """`kill -9`, a start, and whatever recovery does without time."""
        await self.kill()
        await self.start(policy=policy)

    async def kill(self) -> None:
        """The old process is not heard of again."""
        rig = self.rig
        await rig.settle()
        rig.runner.freeze()
        rig.store.broken = rig.store.unreadable = True
        for wire in rig.server.wires:
            wire.cut()
        rig.store = TroubledStore(rig.memory)

    async def start(self, *, policy: Policy | None = None) -> None:
        rig = self.rig
        rig.policy = policy or rig.policy
        rig.credentials = self.credentials
        rig.start_over()
        self._places = {}
        await rig.tasks.start(rig.pool.run)
        await rig.tasks.start(rig.runner.run)
        self.recovery = Recovery(
            rig.store,
            rig.runner,
            rig.policy,
            self.credentials,
            rig.clock,
            self._place_of if self.resumable else None,
            rig.metrics,
        )
        rig.tasks.start_soon(self.recovery.run)
        await rig.settle()

    def client(self, **how: Any) -> Client:
        return self.rig.client(**how)

    async def task(self, client: Client | None = None, tool: str = "slow") -> tuple[str, Call]:
        """A task whose call's stream has brought one event: `e0`."""
        task, call = await self.rig.task(client or self.client(), tool)
        call.at("e0")
        await self.rig.pass_time(1)
        return task, call

    async def asking_task(self, client: Client | None = None, tool: str = "slow") -> tuple[str, str, Asked]:
        """A task that waits for its user: its id, the key, and the question, which came at `e1`."""
        client = client or self.client()
        task, call = await self.task(client, tool)
        asked = call.elicit()
        call.at("e1")
        await self.rig.settle()
        [key] = (await client.get(task))["inputRequests"]
        return task, key, asked

    async def told(self, task: str, client: Client | None = None) -> dict[str, Any]:
        """What the task shows now."""
        await self.rig.settle()
        return await (client or self.client()).get(task)

    def work(self, name: str) -> int:
        """How many pieces of work of this name the runner has."""
        return sum((info.name or "").endswith(f".{name}") for info in anyio.get_running_tasks())

    # -- the upstream's sessions ----------------------------------------------------------------------

    async def _place_of(self, owner: Owner, task: Task, trace: CallTrace) -> Place:
        key = owner, trace.session_id
        return self._places.setdefault(key, Adopted(self._adopt, self.rig.runner.spawn)).lease

    def _adopt(self) -> Adoption:
        wire, first_id = Wire(self.server).goes_on(), next(self._ids)
        session = adopted_session(
            wire, self.server.info, self.rig.clock, first_id=first_id, take_up=wire.take_up
        )
        return Adoption(session, lambda wanted: None)


@asynccontextmanager
async def restarts(
    server: FakeServer | None = None,
    *,
    policy: Policy = REPEATABLE,
    settings: PoolSettings = PoolSettings(idle_timeout_s=None),  # noqa: B008 - a frozen value
) -> AsyncIterator[Restarts]:
    """Everything runs inside."""
    async with bench(server, policy=policy, settings=settings) as rig:
        yield Restarts(rig)
