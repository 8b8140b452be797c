"""Who keeps the 2025 clients of one task told: from its first look at the task to the end, and in between.

Contract section 5. What the clients see of it is in test_tasks_2025 and test_task_questions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
import pytest

from proxy.errors import StoreError, TaskNotFound
from proxy.protocol import names
from proxy.routing.companion import Companion, Relay
from proxy.stores.memory import MemoryStore
from proxy.tasks import lifecycle
from proxy.tasks.policy import Policy
from tests.manual_clock import ManualClock
from tests.routing.bench import ADA
from tests.routing.bench_2025 import RELATED, FakeChannel
from tests.routing.troubled_store import TroubledStore
from tests.tasks.examples import CREATED_MS, POLLING, TASK_ID, waiting, working
from tests.upstream.fake_transport import settle

pytestmark = pytest.mark.anyio


@dataclass(eq=False)
class Client:
    """Implements `companion.Client`. `able`: it can answer anything."""

    channel: FakeChannel | None = field(default_factory=FakeChannel)
    able: bool = True

    def can_answer(self, method: str, params: bytes | None) -> bool:
        return self.able

    @property
    def said(self) -> list[str]:
        """The methods of what it was told."""
        return [] if self.channel is None else [message["method"] for message in self.channel.said]


@pytest.fixture
def store() -> TroubledStore:
    return TroubledStore(MemoryStore(ManualClock(CREATED_MS)))


def companion(*clients: Client) -> Companion:
    return Companion(TASK_ID, ADA, clients=list(clients))


async def run(it: Companion, store: TroubledStore) -> None:
    with anyio.fail_after(5):
        await it.run(store, Policy(), ManualClock(CREATED_MS))


async def test_it_ends_with_the_task_and_takes_back_what_is_open(store: TroubledStore) -> None:
    client = Client()
    it = companion(client)
    await store.create(working())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, it, store)
        await settle()
        await store.compare_and_set(working(), waiting())
        await settle()
        await store.compare_and_set(waiting(), lifecycle.cancelled(waiting(), POLLING, CREATED_MS + 5_000))
    assert it.ended
    status = names.TASK_STATUS_NOTIFICATION
    assert client.said == [names.ELICITATION_CREATE, status, names.CANCELLED, status]
    it.tell(b'{"jsonrpc":"2.0","method":"late"}')
    it.offer()
    assert len(client.said) == 4


async def test_of_a_task_that_has_ended_or_is_gone_there_is_nothing_to_tell(store: TroubledStore) -> None:
    client = Client()
    with pytest.raises(TaskNotFound):
        await run(companion(client), store)
    await store.create(lifecycle.cancelled(working(), POLLING, CREATED_MS))
    await run(companion(client), store)
    assert client.said == []


async def test_after_a_fault_of_the_store_it_goes_on_where_it_was(store: TroubledStore) -> None:
    """What changed meanwhile is told then, and what was told is not told again."""
    client = Client()
    it = companion(client)
    await store.create(working())
    with anyio.move_on_after(0.05):
        await it.run(store, Policy(), ManualClock(CREATED_MS))
    store.unreadable = True
    with pytest.raises(StoreError):
        await run(it, store)
    store.unreadable = False
    await store.compare_and_set(working(), waiting())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, it, store)
        await settle()
        assert client.said == [names.ELICITATION_CREATE, names.TASK_STATUS_NOTIFICATION]
        tasks.cancel_scope.cancel()


async def test_while_the_client_may_not_know_of_the_task_it_is_asked_nothing(store: TroubledStore) -> None:
    client = Client()
    it = companion(client)
    it.held = True
    await store.create(waiting())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, it, store)
        await settle()
        assert client.said == []
        it.release()
        assert client.said == [names.ELICITATION_CREATE]
        tasks.cancel_scope.cancel()


async def test_the_latest_who_asked_and_can_answer_is_asked_and_the_maker_in_any_case(
    store: TroubledStore,
) -> None:
    """F15."""
    deaf, unable, maker = Client(channel=None), Client(able=False), Client(able=False)
    for clients, maker_is, asked in [
        ([Client(), Client()], None, 1),
        ([Client(), deaf], None, 0),
        ([Client(), unable], None, 0),
        ([maker, unable], maker, 0),
        ([deaf, unable], None, None),
    ]:
        it = Companion(TASK_ID, ADA, maker=maker_is, clients=[*clients])
        it.offers.set_open(waiting().inputs)
        it.offer()
        found = [client.said for client in clients]
        assert found == [[names.ELICITATION_CREATE] if at == asked else [] for at in range(2)]


def test_who_asks_again_is_the_latest_and_who_left_is_none() -> None:
    first, second = Client(), Client()
    it = companion(first, second)
    it.join(first)
    assert it.clients == [second, first]
    it.leave(second)
    it.leave(second)
    assert it.clients == [first]


def test_what_happens_during_the_call_is_passed_on_with_whose_it_is() -> None:
    """T25-REL-001, T25-PRG-001: also what nobody knows yet, and what has no params."""
    client = Client()
    related = {"_meta": {RELATED: {"taskId": TASK_ID}}}
    relay = Relay(companion(client), b'"t"')
    relay("notifications/new", None)
    relay(names.PROGRESS, b'{"progressToken":5,"progress":1.50}')
    relay(names.PROGRESS, None)
    assert client.channel is not None
    assert [message["params"] for message in client.channel.said] == [
        related,
        {"progressToken": "t", "progress": 1.5, **related},
    ]
    Relay(companion(client), None)(names.PROGRESS, b'{"progressToken":5,"progress":2}')
    assert len(client.said) == 2
