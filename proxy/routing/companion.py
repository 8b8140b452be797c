"""Keeps the 2025 clients of one running task told: its questions, its status, its progress.

Above: `tasks_2025`, which has one companion for each task that such a client cares about. Below: the store's
watch and `offers`. Clients come and go; the task depends on none of them, and not on this. MCP 2025-11-25,
"Tasks"; contract section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from proxy.clock import Clock
from proxy.eras.tasks_2025 import with_related_task
from proxy.eras.to_modern import with_progress_token
from proxy.owners import Owner
from proxy.protocol import jsonrpc, names
from proxy.routing.offers import Channel, Offers
from proxy.stores.base import TaskStore
from proxy.tasks import views_2025
from proxy.tasks.policy import Policy
from proxy.tasks.task import InputRequest, Task, TaskStatus


class Client(Protocol):
    """A legacy client's session."""

    @property
    def channel(self) -> Channel | None:
        """What reaches it besides the answers to its requests: its GET stream, or its stdio pipe."""
        ...

    def can_answer(self, method: str, params: bytes | None) -> bool:
        """Whether it declared what is needed to answer this question, as far as is known."""
        ...


@dataclass(eq=False)
class Companion:
    """Of the task `task_id`. `maker` is the session that asked for the task, where it was a legacy one;
    `clients` those that asked about it, the latest last; `streams` their open `tasks/result` streams. `held`:
    the client may not know of the task yet, and is asked nothing."""

    task_id: str
    owner: Owner
    maker: Client | None = None
    clients: list[Client] = field(default_factory=list)
    streams: list[tuple[Client, Channel]] = field(default_factory=list)
    offers: Offers = field(init=False)
    held: bool = False
    ended: bool = False
    _shown: TaskStatus | None = None

    def __post_init__(self) -> None:
        self.offers = Offers(self.task_id)

    def __repr__(self) -> str:
        return (
            f"<Companion {len(self.clients)} clients, {len(self.streams)} streams, {len(self.offers)} open>"
        )

    async def run(self, store: TaskStore, policy: Policy, clock: Clock) -> None:
        """Until the task is terminal. Raises TaskNotFound and StoreError; may then be run again."""
        self.ended = False
        try:
            async with store.watch([self.task_id]) as watch:
                task = await store.get(self.task_id, result=False)
                while True:
                    self._take(task, policy, clock)
                    if task.status.is_terminal:
                        return
                    task = await watch.receive()
        finally:
            self.ended = True
            self.offers.take_back_all()

    def join(self, client: Client) -> None:
        """This client asks about the task: it is the one to be told from now on."""
        if client in self.clients:
            self.clients.remove(client)
        self.clients.append(client)

    def leave(self, client: Client) -> None:
        if client in self.clients:
            self.clients.remove(client)

    def open_stream(self, client: Client, stream: Channel) -> None:
        """A `tasks/result` of this client waits, and this stream is its."""
        self.streams.append((client, stream))
        self.offer()

    def close_stream(self, client: Client, stream: Channel) -> None:
        """That request is over. Its stream may not know yet; what was asked there is asked elsewhere, unless
        it is a pipe that carries everything."""
        self.streams.remove((client, stream))
        if all(stream is not channel for _, channel in self._ways()):
            self.offers.lost(stream)
        self.offer()

    def offer(self) -> None:
        """Put open questions to the client. To be called whenever a way to it was opened or has closed."""
        if not self.ended and not self.held:
            self.offers.send_on(self._channels_for)

    def release(self) -> None:
        """The client knows of the task by now."""
        self.held = False
        self.offer()

    def tell(self, message: bytes) -> None:
        """A notification of the task, on the best way there is; dropped where there is none."""
        channel = next((c for _, c in self._ways() if c.is_open), None)
        if channel is not None and not self.ended:
            channel.send(message)

    def _ways(self) -> list[tuple[Client, Channel]]:
        """To the clients, the best one first."""
        own = ((client, client.channel) for client in reversed(self.clients))
        return [*self.streams, *((client, channel) for client, channel in own if channel is not None)]

    def _channels_for(self, question: InputRequest) -> Iterator[Channel]:
        """Who asked for the task is asked whatever its server asks, as without us. Any other client only what
        it can answer: a task of the owner's modern client may ask for more, and its error would count."""
        for client, channel in self._ways():
            if client is self.maker or client.can_answer(question.method, question.params):
                yield channel

    def _take(self, task: Task, policy: Policy, clock: Clock) -> None:
        self.offers.set_open(task.inputs)
        self.offer()
        status, before = views_2025.status_of(task), self._shown
        self._shown = status
        if before is not None and status is not before:
            self._tell_status(views_2025.task_object(task, policy.polling, clock.wall_ms()))

    def _tell_status(self, task: bytes) -> None:
        """On a session's own channel, and without related-task metadata (T25-NOT-001, T25-NOT-002)."""
        for client in reversed(self.clients):
            if client.channel is not None and client.channel.is_open:
                client.channel.send(jsonrpc.notification(names.TASK_STATUS_NOTIFICATION, task))
                return


@dataclass(frozen=True, slots=True)
class Relay:
    """Passes on what happens during the call: progress under the client's own token, and logs. A
    `live.NotificationListener`. (T25-REL-001, T25-PRG-001)"""

    companion: Companion
    token: bytes | None

    def __call__(self, method: str, params: bytes | None) -> None:
        if method == names.PROGRESS:
            if self.token is None or params is None:
                return
            params = with_progress_token(params, self.token)
        related = with_related_task(params, self.companion.task_id)
        self.companion.tell(jsonrpc.notification(method, related))
