"""`subscriptions/listen`: acknowledged first, exactly what was asked for, tasks whole and in order.

Contract sections 3 and 4; Subscriptions 2026-07-28; Tasks extension, "Task Status Notifications".
"""

from __future__ import annotations

from typing import Any, Final

import anyio
import pytest

from proxy.routing.listen import COALESCE_S
from tests.routing.bench import ADA, ASKABLE, BOB, TASKS, Bench, Exchanged, bench
from tests.routing.fake_server import FakeServer

pytestmark = pytest.mark.anyio

ACK: Final = "notifications/subscriptions/acknowledged"
TASK: Final = "notifications/tasks"
UPDATED: Final = "notifications/resources/updated"
SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
ALL_LISTS: Final = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
UNKNOWN: Final = "tpx-" + "A" * 32


def list_changed(group: str) -> str:
    return f"notifications/{group}/list_changed"


def methods(listening: Exchanged) -> list[str]:
    return [method for method, _ in listening.told]


def acknowledged(listening: Exchanged) -> dict[str, Any]:
    method, params = listening.told[0]
    assert method == ACK
    return dict(params["notifications"])


def tasks_told(listening: Exchanged) -> list[dict[str, Any]]:
    return [params for method, params in listening.told if method == TASK]


def without_result_type(poll: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in poll.items() if key != "resultType"}


async def change(rig: Bench, *groups: str) -> None:
    """The server's lists change, and whoever listens has been told."""
    for group in groups:
        rig.server.wire.tell({"method": list_changed(group)})
    await rig.pass_time(COALESCE_S)


# ------------------------------------------------------------------------------ the stream


async def test_the_acknowledgement_comes_first_and_says_what_is_granted() -> None:
    """SUB-002, SUB-003: though a change comes while the subscription is made."""
    async with bench() as rig:
        await rig.client(capabilities=ASKABLE).start("server/discover").result()
        rig.server.answers.pop("resources/subscribe")
        listening = rig.client(capabilities=ASKABLE).listen(**ALL_LISTS, resourceSubscriptions=["file:///a"])
        subscribing = await rig.server.next_call()
        rig.server.wire.tell({"method": list_changed("tools")})
        await rig.pass_time(1)
        assert listening.told == []
        subscribing.answer({})
        await rig.pass_time(1)
        assert acknowledged(listening) == {**ALL_LISTS, "resourceSubscriptions": ["file:///a"]}
        assert methods(listening) == [ACK, list_changed("tools")]


@pytest.mark.parametrize("id", ["a", 1, ""])
async def test_everything_on_the_stream_has_the_id_of_the_subscription(id: Any) -> None:
    """SUB-004, TX-NOT-007, SUB-006: with its JSON type, also its result at the end."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        listening = client.listen(id=id, toolsListChanged=True, taskIds=[task])
        await rig.settle()
        await change(rig, "tools")
        call.answer()
        await rig.settle()
        rig.listen.shut_down()
        result = await listening.result()
        assert result == {"resultType": "complete", "_meta": {SUBSCRIPTION: id}}
        assert methods(listening) == [ACK, list_changed("tools"), TASK]
        assert [params["_meta"] for _, params in listening.told] == [{SUBSCRIPTION: id}] * 3


async def test_only_what_was_asked_for_is_told() -> None:
    """SUB-001, SUB-005, SUB-011: each stream has its own filter."""
    async with bench() as rig:
        client = rig.client()
        tools, both = (
            client.listen(toolsListChanged=True),
            client.listen(id=2, promptsListChanged=True, resourcesListChanged=True),
        )
        await rig.settle()
        await change(rig, "prompts")
        await change(rig, "tools", "resources")
        assert methods(tools) == [ACK, list_changed("tools")]
        assert methods(both) == [ACK, list_changed("prompts"), list_changed("resources")]


async def test_what_the_server_does_not_declare_is_left_out() -> None:
    """SUB-003: even if it is sent all the same, before the acknowledgement or after it."""
    server = FakeServer()
    server.capabilities = {"tools": {"listChanged": True}, "prompts": {}, "resources": {"listChanged": False}}
    async with bench(server) as rig:
        await rig.client().start("server/discover").result()
        listening = rig.client().listen(**ALL_LISTS, resourceSubscriptions=["file:///a"], unknown=True)
        rig.server.wire.tell({"method": list_changed("prompts")})
        await rig.settle()
        await change(rig, "tools", "prompts", "resources")
        assert acknowledged(listening) == {"toolsListChanged": True}
        assert methods(listening) == [ACK, list_changed("tools")]
        assert rig.server.heard("resources/subscribe") == []


async def test_the_same_change_told_often_is_passed_on_once() -> None:
    async with bench() as rig:
        listening = rig.client().listen(toolsListChanged=True)
        await rig.settle()
        await change(rig, *["tools"] * 100)
        await change(rig, "tools")
        assert methods(listening) == [ACK, list_changed("tools"), list_changed("tools")]


async def test_changes_of_every_session_of_the_owner_are_told_and_of_no_other() -> None:
    """SEC-004."""
    async with bench() as rig:
        listening = rig.client(owner=ADA, capabilities={}).listen(toolsListChanged=True)
        await rig.settle()
        for owner in (ADA, BOB):
            await rig.client(owner=owner).start("server/discover").result()
            await change(rig, "tools")
        assert len(rig.server.wires) == 3
        assert methods(listening) == [ACK, list_changed("tools")]


async def test_neither_progress_nor_logs_travel_on_the_stream() -> None:
    """SUB-009, TX-NOT-005: those of a call beside it, and of a task on it."""
    async with bench() as rig:
        client = rig.client(meta={"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"})
        task, call = await rig.task(client)
        listening = client.listen(**ALL_LISTS, taskIds=[task])
        await rig.settle()
        call.progress(1)
        call.log("error")
        beside = client.call("slow")
        (await rig.server.next_call()).progress(1)
        await rig.pass_time(0.1)
        assert set(methods(listening)) == {ACK, TASK}
        assert methods(beside) == ["notifications/progress"]


async def test_a_client_that_is_gone_is_told_nothing_and_frees_what_it_had() -> None:
    """SUB-008, SUB-012: the last listener of a resource unsubscribes upstream."""
    async with bench() as rig:
        uris = ["file:///a"]
        first, second = (rig.client().listen(id=n, resourceSubscriptions=uris) for n in (1, 2))
        await rig.settle()
        assert rig.server.heard("resources/subscribe") == [{"uri": "file:///a"}]
        first.hang_up()
        await rig.settle()
        assert rig.server.heard("resources/unsubscribe") == []
        rig.server.wire.tell({"method": UPDATED, "params": {"uri": "file:///a"}})
        await rig.pass_time(COALESCE_S)
        assert (methods(first), methods(second)) == ([ACK], [ACK, UPDATED])
        second.hang_up()
        await rig.settle()
        assert rig.server.heard("resources/unsubscribe") == [{"uri": "file:///a"}]


async def test_a_server_that_ignores_unsubscribing_holds_nobody_up() -> None:
    """I6: the hang-up is over when its bound is."""
    async with bench() as rig:
        listening = rig.client().listen(resourceSubscriptions=["file:///a"])
        await rig.settle()
        rig.server.answers.pop("resources/unsubscribe")
        listening.hang_up()
        call = await rig.server.next_call()
        assert call.method == "resources/unsubscribe"
        call.answer({})
        await rig.settle()
        assert listening.done


async def test_updates_of_parts_of_a_resource_are_told() -> None:
    async with bench() as rig:
        listening = rig.client().listen(resourceSubscriptions=["file:///a", "file:///refused"])
        await rig.settle()
        for uri in ("file:///a", "file:///a/b", "file:///ab", "file:///c"):
            rig.server.wire.tell({"method": UPDATED, "params": {"uri": uri}})
        await rig.pass_time(COALESCE_S)
        assert [p["uri"] for m, p in listening.told if m == UPDATED] == ["file:///a", "file:///a/b"]


async def test_a_resource_that_the_server_refuses_is_not_granted() -> None:
    """SUB-003."""
    async with bench() as rig:
        rig.server.answers["resources/subscribe"] = (-32002, "no such resource")
        listening = rig.client().listen(toolsListChanged=True, resourceSubscriptions=["file:///a"])
        await rig.settle()
        assert acknowledged(listening) == {"toolsListChanged": True}


async def test_after_the_loss_of_its_session_the_stream_has_another() -> None:
    """F38: subscribed again, and told once that lists may have changed."""
    async with bench() as rig:
        listening = rig.client().listen(toolsListChanged=True, resourceSubscriptions=["file:///a"])
        await rig.settle()
        rig.server.wire.break_off()
        await rig.pass_time(2)
        assert len(rig.server.wires) == 2
        assert rig.server.heard("resources/subscribe") == [{"uri": "file:///a"}] * 2
        assert methods(listening) == [ACK, list_changed("tools")]
        await change(rig, "tools")
        assert methods(listening) == [ACK, list_changed("tools"), list_changed("tools")]


async def test_while_the_server_is_away_the_stream_waits_with_back_off() -> None:
    async with bench() as rig:
        listening = rig.client().listen(toolsListChanged=True)
        await rig.settle()
        rig.server.start_fault = "away"
        rig.server.wire.break_off()
        await rig.pass_time(600)
        assert not listening.done
        rig.server.start_fault = None
        await rig.pass_time(60)
        assert methods(listening) == [ACK, list_changed("tools")]


async def test_listening_before_a_server_that_cannot_be_started_is_an_error() -> None:
    async with bench() as rig:
        rig.server.start_fault = "no such file"
        _, error = await rig.client().listen(toolsListChanged=True).error()
        assert error == {"code": -32603, "message": "no such file"}


@pytest.mark.parametrize("filter", [{}, {"toolsListChanged": False}, {"unknown": 1}])
async def test_a_filter_that_asks_for_nothing_is_granted_so(filter: dict[str, Any]) -> None:
    """The server is not troubled with it."""
    async with bench() as rig:
        listening = rig.client().listen(**filter)
        await rig.settle()
        assert acknowledged(listening) == {}
        assert not rig.server.wires


@pytest.mark.parametrize("waits_for", ["nothing", "the server"])
async def test_at_the_end_each_stream_gets_its_result(waits_for: str) -> None:
    """SUB-006: also one that is not acknowledged yet."""
    async with bench() as rig:
        if waits_for == "the server":
            rig.server.may_start = anyio.Event()
        listening = rig.client().listen(toolsListChanged=True)
        await rig.settle()
        rig.listen.shut_down()
        assert (await listening.result())["resultType"] == "complete"


async def test_a_stream_ends_with_its_result_when_the_token_of_its_client_expires() -> None:
    """Contract section 8: what happens to its tasks afterwards is told to nobody; other streams stay."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        listening = client.but(good_for_s=60.0).listen(toolsListChanged=True, taskIds=[task])
        other = client.listen(id="other", taskIds=[task])
        await rig.pass_time(59)
        assert not listening.done
        await rig.pass_time(1)
        assert (await listening.result())["resultType"] == "complete"
        told = methods(listening)
        call.answer()
        await change(rig, "tools")
        assert methods(listening) == told
        assert methods(other)[-1] == TASK
        assert rig.listen.streams == 1


# ------------------------------------------------------------------------------ tasks


async def test_each_state_of_a_task_is_told_whole_and_in_order() -> None:
    """TX-NOT-001, TX-NOT-004: as a poll at that moment would tell it; the terminal one last."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        listening = client.listen(taskIds=[task])
        await rig.settle()
        polls = []

        async def poll() -> None:
            await rig.pass_time(0.2)
            polls.append(await client.get(task))

        call.progress(1, message="of it")
        await poll()
        call.elicit()
        await poll()
        await client.update(task, {key: {"action": "decline"} for key in polls[-1]["inputRequests"]})
        await poll()
        call.answer()
        await poll()
        told = [{k: v for k, v in t.items() if k != "_meta"} for t in tasks_told(listening)]
        assert [t["status"] for t in told] == ["working", "input_required", "working", "working", "completed"]
        assert all(without_result_type(poll) in told for poll in polls)
        assert told[-1] == without_result_type(polls[-1])


async def test_what_happened_before_the_acknowledgement_is_not_told_after_it() -> None:
    """TX-NOT-001: in order; the newest state is what a client knows from its own poll."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        rig.store.read_gate = anyio.Event()
        listening = client.listen(taskIds=[task])
        await rig.settle()
        for n in range(1, 4):
            call.progress(n)
            await rig.pass_time(0.2)
        rig.store.read_gate.set()
        await rig.settle()
        assert methods(listening) == [ACK]
        call.progress(4)
        await rig.pass_time(0.2)
        assert [t["statusMessage"] for t in tasks_told(listening)] == ["4"]


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_other_ends_are_told_too(end: str) -> None:
    """TX-NOT-004."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        listening = client.listen(taskIds=[task])
        await rig.settle()
        if end == "failed":
            call.fail(-1, "no")
        else:
            await client.cancel(task)
        await rig.settle()
        [told] = tasks_told(listening)
        poll = await client.get(task)
        assert told["status"] == end
        assert {**told, "_meta": None} == {k: v for k, v in poll.items() if k != "resultType"} | {
            "_meta": None
        }


async def test_only_own_tasks_are_granted_and_the_others_cannot_be_told_apart() -> None:
    """TX-NOT-003, TX-SEC-002, I5."""
    async with bench() as rig:
        ada, bob = rig.client(owner=ADA), rig.client(owner=BOB)
        own, call = await rig.task(ada)
        foreign, foreign_call = await rig.task(bob)
        listening = ada.listen(taskIds=[foreign, own, UNKNOWN, "nonsense", own])
        await rig.settle()
        assert acknowledged(listening) == {"taskIds": [own]}
        foreign_call.answer()
        call.answer()
        await rig.settle()
        assert [t["taskId"] for t in tasks_told(listening)] == [own]


async def test_tasks_that_were_not_named_are_not_told() -> None:
    """TX-NOT-006."""
    async with bench() as rig:
        client = rig.client()
        named, first = await rig.task(client)
        _, second = await rig.task(client)
        listening = client.listen(taskIds=[named])
        await rig.settle()
        second.answer()
        await rig.settle()
        assert tasks_told(listening) == []
        first.answer()
        await rig.settle()
        assert [t["taskId"] for t in tasks_told(listening)] == [named]


async def test_a_task_that_has_ended_is_told_at_once_and_once() -> None:
    """Nothing else would ever be told of it."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        call.answer()
        await rig.settle()
        listening = client.listen(taskIds=[task])
        await rig.pass_time(1)
        [told] = tasks_told(listening)
        assert told["result"]["content"]
        assert methods(listening) == [ACK, TASK]


async def test_without_the_extension_listening_for_tasks_is_refused() -> None:
    """TX-NOT-002: without taskIds it is served."""
    async with bench() as rig:
        task, _ = await rig.task(rig.client())
        client = rig.client(capabilities=ASKABLE)
        status, error = await client.listen(taskIds=[task]).error()
        assert (status, error["code"]) == (400, -32021)
        assert error["data"] == {"requiredCapabilities": TASKS}
        listening = client.listen(toolsListChanged=True)
        await rig.settle()
        assert acknowledged(listening) == {"toolsListChanged": True}


async def test_listening_for_tasks_alone_needs_no_server() -> None:
    async with bench() as rig:
        task, _ = await rig.task(rig.client())
        before = len(rig.server.wire.heard)
        listening = rig.client().listen(taskIds=[task])
        await rig.settle()
        assert acknowledged(listening) == {"taskIds": [task]}
        assert len(rig.server.wire.heard) == before


async def test_a_slow_reader_is_told_less_but_nothing_wrong() -> None:
    """F40: later states only, never out of order, the terminal one last."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        listening = client.listen(slow=True, taskIds=[task])
        await rig.settle()
        for n in range(1, 101):
            call.progress(n)
            await rig.pass_time(0.2)
        call.answer()
        await rig.settle()
        assert methods(listening) == [ACK]
        listening.read_on()
        await rig.pass_time(1)
        told = tasks_told(listening)
        assert 1 < len(told) < 50
        numbers = [int(t["statusMessage"]) for t in told[:-1]]
        assert numbers == sorted(numbers)
        assert told[-1]["status"] == "completed"


async def test_a_store_that_cannot_be_read_is_an_error() -> None:
    async with bench() as rig:
        task, _ = await rig.task(rig.client())
        rig.store.unreadable = True
        _, error = await rig.client().listen(taskIds=[task]).error()
        assert error["code"] == -32603


async def test_what_there_is_no_room_for_is_told_when_there_is() -> None:
    """SEC-003, TX-NOT-001: the stream stays, other tasks and polls do not wait for it to be read."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        listening = client.listen(taskIds=[task])
        await rig.settle()
        listening.has_room = False
        call.answer()
        await rig.pass_time(5)
        assert [told["status"] for told in tasks_told(listening)] == []
        assert (await client.get(task))["status"] == "completed"
        listening.has_room = True
        await rig.pass_time(2)
        assert [told["status"] for told in tasks_told(listening)] == ["completed"]
