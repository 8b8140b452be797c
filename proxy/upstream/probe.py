"""Which era the upstream speaks: asked once, remembered for the process, asked again when it proves wrong.

Above: `session`, through `base.Transport`; `assembly` wraps every transport in a `ProbingTransport`. Below:
the transports. The probe is `server/discover`, before anything else. A DiscoverResult, or an error that
only modern servers send, means modern; 401, 403 and 5xx decide nothing; anything else, silence
and death included, means legacy, and a process that died is started again. Contract section 2,
"Upstream's era"; Versioning 2026-07-28, "Backward Compatibility".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus

from proxy.eras.era import Era
from proxy.eras.to_modern import is_discover_result, is_modern_error, supported_versions
from proxy.errors import UpstreamClosed, UpstreamError, UpstreamRefused, UpstreamUnavailable, only_fault
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names
from proxy.protocol.jsonrpc import ErrorResponse, MessageError, ResultResponse
from proxy.upstream.base import Position, Receiver, Transport, TransportChoice
from proxy.upstream.endpoint import UnexpectedStatus

PROBE_TIMEOUT_S: Final = 2.0  # slow starters answer late, but then the handshake shows what they are
PROBE_TIMES: Final = 8  # as long, where it is not the server that keeps us waiting, but our own credential
PROBE_ID: Final = 0  # sessions count from 1
DOUBT_EVERY_S: Final = 30.0  # ordinary errors look much the same, and cost one more request at most as often
SERVER_ERRORS: Final = range(500, 600)

log = get_logger()


class UpstreamEra:
    """What is known of the upstream's era; shared by all its sessions."""

    def __init__(self, configured: Era | None = None) -> None:
        self._configured = configured
        self._found: Era | None = None
        self._speaks_both = False
        self._doubt_again_at = float("-inf")
        self.probing = anyio.Lock()

    @property
    def known(self) -> Era | None:
        return self._configured or self._found

    @property
    def is_configured(self) -> bool:
        """Whether the settings say it; then nothing that the server does is looked into."""
        return self._configured is not None

    @property
    def serves_legacy(self) -> bool:
        """Whether legacy clients can be passed through; True as long as nothing says otherwise."""
        return self.known is not Era.MODERN or self._speaks_both

    def found(self, era: Era, *, speaks_both: bool = False) -> None:
        """`speaks_both`: a modern server that says it serves legacy versions, too."""
        self._speaks_both = speaks_both
        if self.known is None:
            log.info("upstream_era_found", era=era.value)
            self._found = era

    def corrected(self, era: Era) -> bool:
        """The server showed itself to be of another era. False where the settings say otherwise."""
        if self._configured is None:
            log.info("upstream_era_found", era=era.value)
            self._found = era
        return self._configured is None

    def may_doubt(self, now: float) -> bool:
        """Whether it is time to ask again, after an answer that another era would give, too. `now` is
        monotonic."""
        if self._configured is not None or self._found is None or now < self._doubt_again_at:
            return False
        self._doubt_again_at = now + DOUBT_EVERY_S
        return True

    def forget(self) -> None:
        """What was found proved wrong: the next session asks again (VER-009)."""
        self._found, self._speaks_both = None, False

    def __repr__(self) -> str:
        return f"<UpstreamEra {self.known or 'unknown'}>"


class ProbingTransport(TransportChoice):
    """A transport that finds out the upstream's era before it is `started`, if nobody has yet.

    `probe_params` are the raw params of `server/discover`. `held_up_within`: see `base.Verdicts`.
    """

    def __init__(
        self,
        make: Callable[[], Transport],
        era: UpstreamEra,
        probe_params: bytes,
        held_up_within: Callable[[float], bool] = lambda seconds: False,
    ) -> None:
        self._held_up_within = held_up_within
        self._make = make
        self._era = era
        self._probe_params = probe_params
        super().__init__(make())

    async def run(self, receiver: Receiver, *, task_status: StartStatus[None]) -> None:
        """See `Transport`. Raises UpstreamError before `started`, also if the probe decided nothing."""
        if self._era.known is not None:
            await self._in_use.run(receiver, task_status=task_status)
            return
        relay = _Relay(receiver)
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(partial(self._in_use.run, relay))
                async with self._era.probing:
                    if self._era.known is None:
                        await self._probe(relay)
                if relay.is_lost:
                    relay = await self._start_again(receiver, tasks)
                relay.open()
                task_status.started()
        except BaseExceptionGroup as group:
            raise only_fault(group) from None

    async def _probe(self, relay: _Relay) -> None:
        """Ask; note what the answer means. Raises UpstreamError if it means nothing."""
        await self._send_probe()
        for _ in range(PROBE_TIMES):
            with anyio.move_on_after(PROBE_TIMEOUT_S):
                await relay.answered.wait()
            if relay.answered.is_set() or not self._held_up_within(PROBE_TIMEOUT_S):
                break
        self._in_use.abandon(PROBE_ID)
        self._era.found(relay.verdict(), speaks_both=relay.names_legacy_versions())

    async def _send_probe(self) -> None:
        with anyio.move_on_after(PROBE_TIMEOUT_S):
            message = jsonrpc.request(PROBE_ID, names.DISCOVER, self._probe_params)
            await self._in_use.send(message, call=PROBE_ID)

    async def _start_again(self, receiver: Receiver, tasks: TaskGroup) -> _Relay:
        """The server died on the probe, as some do: another one, which is not asked (contract section 2)."""
        log.info("upstream_died_on_probe")
        if self._closing:
            raise UpstreamClosed("the session was closed while it was started")
        self._in_use, relay = self._make(), _Relay(receiver)
        await tasks.start(partial(self._in_use.run, relay))
        return relay

    def __repr__(self) -> str:
        return f"<ProbingTransport {self._in_use!r} {self._era!r}>"


class _Relay:
    """Keeps the answer to the probe to itself; hands everything on once it is open."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._is_open = False
        self._held: list[tuple[bytes, int | None]] = []
        self._answer: bytes | None = None
        self._fault: UpstreamError | None = None
        self.is_lost = False
        self.answered = anyio.Event()

    def open(self) -> None:
        self._is_open = True
        for message, call in self._held:
            self._receiver.received(message, call)
        self._held.clear()
        if self.is_lost:  # in the very moment
            self._receiver.lost(None, self._fault or UpstreamClosed("the upstream ended"))

    def verdict(self) -> Era:
        """What the answer means; raises UpstreamError where it decides nothing."""
        if self._answer is not None:
            is_modern = is_discover_result(self._answer) or is_modern_error(self._answer)
            return Era.MODERN if is_modern else Era.LEGACY
        match self._fault:
            case UpstreamRefused() | UpstreamUnavailable():
                raise self._fault
            case UnexpectedStatus(upstream_status=status) if status in SERVER_ERRORS:
                raise self._fault
            case _:
                return Era.LEGACY

    def names_legacy_versions(self) -> bool:
        """Whether it was a DiscoverResult that has legacy versions among those it supports."""
        return self._answer is not None and not supported_versions(self._answer).isdisjoint(
            names.LEGACY_VERSIONS
        )

    def received(self, message: bytes, call: int | None) -> None:
        if self._is_open:
            self._receiver.received(message, call)
        elif _answers_probe(message, call):
            self._answer = message
            self.answered.set()
        elif len(self._held) < 1_000:  # what a server says unasked before it was greeted
            self._held.append((message, call))

    def lost(self, call: int | None, error: UpstreamError) -> None:
        if self._is_open:
            self._receiver.lost(call, error)
            return
        if self._fault is None:
            self._fault = error
        if call is None:
            self.is_lost = True
        self.answered.set()

    def moved(self, call: int, position: Position) -> None:
        if self._is_open:
            self._receiver.moved(call, position)


def _answers_probe(message: bytes, call: int | None) -> bool:
    """Its id is ours, or made up, or unreadable: on HTTP the stream tells, on stdio nobody else was asked."""
    try:
        parsed = jsonrpc.parse(message, 900)
    except MessageError:
        return False
    return isinstance(parsed, ResultResponse | ErrorResponse)
