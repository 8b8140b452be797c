"""Secrets are planted everywhere, and whatever the proxy wrote is searched for them.

Contract section 8: "tokens, arguments, results and elicited content are not logged", "can be encrypted at
rest"; AUTH-007, ELIC-009, T25-SEC-009. What the server itself writes to its stderr is passed on to the log.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import pytest

from proxy.protocol import names
from proxy.stores.changes import RESULT_IN_ROW_MAX
from tests.real.bench import Bench
from tests.real.legacy import Transport
from tests.real.modern_client import ELICITATION, ModernClient
from tests.real.processes import free_port
from tests.real.proxy_process import ProxyProcess
from tests.real.raw_pair import echo_command
from tests.real.session_client import connected
from tests.real.upstreams.echo import BEFORE, ERROR, PROGRESS, RESULT

pytestmark = pytest.mark.anyio

MARK: Final = "pl4nted"
TASKS: Final = [
    {"match": "task", "threshold": "0s"},
    {"match": "again", "threshold": "0s", "repeatable": True},
]
KEY: Final = base64.b64encode(f"{MARK}-encryption-key".ljust(32).encode()).decode()
TOO_LONG: Final = 70 * 1024  # for a header; aiohttp logs how such a one begins
FORM: Final = {"type": "object", "properties": {"name": {"type": "string"}}}


def planted(where: str) -> str:
    """A secret that says where it was planted."""
    return f"{MARK}-{where}"


HEADERS: Final[Mapping[str, str]] = {
    "Authorization": f"Bearer {planted('token')}",
    "Cookie": f"session={planted('cookie')}",
    "X-Api-Key": planted("header"),
}


def said(where: str) -> dict[str, Any]:
    return {"message": planted(where), "data": {planted(f"{where}-key"): [planted(f"{where}-value")]}}


def question(number: int) -> dict[str, Any]:
    params = {**said("question"), "requestedSchema": FORM}
    return {"id": planted(f"question-id-{number}"), "method": names.ELICITATION_CREATE, "params": params}


def log_message() -> dict[str, Any]:
    return {"method": names.LOG_MESSAGE, "params": {"level": "error", "data": planted("log-message")}}


def result(where: str, *, size: int = 0, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": planted(where) + "." * size}], **more}


YES: Final = {"action": "accept", "content": {"name": planted("answer")}}


class Planter:
    """A client that puts a secret wherever there is room for one, and keeps what it was told."""

    def __init__(self, proxy: ProxyProcess, client: ModernClient) -> None:
        self.proxy = proxy
        self.client = client
        self.told: list[bytes] = []

    async def call(self, tool: str, where: str, *questions: Any, **echoed: Any) -> dict[str, Any]:
        meta = {
            BEFORE: [log_message(), *questions],
            PROGRESS: {"progress": 1, "message": planted(f"{where}-progress")},
            **{{"error": ERROR}.get(key, RESULT): value for key, value in echoed.items()},
        }
        answer = await self.client.call_tool(tool, said(f"{where}-argument"), meta=meta)
        self.told.append(answer.raw)
        return answer.message

    async def task(self, where: str, *questions: Any, tool: str = "task", **echoed: Any) -> str:
        return str((await self.call(tool, where, *questions, **echoed))["result"]["taskId"])

    async def ended(self, task: str) -> bytes:
        answer = await self.client.wait_task(task)
        self.told.append(answer.raw)
        return answer.raw


async def ask_modern(it: Planter) -> list[str]:
    """Every kind of call and of end; the ids of the tasks."""
    client = it.client
    await it.call("quick", "quick", result=result("quick-result"))
    await it.call("quick", "refused", error={"code": -5, **said("error")})
    await it.call("quick", "unusable", result=planted("no-object"))
    unusable = await it.task("unusable", result=[planted("no-object")])
    large = await it.task("large", result=result("large-result", size=2 * RESULT_IN_ROW_MAX))
    failed = await it.task("failed", error={"code": -5, **said("task-error")})
    unhappy = await it.task("unhappy", result=result("tool-error", isError=True))
    asks = await it.task("asks", question(1), result=result("asked-result"))
    asking = await client.wait_task(asks, {"input_required"})
    it.told.append(asking.raw)
    [key] = asking.result["inputRequests"]
    await client.update_task(asks, {key: YES})
    for task in (large, failed, unhappy, asks, unusable):
        await it.ended(task)
    parked = (await it.call("quick", "parked", question(2), result=result("parked-result")))["result"]
    [key] = parked["inputRequests"]
    forged = await client.call_tool("quick", said("forged"), inputs={key: YES}, state=planted("state"))
    assert "error" in forged.message
    left = await it.task("left", question(3), tool="again", result=result("left-result"))
    it.told.append((await client.wait_task(left, {"input_required"})).raw)
    return [large, failed, unhappy, asks, unusable, left]


async def ask_legacy(it: Planter) -> str:
    """A session with a call; its id."""
    async with connected(it.client.url, headers=HEADERS) as session:
        await session.initialize()
        params = {
            "name": "quick",
            "arguments": said("legacy-argument"),
            "_meta": {RESULT: result("legacy-result")},
        }
        async with session.asking(names.TOOLS_CALL, params) as exchange:
            it.told += [json.dumps(message).encode() for message in await exchange.all()]
        assert session.session_id is not None
        return session.session_id


async def err(it: Planter, tasks: list[str]) -> list[bytes]:
    """Every kind of mistake; what it is answered, with headers."""
    url = it.client.url
    broken = (
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"x": "%s"' % planted("json").encode()
    )
    deep = b"[" * 600 + b'"%s"' % planted("depth").encode() + b"]" * 600
    call = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": said("no-version")}
    ).encode()
    wrong: list[tuple[bytes, Mapping[str, str]]] = [
        (broken, {}),
        (deep, {}),
        (b"\xff" + planted("bytes").encode(), {}),
        (call, {names.H_PROTOCOL_VERSION: planted("version")}),
        (call, {"Origin": f"https://{planted('origin')}.example"}),
        (call, {"Host": f"{planted('host')}.example"}),
        (call, {"Content-Encoding": "gzip"}),
        (call, {"Authorization": f"Bearer {planted('long-token')}" + "x" * TOO_LONG}),
        (call, {names.H_SESSION_ID: planted("session")}),
    ]
    answers = []
    async with aiohttp.ClientSession() as http:
        for body, headers in wrong:
            said_so = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
            async with http.post(url, data=body, headers={**said_so, **HEADERS, **headers}) as response:
                answers.append(repr(response.headers).encode() + await response.read())
        for path in ("/nowhere", "/.well-known/oauth-protected-resource"):
            async with http.get(url.replace("/mcp", path), headers=HEADERS) as response:
                answers.append(await response.read())
    async with ModernClient(url, headers={"Authorization": f"Bearer {planted('stranger')}"}) as stranger:
        for task in (*tasks, f"tpx-{MARK}"):
            answers.append((await stranger.get_task(task)).raw)
    return answers


async def look(*urls: str) -> list[bytes]:
    found = []
    async with aiohttp.ClientSession() as http:
        for url in urls:
            async with http.get(url) as response:
                found.append(await response.read())
    return found


def store_files(home: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted((home / "store").rglob("*")):
        if file.is_file():
            yield file.name, file.read_bytes()


def around(text: bytes, word: str) -> bytes:
    at = text.find(word.encode())
    return b"" if at < 0 else text[max(0, at - 300) : at + 100]


async def test_nothing_that_the_proxy_writes_has_a_secret_in_it(bench: Bench, transport: Transport) -> None:
    """Its log at `debug`, its metrics and health, its refusals, its encrypted store; after `kill -9`."""
    key_file = bench.home / "keys"
    key_file.write_text(KEY)
    admin = f"127.0.0.1:{free_port()}"
    record = bench.home / planted("command-argument")
    settings: dict[str, Any] = {
        "log": {"level": "debug", "format": "json"},
        "admin": {"listen": admin},
        "tasks": {"tools": TASKS},
        "store": {"encryption": {"key_file": str(key_file)}},
    }
    if transport == "stdio":
        settings["upstream"] = {"env": {"API_KEY": planted("environment")}}
        proxy = await bench.proxy(echo_command(record, "stdio"), settings)
    else:
        server = await bench.http_server(*echo_command(record, "http")[:-1])
        proxy = await bench.proxy(f"{server}?key={planted('upstream-query')}", settings)
    async with ModernClient(
        f"{proxy.url}?token={planted('query')}", headers=HEADERS, capabilities=ELICITATION
    ) as client:
        it = Planter(proxy, client)
        with anyio.fail_after(60):
            tasks = await ask_modern(it)
            session = await ask_legacy(it)
            refusals = await err(it, tasks)
        beside = [
            f"{place}{path}"
            for place in (proxy.url[:-4], f"http://{admin}")
            for path in ("/readyz", "/healthz")
        ]
        shown = await look(*beside, f"http://{admin}/metrics")
        await proxy.kill9()
        written = {**dict(store_files(bench.home)), "log": proxy.log.read_bytes()}
        await proxy.start()
        kept = b"".join([await it.ended(task) for task in tasks[:-1]])

    for where in ("large-result", "task-error", "tool-error", "asked-result"):
        assert planted(where).encode() in kept  # it was there, and to be had with the key
    for event in ("task_result_read", "task_access_denied", "http_request_malformed"):
        assert event.encode() in written["log"]
    written["log"] += proxy.log.read_bytes()
    for name, text in written.items():
        for secret in (MARK, session, KEY, *tasks):
            assert secret.encode() not in text, (name, around(text, secret))
    for text in shown:
        for secret in (MARK, session, *tasks):
            assert secret.encode() not in text
    for text in refusals:
        for secret in (planted("token"), planted("cookie"), planted("header"), planted("long-token"), KEY):
            assert secret.encode() not in text, text
