"""The audit log: one line for each thing that happens to a task, of a shape that stays.

Contract section 8; T25-SEC-009, T25-SEC-010.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from proxy import audit, logs
from proxy.audit import Audit
from proxy.downstream.stdio import LOCAL_USER
from proxy.eras.era import Era
from proxy.logs import task_hash
from proxy.metrics import Denied
from proxy.owners import ANONYMOUS, Owner
from proxy.protocol import names
from proxy.tasks import lifecycle
from proxy.tasks.policy import Polling
from proxy.tasks.task import InputAnswer, InputRequest, Task
from proxy.upstream.probe import UpstreamEra
from tests.documents import ROOT
from tests.restored_logging import restored_logging
from tests.routing.bench import ADA, BOB, Bench, bench
from tests.routing.bench_2025 import bench_2025
from tests.routing.recovery_bench import restarts

pytestmark = pytest.mark.anyio

SECRET: Final = b"k" * 32
PAGE: Final = (ROOT / "docs" / "audit.md").read_text("utf-8")
TASK: Final = lifecycle.created(
    id="tpx-" + "a" * 32,
    owner="token-1f",
    method="tools/call",
    name="train",
    now_ms=1_000,
    retention_ms=60_000,
)
YES: Final = b'{"action": "accept"}'
Line = dict[str, Any]


def audited(told: list[Any]) -> list[Line]:
    return [dict(line) for line in told if "audit" in line]


def question(number: int) -> InputRequest:
    return InputRequest(f"input-{number}", "elicitation/create", b"{}", b"%d" % number)


def told(*states: Task) -> list[Line]:
    """What is told of a task that goes through these states."""
    teller = Audit(SECRET)
    with capture_logs() as lines:
        for before, after in zip((None, *states), states, strict=False):
            teller.changed(before, after)
    return audited(lines)


# -- what is told ------------------------------------------------------------------------------------


def test_the_whole_life_of_a_task_is_told_in_order() -> None:
    """T25-SEC-009"""
    waits = lifecycle.asked(TASK, [question(1), question(2)], 3, 2_000)
    partly = lifecycle.answered(waits, [InputAnswer("input-1", b"1", YES)], 3_000)
    gone = lifecycle.withdrawn(partly, {"input-2"}, 3_500)
    sent = lifecycle.delivered(gone, {"input-1"})
    noted = lifecycle.noted(sent, "3/10", 4_000)
    done = lifecycle.completed(noted, b"{}", None, Polling(), 5_000, tool_error=None)
    lines = told(TASK, waits, partly, gone, sent, noted, done)
    common = {
        "audit": 1,
        "owner": Audit(SECRET).fingerprint("token-1f"),
        "task": task_hash(TASK.id),
        "tool": "train",
        "log_level": "info",
    }
    assert lines == [
        {"event": "task_created", **common},
        {"event": "task_input_asked", **common, "questions": 2},
        {"event": "task_input_given", **common, "answers": 1, "open": 1},
        {"event": "task_completed", **common, "duration_ms": 4_000, "tool_failed": False},
    ]


def test_each_way_to_end_is_told() -> None:
    failed = lifecycle.failed(TASK, lifecycle.TaskEvent.ERROR, b"{}", "no", Polling(), 2_000)
    cancelled = lifecycle.cancelled(TASK, Polling(), 3_000)
    unhappy = lifecycle.completed(TASK, b"{}", None, Polling(), 4_000, tool_error="no such table")
    for end, event, facts in (
        (failed, "task_failed", {"duration_ms": 1_000}),
        (cancelled, "task_cancelled", {"duration_ms": 2_000}),
        (unhappy, "task_completed", {"duration_ms": 3_000, "tool_failed": True}),
    ):
        (line,) = told(TASK, end)[1:]
        assert line["event"] == event
        assert facts.items() <= line.items()
        assert "no such table" not in str(line)


def test_nothing_that_was_said_is_told() -> None:
    """Of a task its tool alone; of an owner what cannot be turned back."""
    raw = b'{"x": "s3cret"}'
    waits = lifecycle.asked(TASK, [replace(question(1), params=raw, question_id=raw, as_asked=raw)], 2, 2_000)
    given = lifecycle.answered(waits, [InputAnswer("input-1", raw, raw)], 3_000)
    done = lifecycle.completed(given, raw, raw, Polling(), 5_000, tool_error="s3cret")
    lines = told(replace(TASK, status_message="s3cret"), waits, given, done)
    assert len(lines) == 4
    for secret in ("s3cret", TASK.id, TASK.owner):
        assert secret not in str(lines)


def test_a_tools_name_is_cut_where_nobody_reads_on() -> None:
    (line,) = told(replace(TASK, name="x" * 10_000))
    assert line["tool"] == "x" * audit.MAX_TOOL_CHARS


def test_the_result_is_told_once_and_only_of_what_has_one() -> None:
    teller = Audit(SECRET)
    done = lifecycle.completed(TASK, b"{}", None, Polling(), 2_000, tool_error=None)
    failed = lifecycle.failed(
        replace(TASK, id="tpx-" + "b" * 32), lifecycle.TaskEvent.ERROR, b"{}", "no", Polling(), 2_000
    )
    with capture_logs() as lines:
        for task in (TASK, lifecycle.cancelled(TASK, Polling(), 2_000), done, done, failed, done, failed):
            teller.result_read(task)
    assert [(line["event"], line["status"]) for line in lines] == [
        ("task_result_read", "completed"),
        ("task_result_read", "failed"),
    ]


def test_what_was_read_is_not_remembered_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_READ", 2)
    teller = Audit(SECRET)
    done = lifecycle.completed(TASK, b"{}", None, Polling(), 2_000, tool_error=None)
    tasks = [replace(done, id=f"tpx-{letter * 32}") for letter in "abc"]
    with capture_logs() as lines:
        for task in (*tasks, tasks[2], tasks[0]):
            teller.result_read(task)
    assert [line["task"] for line in lines] == [task_hash(task.id) for task in (*tasks, tasks[0])]


# -- owners ------------------------------------------------------------------------------------------


def test_an_owner_has_one_fingerprint_that_shows_nothing_of_it() -> None:
    one, other = Owner("token-" + "1f" * 32), Owner("token-" + "2e" * 32)
    prints = [Audit(SECRET).fingerprint(owner.key) for owner in (one, one, other)]
    assert prints[0] == prints[1] != prints[2]
    assert len(prints[0]) == 12
    assert prints[0] not in one.key
    assert Audit(b"x" * 32).fingerprint(one.key) != prints[0]  # of no use without the store's secret


def test_those_who_are_nobody_in_particular_are_named() -> None:
    names = [Audit(SECRET).fingerprint(owner.key) for owner in (ANONYMOUS, LOCAL_USER)]
    assert names == ["anonymous", "local-user"]


def test_a_denial_says_who_asked_and_for_what_task_if_there_can_be_one() -> None:
    """T25-SEC-010"""
    with capture_logs() as lines:
        Audit(SECRET).denied(ADA, TASK.id, Denied.FOREIGN)
        for task_id in (TASK.id, "s3cret", None):
            Audit(SECRET).denied(ADA, task_id, Denied.UNKNOWN)
    who = Audit(SECRET).fingerprint(ADA.key)
    shape = {"event": "task_access_denied", "audit": 1, "owner": who, "log_level": "info"}
    assert lines == [
        {**shape, "task": task_hash(TASK.id), "reason": "foreign"},
        {**shape, "task": task_hash(TASK.id), "reason": "unknown"},
        {**shape, "task": None, "reason": "unknown"},
        {**shape, "task": None, "reason": "unknown"},
    ]


# -- through the whole proxy -------------------------------------------------------------------------


async def test_every_event_is_told_once_whichever_way_the_client_goes() -> None:
    async with bench() as rig:
        with capture_logs() as lines:
            client, other = rig.client(owner=ADA), rig.client(owner=BOB)
            task, call = await rig.task(client)
            asked = call.elicit()
            await rig.settle()
            [key] = (await client.get(task))["inputRequests"]
            for _ in range(2):  # the second is too late, and acknowledged
                await client.update(task, {key: json.loads(YES)})
            await rig.settle()
            assert asked.answers
            call.answer()
            await rig.settle()
            for _ in range(3):
                await client.get(task)
            await other.start("tasks/get", {"taskId": task}).error()
            await other.start("tasks/cancel", {"taskId": task[:-1] + "_"}).error()
    events = audited(lines)
    assert [line["event"] for line in events] == [
        "task_created", "task_input_asked", "task_input_given", "task_completed", "task_result_read",
        "task_access_denied", "task_access_denied",
    ]  # fmt: skip
    assert {line["owner"] for line in events[:5]} == {rig.audit.fingerprint(ADA.key)}
    assert {line["owner"] for line in events[5:]} == {rig.audit.fingerprint(BOB.key)}


NO_IDS: Final = ("bogus", "tpx-" + "A" * 31, "tpx-" + "A" * 33, "TPX-" + "A" * 32, "x" * 5_000, "ü", "")


@asynccontextmanager
async def before(server: str) -> AsyncIterator[Bench]:
    """A modern client before a server of which nothing is known yet, or of this era, maybe with tasks."""
    async with bench() as rig:
        known = None if server == "unknown" else Era.LEGACY if server == "legacy" else Era.MODERN
        rig.listen._upstream_era = lambda: known
        if known is Era.MODERN:
            rig.era = UpstreamEra(Era.MODERN)
            extensions: dict[str, Any] = {names.TASKS_EXTENSION: {}} if server == "modern with tasks" else {}
            rig.server.answers[names.DISCOVER] = {
                "supportedVersions": [names.LATEST_MODERN],
                "capabilities": {"tools": {"listChanged": True}, "extensions": extensions},
            }
        yield rig


@pytest.mark.parametrize("server", ["legacy", "unknown", "modern"])
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel", "subscriptions/listen"])
async def test_who_names_what_cannot_be_an_id_of_ours_is_told_of_like_others(
    method: str, server: str
) -> None:
    """T25-SEC-010; the metric and the limit on failed look-ups count the same."""
    async with before(server) as rig:
        for count, task_id in enumerate(NO_IDS, 1):
            with capture_logs() as lines:
                client = rig.client(owner=BOB)
                if method == "subscriptions/listen":
                    asked = client.listen(taskIds=[task_id], toolsListChanged=True)
                    if server == "modern":
                        listening = await rig.server.next_call()
                        listening.say(names.SUBSCRIPTIONS_ACKNOWLEDGED, notifications={})
                    await rig.settle()
                    assert [params["notifications"]["taskIds"] for _, params in asked.told] == [[]]
                    assert asked.failed_lookups == 1
                    asked.hang_up()
                else:
                    _, error = await client.start(method, {"taskId": task_id, "inputResponses": {}}).error()
                    assert error["code"] == -32602
            [line] = audited(lines)
            assert (line["event"], line["task"], line["reason"]) == ("task_access_denied", None, "unknown")
            assert line["owner"] == rig.audit.fingerprint(BOB.key)
            assert f'task_lookups_denied_total{{reason="unknown"}} {count}.0' in rig.metrics.text().decode()


@pytest.mark.parametrize("method", ["tasks/get", "subscriptions/listen"])
async def test_where_the_server_has_tasks_it_is_for_it_to_say(method: str) -> None:
    async with before("modern with tasks") as rig:
        with capture_logs() as lines:
            client = rig.client(owner=BOB)
            if method == "subscriptions/listen":
                asked = client.listen(taskIds=["theirs"])
                listening = await rig.server.next_call()
                granted = {"taskIds": ["theirs"]}
                listening.say(names.SUBSCRIPTIONS_ACKNOWLEDGED, notifications=granted)
                await rig.settle()
                assert [params["notifications"]["taskIds"] for _, params in asked.told] == [["theirs"]]
                asked.hang_up()
            else:
                asked = client.start(method, {"taskId": "theirs"})
                (await rig.server.next_call()).answer({"resultType": "complete", "taskId": "theirs"})
                assert (await asked.result())["taskId"] == "theirs"
        assert audited(lines) == []
        assert asked.failed_lookups == 0


async def test_in_the_dialect_of_2025_the_same_is_told() -> None:
    async with bench_2025() as it:
        with capture_logs() as lines:
            client = it.client()
            task, call = await client.task()
            question = call.elicit()
            await it.rig.settle()
            client.answer(client.channel.questions[0])
            await it.rig.settle()
            assert question.answers
            call.answer()
            await it.rig.settle()
            for _ in range(2):
                await client.get(task)  # says nothing of the result
                await client.result(task).result()
    assert [line["event"] for line in audited(lines)] == [
        "task_created", "task_input_asked", "task_input_given", "task_completed", "task_result_read"
    ]  # fmt: skip


async def test_a_result_that_is_told_to_a_listener_has_been_read() -> None:
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        stream = client.listen(taskIds=[task, "tpx-" + "z" * 32])
        await rig.settle()
        with capture_logs() as lines:
            call.answer()
            await rig.settle()
            await client.get(task)
        assert [line["event"] for line in audited(lines)] == ["task_completed", "task_result_read"]
        stream.hang_up()


@pytest.mark.parametrize("trouble", ["unsure", "broken"])
async def test_what_a_troubled_store_made_all_the_same_is_told_and_nothing_else(trouble: str) -> None:
    """`unsure`: it says that it failed, and has made the change."""
    async with bench() as rig:
        task, _ = await rig.task(client := rig.client())
        with capture_logs() as lines:
            setattr(rig.store, trouble, True)
            await client.start("tasks/cancel", {"taskId": task}).error()
            setattr(rig.store, trouble, False)
            await client.cancel(task)
            await rig.pass_time(60)
        assert [line["event"] for line in audited(lines)] == ["task_cancelled"]


async def test_a_task_that_is_given_up_at_a_start_is_told_as_failed() -> None:
    async with restarts() as at:
        at.resumable = False
        await at.rig.task(at.rig.client())
        with capture_logs() as lines:
            await at.restart()
        assert [line["event"] for line in audited(lines)] == ["task_failed"]
        [given_up] = [
            line for line in lines if line["event"] == "task_given_up"
        ]  # with the words, which are ours
        assert given_up["task"] == audited(lines)[0]["task"]


# -- on paper and on stderr --------------------------------------------------------------------------


def described() -> dict[str, set[str]]:
    """By event: the facts that docs/audit.md gives it, beside those of all."""
    rows = re.findall(r"^\| `(task_\w+)` \|[^|]*\|([^|]*)\|", PAGE, re.MULTILINE)
    return {event: set(re.findall(r"`(\w+)`", facts)) for event, facts in rows}


def test_the_page_describes_the_events_and_their_facts() -> None:
    waits = lifecycle.asked(TASK, [question(1)], 2, 2_000)
    given = lifecycle.answered(waits, [InputAnswer("input-1", b"1", YES)], 3_000)
    polling = Polling()
    ends = [
        lifecycle.completed(given, b"{}", None, polling, 5_000, tool_error=None),
        lifecycle.failed(given, lifecycle.TaskEvent.ERROR, b"{}", "no", polling, 2_000),
        lifecycle.cancelled(given, polling, 2_000),
    ]
    with capture_logs() as reads:
        Audit(SECRET).result_read(ends[0])
        Audit(SECRET).denied(ADA, TASK.id, Denied.FOREIGN)
    lines = [*told(TASK, waits, given), *[told(given, end)[-1] for end in ends], *audited(reads)]
    of_all = {"event", "log_level", "audit", "owner", "task", "tool"}
    assert described() == {line["event"]: line.keys() - of_all for line in lines}
    for name in of_all - {"log_level"}:
        assert f"`{name}`" in PAGE


@pytest.mark.parametrize("line_format", ["text", "json"])
def test_a_line_passes_the_filters_of_the_log_whole(line_format: logs.LineFormat) -> None:
    reader, fd = os.pipe()
    with restored_logging():
        writer = logs.configure("info", line_format, fd)
        teller = Audit(SECRET)
        teller.changed(
            TASK, done := lifecycle.completed(TASK, b"{}", None, Polling(), 5_000, tool_error=None)
        )
        teller.result_read(done)
        writer.close(timeout_s=5)
    os.close(fd)
    with os.fdopen(reader) as file:
        completed, read = file.read().splitlines()
    for line, words in ((completed, ("duration_ms", "tool_failed")), (read, ("task_result_read", "status"))):
        for word in ("audit", "owner", "task", "tool", *words):
            assert word in line
