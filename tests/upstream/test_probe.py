"""Which era the upstream speaks: asked once, before anything else, and what its answer means.

Contract section 2, "Upstream's era"; Versioning 2026-07-28, "Backward Compatibility".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import anyio
import pytest

from proxy.eras.era import Era
from proxy.errors import UpstreamClosed, UpstreamError, UpstreamRefused, UpstreamUnavailable
from proxy.protocol import names
from proxy.upstream import probe
from proxy.upstream.base import StreamPosition
from proxy.upstream.endpoint import UnexpectedStatus
from proxy.upstream.probe import ProbingTransport, UpstreamEra
from tests.upstream.fake_transport import FakeTransport, until
from tests.upstream.told import Told

pytestmark = pytest.mark.anyio

BOTH = [*names.LEGACY_VERSIONS, *names.MODERN_VERSIONS]
REFUSED = UpstreamRefused("no", status=HTTPStatus.UNAUTHORIZED, challenges=())


class Scene:
    """Transports as they are made, and who is told what."""

    def __init__(
        self, era: UpstreamEra | None = None, held_up_within: Callable[[float], bool] = lambda seconds: False
    ) -> None:
        self.era = era if era is not None else UpstreamEra()
        self.made: list[FakeTransport] = []
        self.told = Told()
        self.started = anyio.Event()
        self.probing = ProbingTransport(self._make, self.era, b'{"_meta":{}}', held_up_within)

    def _make(self) -> FakeTransport:
        self.made.append(FakeTransport())
        return self.made[-1]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeTransport]:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:

                async def run() -> None:
                    await tasks.start(partial(self.probing.run, self.told))
                    self.started.set()

                tasks.start_soon(run)
                yield self.made[0]
                tasks.cancel_scope.cancel()


def discovered(*versions: Any) -> dict[str, Any]:
    return {"supportedVersions": list(versions), "capabilities": {}}


@pytest.mark.parametrize(
    "outcome, era, serves_legacy",
    [
        ({"result": discovered(*names.MODERN_VERSIONS)}, Era.MODERN, False),
        ({"result": discovered(*BOTH)}, Era.MODERN, True),
        ({"result": discovered("2025-06-18", 7, None)}, Era.MODERN, True),
        ({"error": {"code": -32022, "message": ""}}, Era.MODERN, False),
        ({"error": {"code": -32021, "message": ""}}, Era.MODERN, False),
        ({"error": {"code": -32020, "message": ""}}, Era.MODERN, False),
        ({"error": {"code": -32601, "message": ""}}, Era.LEGACY, True),
        ({"error": {"code": -32602, "message": ""}}, Era.LEGACY, True),
        ({"result": {}}, Era.LEGACY, True),
        ({"result": {"supportedVersions": "2025-06-18"}}, Era.LEGACY, True),
    ],
)
async def test_the_answer_shows_the_era_and_whether_legacy_clients_can_be_passed_through(
    outcome: dict[str, Any], era: Era, serves_legacy: bool
) -> None:
    """VER-010, VER-011, VER-012."""
    scene = Scene()
    assert scene.era.serves_legacy, "as long as nothing says otherwise"
    async with scene.running() as transport:
        request = await transport.asked(names.DISCOVER)
        assert not scene.started.is_set()
        transport.answer(request, outcome.get("result"), error=outcome.get("error"))
        await scene.started.wait()
    assert (scene.era.known, scene.era.serves_legacy) == (era, serves_legacy)
    assert scene.told.received_ == []


@pytest.mark.parametrize("ends", [False, True])
async def test_a_server_that_does_not_take_the_question_is_legacy_at_once(ends: bool) -> None:
    """And one that died of it is started again, and not asked."""
    scene = Scene()
    async with scene.running() as transport:
        request = await transport.asked(names.DISCOVER)
        if ends:
            transport.die(UpstreamClosed("exit code 1"))
        else:
            transport.lose(request.id, UpstreamClosed("400"))
        with anyio.fail_after(probe.PROBE_TIMEOUT_S / 2):
            await scene.started.wait()
        assert scene.era.known is Era.LEGACY
        assert [len(made.sent) for made in scene.made] == ([1, 0] if ends else [1])
        assert scene.told.losses == []
        scene.made[-1].notify("notifications/x")
        assert len(scene.told.received_) == 1


@pytest.mark.parametrize(
    "fault",
    [REFUSED, UpstreamUnavailable("not there"), UnexpectedStatus("503", 503)],
)
async def test_what_decides_nothing_is_a_fault_and_the_next_one_asks_again(fault: UpstreamError) -> None:
    """401, 403 and 5xx."""
    scene = Scene()
    with pytest.raises(ExceptionGroup) as caught:
        async with scene.running() as transport:
            request = await transport.asked(names.DISCOVER)
            transport.lose(request.id, fault)
            await scene.started.wait()
    assert caught.group_contains(type(fault))
    assert scene.era.known is None


async def test_silence_is_legacy(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6."""
    monkeypatch.setattr(probe, "PROBE_TIMEOUT_S", 0.01)
    scene = Scene()
    async with scene.running() as transport:
        await scene.started.wait()
        assert scene.era.known is Era.LEGACY
        assert transport.abandoned == [probe.PROBE_ID]


@pytest.mark.parametrize(
    ("is_fetched", "times", "era"), [(True, 2, Era.MODERN), (False, probe.PROBE_TIMES, Era.LEGACY)]
)
async def test_who_waits_for_a_credential_of_ours_is_not_silent(
    monkeypatch: pytest.MonkeyPatch, is_fetched: bool, times: int, era: Era
) -> None:
    """The server has not been asked in earnest, and nothing is known of it till then. Bounded (I6)."""
    monkeypatch.setattr(probe, "PROBE_TIMEOUT_S", 0.01)
    looked: list[float] = []

    def held_up_within(seconds: float) -> bool:
        looked.append(seconds)
        if is_fetched and len(looked) == times:
            made.answer(made.sent[0], discovered(*BOTH))
        return True

    scene = Scene(held_up_within=held_up_within)
    async with scene.running() as made:
        await scene.started.wait()
        assert scene.era.known is era
        assert looked == [0.01] * times


async def test_what_is_said_before_the_answer_is_not_lost() -> None:
    scene = Scene()
    async with scene.running() as transport:
        request = await transport.asked(names.DISCOVER)
        transport.notify("notifications/message")
        assert scene.told.received_ == []
        transport.answer(request, discovered(*BOTH))
        await scene.started.wait()
        assert [message for message, _ in scene.told.received_] != []


async def test_two_at_once_ask_once() -> None:
    era = UpstreamEra()
    first, second = Scene(era), Scene(era)
    async with first.running() as one, second.running() as other:
        await until(lambda: one.sent or other.sent)
        asked = one if one.sent else other
        asked.answer(asked.sent[0], discovered(*BOTH))
        await first.started.wait()
        await second.started.wait()
    assert len(one.sent) + len(other.sent) == 1
    assert era.serves_legacy


@pytest.mark.parametrize("configured", list(Era))
async def test_what_is_configured_is_not_asked(configured: Era) -> None:
    scene = Scene(UpstreamEra(configured))
    async with scene.running() as transport:
        await scene.started.wait()
    assert transport.sent == []
    assert scene.era.serves_legacy is (configured is Era.LEGACY)
    assert not scene.era.corrected(Era.MODERN)


async def test_what_proved_wrong_is_forgotten() -> None:
    """VER-009."""
    era = UpstreamEra()
    era.found(Era.MODERN, speaks_both=True)
    era.forget()
    assert (era.known, era.serves_legacy) == (None, True)
    assert era.corrected(Era.MODERN)
    assert not era.serves_legacy


async def test_places_in_streams_are_told_once_it_has_started() -> None:
    scene, position = Scene(UpstreamEra(Era.LEGACY)), StreamPosition("s", "2025-11-25", 1, "e")
    async with scene.running() as transport:
        await scene.started.wait()
        assert transport._receiver is not None
        transport._receiver.moved(1, position)
    assert scene.told.positions == [position]
