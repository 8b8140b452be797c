"""Real clients' whole authorization flow before a protected server, as without the proxy that stands in.

AUTH-005, AUTH-006; contract section 8, stand-in mode; field report F28.
"""

from __future__ import annotations

import json
import subprocess
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest

from tests.real.authorization_server import AuthorizationServer
from tests.real.bench import Bench
from tests.real.processes import free_port
from tests.real.proxy_process import ProxyProcess
from tests.real.waiting import together
from tests.setup_tools import TESTS, venv_python

pytestmark = pytest.mark.anyio

SERVER: Final = TESTS / "fixtures" / "protected_server.py"
BOUND_S: Final = 60.0
STEPS: Final = ["initialized", "tools", "called", "stepped up", "authorized again", "ended"]
FLOW: Final = [
    ("register",),
    ("authorize", "user"),
    ("token", "authorization_code"),
    ("token", "refresh_token"),
    ("weaken",),
    ("authorize", "user"),
    ("token", "authorization_code"),
    ("revoke",),
    ("authorize", "user"),
    ("token", "authorization_code"),
]


class Told:
    """What a client said, what it took the resource for, and what its authorization server was asked."""

    def __init__(self, ran: subprocess.CompletedProcess[str], server: AuthorizationServer) -> None:
        self.steps: list[dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines()]
        client, self.resource = ran.stderr.splitlines()[-1].split()
        self.asked = server.asked[client]


async def flow(sdk: str, url: str, server: AuthorizationServer) -> Told:
    command = [str(venv_python(sdk)), "-m", f"tests.real.clients.oauth_{sdk}", url, server.url]
    run = partial(subprocess.run, command, capture_output=True, text=True, timeout=BOUND_S, cwd=TESTS.parent)
    ran: subprocess.CompletedProcess[str] = await anyio.to_thread.run_sync(run)
    print(ran.stdout, ran.stderr[-6_000:])
    assert ran.returncode == 0
    return Told(ran, server)


async def standing_in(bench: Bench, upstream: str, port: int) -> ProxyProcess:
    """A proxy that clients reach at its public URL."""
    public_url = f"http://127.0.0.1:{port}/mcp"
    proxy = ProxyProcess(bench.home, upstream, {"public_url": public_url}, port=port)
    bench.stack.push_async_callback(proxy.stop)
    await proxy.start()
    return proxy


async def test_the_flow_is_as_without_the_proxy(bench: Bench) -> None:
    """F28: from no token, over a refresh and a step-up (403), to a token that was taken back (401). What
    names the server's own address names ours."""
    async with AuthorizationServer().serving() as server:
        upstream = await bench.http_server(str(venv_python("sdk1")), str(SERVER), server.url, "self")
        proxy = await standing_in(bench, upstream, free_port())
        direct, through, modern = await together(
            [
                flow("sdk1", upstream, server),
                flow("sdk1", proxy.url, server),
                flow("sdk2", proxy.url, server),
            ]
        )
    assert direct.asked == FLOW
    assert [step["step"] for step in direct.steps] == STEPS
    assert through.steps == direct.steps
    assert through.asked == direct.asked
    assert (direct.resource, through.resource) == (upstream, proxy.url)
    assert modern.asked == FLOW
    assert [step["step"] for step in modern.steps] == STEPS
    assert modern.steps[0]["version"] == "2026-07-28"
    assert modern.steps[-2]["text"] == "alice"
    assert modern.resource == proxy.url
    assert server.resources == {upstream, proxy.url}


async def test_a_server_that_checks_what_tokens_are_for_knows_our_url_as_its_own(bench: Bench) -> None:
    """Contract section 8: stand-in before a server that checks its audience."""
    async with AuthorizationServer().serving() as server:
        port = free_port()
        ours = f"http://127.0.0.1:{port}/mcp"
        upstream = await bench.http_server(str(venv_python("sdk1")), str(SERVER), server.url, ours)
        proxy = await standing_in(bench, upstream, port)
        through = await flow("sdk1", proxy.url, server)
    assert through.asked == FLOW
    assert [step["step"] for step in through.steps] == STEPS
    assert server.resources == {proxy.url}
