"""Stdio servers that crash, hang, babble or break the rules: what the client sees, and within what time.

Holds I6 and the section "Faults" of the contract; F05, F16, F17, F20, F33, F34, F35 of the field reports.
`upstreams/unruly.py` is the server.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Final

import anyio
import pytest

from proxy.protocol import names
from proxy.upstream.back_off import FIRST_S
from proxy.upstream.probe import PROBE_TIMEOUT_S
from tests.documents import ROOT
from tests.real.conversation import Conversation, conversation
from tests.real.modern_client import ELICITATION, Answer, ModernClient
from tests.real.proxy_process import START_BOUND_S, ProxyProcess
from tests.real.raw_pair import stdio_proxy
from tests.real.stage import Stage, stage
from tests.real.unruly_server import Unruly
from tests.real.waiting import together, until

pytestmark = pytest.mark.anyio

SOON_S: Final = 8.0  # "at once", on a machine that has much else to do; a silent server is given 10 s
ENDED_S: Final = 12.0  # and a server that has to be killed: four seconds for it to go by itself
PAUSES_S: Final = FIRST_S + 2 * FIRST_S
MIB: Final = 1 << 20
HUGE: Final = 50 * MIB

LIMIT_S: Final = 1.5
IMPATIENT: Final = {
    "limits": {"message": "4MiB"},
    "tasks": {"threshold": "500ms", "runtime_limit": f"{LIMIT_S}s"},
}
BOUNDED: Final = {
    "upstream": {"start_timeout": f"{LIMIT_S}s"},
    "limits": {"message": "4MiB", "result": "1MiB"},
    "tasks": {"threshold": "0s"},
}


@dataclass(frozen=True, slots=True)
class Scene:
    stage: Stage
    server: Unruly


@asynccontextmanager
async def scene(home: Path, settings: Mapping[str, Any] | None = None) -> AsyncIterator[Scene]:
    server = Unruly(home)
    async with stage(home, server.command, settings) as on_stage:
        yield Scene(on_stage, server)


@asynccontextmanager
async def warm(home: Path, settings: Mapping[str, Any]) -> AsyncIterator[Scene]:
    """A scene where the era of the server is known already."""
    async with scene(home, settings) as made:
        async with made.stage.client() as client:
            answer = await client.call_tool("ok", meta={names.META_CLIENT_CAPABILITIES: {}})
            assert answer.text == "done"
        yield made


@pytest.fixture(scope="module")
async def _patient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with warm(tmp_path_factory.mktemp("patient"), {}) as made:
        yield made


@pytest.fixture(scope="module")
async def _impatient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with warm(tmp_path_factory.mktemp("impatient"), IMPATIENT) as made:
        yield made


@pytest.fixture(scope="module")
async def _bounded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with warm(tmp_path_factory.mktemp("bounded"), BOUNDED) as made:
        yield made


def fresh(made: Scene) -> Scene:
    made.server.start_as("")
    made.server.forget()
    return made


@pytest.fixture
def patient(_patient: Scene) -> Scene:
    """All settings as they come."""
    return fresh(_patient)


@pytest.fixture
def impatient(_impatient: Scene) -> Scene:
    """A short bound for calls."""
    return fresh(_impatient)


@pytest.fixture
def bounded(_bounded: Scene) -> Scene:
    """Short bounds for the start and for sizes; every call of a client with tasks becomes one."""
    return fresh(_bounded)


def message_of(answer: Answer) -> str:
    """Of an error that is the server's fault."""
    assert answer.status == 200
    assert answer.error["code"] == -32603
    return str(answer.error["message"])


# ------------------------------------------------------------------------------ at the start


async def test_a_server_that_crashes_at_its_start_is_named_and_tried_more_and_more_seldom(
    patient: Scene,
) -> None:
    """The first two attempts come at once, the third after half a second; a repaired server serves."""
    patient.server.start_as("crash")
    async with patient.stage.client() as client:
        began = anyio.current_time()
        with anyio.fail_after(SOON_S):
            for _ in range(3):
                said = message_of(await client.call_tool("ok"))
                assert "exited with code 3" in said
                assert "licence" not in said  # its own words are for the log
        assert anyio.current_time() - began >= 0.5
        assert len(patient.server.starts()) == 3
        patient.server.start_as("")
        with anyio.fail_after(SOON_S):
            assert (await client.call_tool("ok")).text == "done"


async def test_a_server_that_dies_after_every_handshake_is_no_tight_loop(patient: Scene) -> None:
    """Whoever listens, and asks again and again, makes no more starts than the back-off allows: the third
    half a second after the second had failed, the fourth a second after the third, and so on."""
    patient.server.start_as("die after the handshake")
    began = anyio.current_time()
    async with patient.stage.client() as client, client.listen(toolsListChanged=True):
        with anyio.fail_after(PAUSES_S + SOON_S):
            while len(patient.server.starts()) < 4:
                assert "upstream" in message_of(await client.call_tool("ok"))
        assert anyio.current_time() - began >= PAUSES_S


async def test_a_server_that_hangs_at_initialize_is_given_up_and_ended(bounded: Scene) -> None:
    bounded.server.start_as("hang at initialize")
    async with bounded.stage.client(tasks=False) as client:
        with anyio.fail_after(LIMIT_S + SOON_S):
            assert "did not answer initialize within 1.5 s" in message_of(await client.call_tool("ok"))
        [pid] = bounded.server.starts()
        await until(lambda: pid not in bounded.stage.proxy.children(), "it is ended", within_s=SOON_S)


@pytest.mark.parametrize(
    "mode, said", [("never read", "initialize within 1.5 s"), ("close stdout", "closed its stdout")]
)
async def test_a_server_that_is_deaf_or_dumb_from_the_start_is_given_up_and_ended(
    bounded: Scene, mode: str, said: str
) -> None:
    """It ignores the end of its stdin, too."""
    bounded.server.start_as(mode)
    async with bounded.stage.client(tasks=False) as client:
        with anyio.fail_after(LIMIT_S + ENDED_S):
            assert said in message_of(await client.call_tool("ok"))
        [pid] = bounded.server.starts()
        await until(lambda: pid not in bounded.stage.proxy.children(), "it is ended", within_s=ENDED_S)


async def test_a_slow_start_serves_all_who_wait_for_it_and_makes_no_tasks(patient: Scene) -> None:
    """3 s are more than the threshold; one process, one handshake, and plain answers for everybody."""
    patient.server.start_as("slow")
    async with patient.stage.client() as client:
        with anyio.fail_after(3.0 + SOON_S):
            answers = await together(client.call_tool("ok") for _ in range(20))
    assert {answer.text for answer in answers} == {"done"}
    assert {answer.result["resultType"] for answer in answers} == {"complete"}
    assert len(patient.server.starts()) == 1
    assert len(patient.server.got(names.INITIALIZE)) == 1


async def test_what_a_server_prints_before_the_handshake_is_skipped(patient: Scene) -> None:
    """F34."""
    patient.server.start_as("chatter")
    async with patient.stage.client() as client:
        with anyio.fail_after(SOON_S):
            assert (await client.call_tool("ok")).text == "done"


# ------------------------------------------------------------------------------ what ends a call


@pytest.mark.parametrize(
    "tool, said",
    [
        ("end_with_code", "exited with code 5"),
        ("end_by_signal", "was killed by SIGKILL"),
        ("close_stdout", "closed its stdout"),
    ],
)
@pytest.mark.parametrize("as_task", [True, False])
async def test_a_server_that_ends_in_a_call_is_named_and_the_next_call_has_a_new_one(
    patient: Scene, tool: str, said: str, as_task: bool
) -> None:
    async with patient.stage.client(tasks=as_task) as client:
        with anyio.fail_after(SOON_S):
            told = message_of(await client.call_tool(tool))
            assert said in told
            assert "Fatal" not in told  # what it said is for the log: clients that are no kin share it
            assert (await client.call_tool("ok")).text == "done"
    first, second = patient.server.starts()
    assert first != second


async def test_calls_beside_the_one_that_kills_the_server_fail_with_it_and_are_not_run_again(
    bounded: Scene,
) -> None:
    """I2: a task, a blocking call, and the one that did it."""
    async with bounded.stage.client() as client, anyio.create_task_group() as calls:
        task = (await client.call_tool("hang")).task_id
        blocked: list[Answer] = []

        async def block() -> None:
            blocked.append(await client.call_tool("hang", meta={names.META_CLIENT_CAPABILITIES: {}}))

        calls.start_soon(block)
        await bounded.server.was_called(2)
        with anyio.fail_after(SOON_S):
            await client.call_tool("end_with_code")
            ended = await client.wait_task(task)
        assert "exited with code 5" in ended.result["error"]["message"]
    assert "exited with code 5" in message_of(blocked[0])
    assert len(bounded.server.got(names.TOOLS_CALL)) == 3


async def test_a_server_that_hangs_in_a_call_is_told_at_the_runtime_limit(impatient: Scene) -> None:
    """F05, CANC-005: a task is failed, a blocking call is an error, and the server serves on."""
    async with impatient.stage.client() as client:
        with anyio.fail_after(LIMIT_S + SOON_S):
            task, blocked = await together(
                [
                    client.call_tool("hang"),
                    client.call_tool("hang", meta={names.META_CLIENT_CAPABILITIES: {}}),
                ]
            )
            ended = await client.wait_task(task.task_id, {"failed"})
        assert ended.result["error"]["code"] == -32603
        assert "1.5 s" in ended.result["error"]["message"]
        assert "1.5 s" in message_of(blocked)
        for call in await impatient.server.was_called(2):
            await impatient.server.was_cancelled(call)
        assert (await client.call_tool("ok")).text == "done"
    assert len(impatient.server.starts()) == 1


async def test_a_server_that_stops_reading_holds_up_nobody_else(impatient: Scene) -> None:
    """F33: what does not fit into the pipe waits until the limit; another owner's calls go on."""
    async with impatient.stage.client() as client, impatient.stage.client() as other:
        assert (await client.call_tool("stop_reading")).text == "done"
        with anyio.fail_after(LIMIT_S + SOON_S):
            async with anyio.create_task_group() as calls:

                async def block() -> None:
                    task = await client.call_tool("ok", {"text": "x" * (MIB // 2)})
                    ended = await client.wait_task(task.task_id, {"failed"})
                    assert "1.5 s" in ended.result["error"]["message"]

                calls.start_soon(block)
                for _ in range(20):
                    assert (await other.call_tool("ok")).text == "done"


# ------------------------------------------------------------------------------ what breaks the rules


@pytest.mark.parametrize(
    "tool, arguments, text",
    [
        ("other_id_first", {}, "done"),
        ("text_id", {}, "done"),
        ("twice", {}, "first"),
        ("batch", {}, "from an array"),
        ("chatter", {}, "done"),
        ("split", {}, "Zoë \U0001f680 \u2028"),
        ("odd_progress", {}, "done"),
        ("ping_a_lot", {}, "done"),
        ("ask_and_end", {}, "done"),
        ("flood_stderr", {"how": "lines"}, "done"),
        ("flood_stderr", {"how": "one line"}, "done"),
        ("flood_stderr", {"how": "not UTF-8"}, "done"),
    ],
)
async def test_what_a_server_does_beside_its_answer_does_not_touch_the_call(
    patient: Scene, tool: str, arguments: dict[str, Any], text: str
) -> None:
    """F16, F17, F20, F34, F35: and the next call is served by the same process."""
    async with patient.stage.client(capabilities=ELICITATION, tasks=False) as client:
        with anyio.fail_after(SOON_S):
            assert (await client.call_tool(tool, arguments)).text == text
            assert (await client.call_tool("ok")).text == "done"
    assert len(patient.server.starts()) == 1


@pytest.mark.parametrize("tool", ["other_id", "text_before"])
async def test_an_answer_that_cannot_be_known_as_one_is_missed_until_the_limit(
    impatient: Scene, tool: str
) -> None:
    """F34: lost, and not for ever."""
    async with impatient.stage.client(tasks=False) as client:
        with anyio.fail_after(LIMIT_S + SOON_S):
            assert "1.5 s" in message_of(await client.call_tool(tool))
            assert (await client.call_tool("ok")).text == "done"
    assert len(impatient.server.starts()) == 1


UNUSABLE: Final = [("deep", "deep"), ("not_utf8", "UTF-8"), ("not_json", "JSON")]


@pytest.mark.parametrize("tool, said", [("broken_answer", "invalid response"), *UNUSABLE])
async def test_an_answer_that_cannot_be_used_fails_its_call_at_once(
    patient: Scene, tool: str, said: str
) -> None:
    async with patient.stage.client(tasks=False) as client:
        with anyio.fail_after(SOON_S):
            assert said in message_of(await client.call_tool(tool))
            assert (await client.call_tool("ok")).text == "done"
    assert len(patient.server.starts()) == 1


# ------------------------------------------------------------------------------ what is too large


async def test_fifty_megabytes_on_one_line_arrive_whole(patient: Scene) -> None:
    """F33: below the bound that is there by default."""
    async with patient.stage.client(tasks=False) as client:
        with anyio.fail_after(4 * SOON_S):
            assert len((await client.call_tool("big", {"size": HUGE})).text) == HUGE


@pytest.mark.parametrize("where", ["first", "last"])
async def test_fifty_megabytes_over_the_limit_fail_their_call_and_no_other(
    bounded: Scene, where: str
) -> None:
    """F33: its id tells whose answer it was, at either end."""
    async with bounded.stage.client(tasks=False) as client:
        before = bounded.stage.proxy.rss_kib()
        with anyio.fail_after(2 * SOON_S):
            other, big = await together(
                [client.call_tool("ok"), client.call_tool("big", {"size": HUGE, "id": where})]
            )
            assert other.text == "done"
            assert "limits.message" in message_of(big)
            assert (await client.call_tool("ok")).text == "done"
        assert bounded.stage.proxy.rss_kib() - before < 40 * 1024
    assert len(bounded.server.starts()) == 1


async def test_an_oversized_answer_that_does_not_say_whose_it_is_is_missed_until_the_limit(
    impatient: Scene,
) -> None:
    async with impatient.stage.client(tasks=False) as client:
        with anyio.fail_after(LIMIT_S + SOON_S):
            assert "1.5 s" in message_of(await client.call_tool("big", {"size": HUGE, "id": "hidden"}))
            assert (await client.call_tool("ok")).text == "done"


async def test_a_result_that_is_too_large_to_be_kept_fails_its_task(bounded: Scene) -> None:
    async with bounded.stage.client() as client:
        with anyio.fail_after(SOON_S):
            task = (await client.call_tool("big", {"size": 2 * MIB})).task_id
            ended = await client.wait_task(task, {"failed"})
            assert "limits.result" in ended.result["error"]["message"]


# ------------------------------------------------------------------------------ cancels and questions


@pytest.mark.parametrize("tool", ["hang", "answer_after_cancel"])
async def test_a_cancelled_task_stays_cancelled_whatever_the_server_does(bounded: Scene, tool: str) -> None:
    """F05, F07, TX-CAN-*: one that ignores the cancel, and one that answers after it."""
    async with bounded.stage.client() as client:
        task = (await client.call_tool(tool)).task_id
        [call] = await bounded.server.was_called()
        with anyio.fail_after(SOON_S):
            await client.cancel_task(task)
            assert (await client.get_task(task)).result["status"] == "cancelled"
        await bounded.server.was_cancelled(call)
        after = (await client.call_tool("ok")).task_id
        assert (await client.wait_task(after)).text == "done"
        assert (await client.get_task(task)).result["status"] == "cancelled"
    assert len(bounded.server.starts()) == 1


@pytest.mark.parametrize("tool, question", [("ask_after_answer", "late"), ("ask_when_idle", "idle")])
async def test_a_question_that_nobody_can_answer_is_refused_at_once(
    patient: Scene, tool: str, question: str
) -> None:
    """F14, ELIC-011: a client that declares nothing, and no call in flight."""
    async with patient.stage.client() as client:
        assert (await client.call_tool(tool)).text == "done"
        assert "error" in await patient.server.was_answered(question)
        assert (await client.call_tool("ok")).text == "done"


@pytest.mark.parametrize("tool, question", [("ask_after_answer", "late"), ("ask_when_idle", "idle")])
async def test_a_question_with_no_call_in_flight_waits_for_the_next_one(
    patient: Scene, tool: str, question: str
) -> None:
    """Contract section 2: it goes with the client's next request that can carry it."""
    async with patient.stage.client(capabilities=ELICITATION, tasks=False) as client:
        assert (await client.call_tool(tool)).text == "done"
        await patient.server.has_asked(question)
        with anyio.fail_after(SOON_S):
            arguments = {"seconds": 0.5}
            asked = (await client.call_tool("wait", arguments)).result
            assert asked["resultType"] == "input_required"
            [key] = asked["inputRequests"]
            inputs = {key: {"action": "decline"}}
            answer = await client.call_tool("wait", arguments, inputs=inputs, state=asked["requestState"])
            assert answer.text == "done"
        assert (await patient.server.was_answered(question))["result"] == {"action": "decline"}


async def test_a_question_whose_call_has_ended_is_refused(patient: Scene) -> None:
    """It was asked, and then the answer came without waiting for it."""
    async with patient.stage.client(capabilities=ELICITATION) as client:
        assert (await client.call_tool("ask_and_end")).text == "done"
        assert (
            "the call that asked has ended"
            in (await patient.server.was_answered("orphan"))["error"]["message"]
        )


async def test_pings_are_answered_with_no_client_there(patient: Scene) -> None:
    """F16: one every 0.1 s; the first call starts the server, then nobody calls."""
    patient.server.start_as("ping all the time")
    async with patient.stage.client() as client:
        assert (await client.call_tool("ok")).text == "done"
    so_far = len(patient.server.got())
    await until(
        lambda: len(patient.server.got()) >= so_far + 10, "ten more pings are answered", within_s=SOON_S
    )
    assert {str(answer["result"]) for answer in patient.server.got()} == {"{}"}
    assert len(patient.server.starts()) == 1


# ------------------------------------------------------------------------------ the probe of its era


async def test_a_server_that_dies_on_the_probe_is_started_again_and_serves(tmp_path: Path) -> None:
    """VER-010: as a legacy one, and the next is not asked."""
    async with scene(tmp_path) as made, made.stage.client() as client, made.stage.client() as other:
        made.server.start_as("die on the probe")
        with anyio.fail_after(SOON_S):
            assert (await client.call_tool("ok")).text == "done"
            assert (await other.call_tool("ok")).text == "done"
        assert len(made.server.starts()) == 3
        assert len(made.server.got(names.DISCOVER)) == 1


@pytest.mark.parametrize("start_timeout", ["60s", "3s"])
async def test_a_server_that_hangs_on_the_probe_serves_after_its_time_out(
    tmp_path: Path, start_timeout: str
) -> None:
    """VER-012: silence means legacy, however short the time for the start is."""
    settings = {"upstream": {"start_timeout": start_timeout}}
    async with scene(tmp_path, settings) as made, made.stage.client() as client:
        made.server.start_as("hang on the probe")
        with anyio.fail_after(PROBE_TIMEOUT_S + SOON_S):
            assert (await client.call_tool("ok")).text == "done"
        assert len(made.server.starts()) == 1


async def test_a_server_that_is_configured_to_be_legacy_is_not_probed(tmp_path: Path) -> None:
    async with scene(tmp_path, {"upstream": {"era": "legacy"}}) as made, made.stage.client() as client:
        made.server.start_as("die on the probe")
        with anyio.fail_after(SOON_S):
            assert (await client.call_tool("ok")).text == "done"
        assert len(made.server.starts()) == 1
        assert made.server.got(names.DISCOVER) == []


# ------------------------------------------------------------------------------ a log that nobody reads


async def test_a_log_that_nobody_reads_holds_up_no_call(tmp_path: Path) -> None:
    """F35: the server floods its stderr, and our own is a pipe that is full."""
    server = Unruly(tmp_path)
    proxy = ProxyProcess(tmp_path, server.command)
    async with await anyio.open_process(proxy.command(), stderr=PIPE, stdout=DEVNULL, cwd=ROOT) as process:
        try:
            await until(proxy.is_ready, "the proxy is ready", within_s=40)
            async with ModernClient(proxy.url, tasks=False) as client:
                with anyio.fail_after(8 * SOON_S):  # it is the calls that bring the flood
                    for _ in range(3):
                        assert (await client.call_tool("flood_stderr", {"how": "lines"})).text == "done"
        finally:
            process.kill()


# ------------------------------------------------------------------------------ legacy clients


@asynccontextmanager
async def legacy_client(home: Path) -> AsyncIterator[tuple[Conversation, Unruly]]:
    """Of a proxy on stdio; the handshake is the test's."""
    server = Unruly(home)
    command = stdio_proxy(home, server.command, {"limits": {"message": "4MiB"}})
    async with conversation(command, env=os.environ, log=home / "proxy.log", cwd=str(ROOT)) as client:
        yield client, server


async def test_a_legacy_client_is_told_of_a_crash_and_served_by_a_new_process(tmp_path: Path) -> None:
    """The new one gets the handshake from us."""
    async with legacy_client(tmp_path) as (client, server):
        await client.initialize()
        with anyio.fail_after(SOON_S):
            crashed = await client.ask(names.TOOLS_CALL, {"name": "end_with_code"})
            assert "exited with code 5; its last words: Fatal: no database" in crashed["error"]["message"]
            assert "result" in await client.ask(names.TOOLS_CALL, {"name": "ok"})
        assert len(server.starts()) == 2
        assert len(server.got(names.INITIALIZE)) == 2


async def test_a_legacy_client_is_told_of_a_server_that_does_not_start(tmp_path: Path) -> None:
    async with legacy_client(tmp_path) as (client, server):
        server.start_as("crash")
        with anyio.fail_after(START_BOUND_S + SOON_S):  # of the proxy, which begins only now
            for _ in range(2):
                refused = await client.initialize()
                assert "exited with code 3" in refused["error"]["message"]
        assert len(server.starts()) == 2


@pytest.mark.parametrize(
    "tool, arguments, said",
    [("big", {"size": HUGE}, "limits.message"), *((tool, {}, said) for tool, said in UNUSABLE)],
)
async def test_a_legacy_client_is_told_of_an_answer_that_cannot_be_passed_on(
    tmp_path: Path, tool: str, arguments: dict[str, Any], said: str
) -> None:
    async with legacy_client(tmp_path) as (client, server):
        await client.initialize()
        with anyio.fail_after(2 * SOON_S):
            failed = await client.ask(names.TOOLS_CALL, {"name": tool, "arguments": arguments})
            assert said in failed["error"]["message"]
            assert "result" in await client.ask(names.TOOLS_CALL, {"name": "ok"})
        assert len(server.starts()) == 1
