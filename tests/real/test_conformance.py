"""The official conformance suite before servers that pass no tasks scenario by themselves: the legacy
fixture, and a modern server with all that the suite wants.

Holds most rows of TX-* and MRTR-*, as the suite's authors read them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import pytest

from proxy.protocol import names
from tests.real.bench import Bench
from tests.real.legacy import Transport
from tests.real.legacy_session import answers
from tests.real.modern_client import ELICITATION
from tests.setup_tools import TESTS, venv_python

pytestmark = pytest.mark.anyio

SETTINGS: Final[dict[str, Any]] = {
    "tasks": {"threshold": "250ms", "tools": [{"match": "failing_job", "mode": "required"}]}
}
REFERENCE: Final = TESTS / "fixtures" / "modern_reference.py"
WANTS_A_FIXED_KEY: Final = "input-required-result-basic-elicitation"  # the keys of questions are ours
ALWAYS_SKIPPED: Final = "tasks-status-notifications"
SUITE_BOUND_S: Final = 240.0
JOBS: Final = "1"  # questions of two scenarios at once in one stdio process are ambiguous by contract


async def verdicts(url: str, home: Path, *groups: str) -> dict[str, list[str]]:
    """Run scenarios, or groups of them; their names by verdict (PASS, SKIP, FAIL)."""
    out = home / f"{groups[0]}.json"
    wanted = [word for group in groups for word in ("-s", group)]
    command = [sys.executable, "-m", "tests.tools.conformance", "run", url, *wanted]
    run = partial(
        subprocess.run,
        [*command, "-j", JOBS, "--json", str(out)],
        cwd=TESTS.parent,
        timeout=SUITE_BOUND_S,
        capture_output=True,
        text=True,
    )
    ran = await anyio.to_thread.run_sync(run)
    print(ran.stdout, ran.stderr)
    found: dict[str, list[str]] = {"PASS": [], "SKIP": [], "FAIL": []}
    for scenario in json.loads(out.read_text())["results"]:
        found[scenario["verdict"]].append(scenario["scenario"])
    return found


async def test_tasks_scenarios_pass_before_an_untouched_legacy_server(
    bench: Bench, transport: Transport
) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)

    found = await verdicts(proxy.url, bench.home, "tasks")

    assert found["FAIL"] == []
    assert found["SKIP"] == [ALWAYS_SKIPPED]
    assert len(found["PASS"]) == 9


async def test_core_scenarios_pass_before_an_untouched_legacy_server(
    bench: Bench, transport: Transport
) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    # The suite waits 600 ms for a question, which is about what this server takes to start on stdio; so the
    # process for clients with that capability runs already.
    client = await bench.client(proxy, capabilities=ELICITATION)
    tools = (await client.request(names.TOOLS_LIST)).result["tools"]
    [direct] = await answers(legacy.command("stdio"), [(names.TOOLS_LIST, {})])
    listed = [tool["name"] for tool in json.loads(direct)["result"]["tools"]]

    found = await verdicts(proxy.url, bench.home, "core-2026-07-28")

    assert [tool["name"] for tool in tools] == listed, "some scenarios pass on an empty list"
    assert found["FAIL"] == [WANTS_A_FIXED_KEY]
    assert found["SKIP"] == []
    assert len(found["PASS"]) == 39


async def test_a_modern_server_is_no_worse_through_the_proxy_and_gets_tasks(bench: Bench) -> None:
    """Issue 7: by itself it passes all but the tasks scenarios; of those the ones that ask are run here."""
    url = await bench.http_server(str(venv_python("sdk2")), str(REFERENCE))
    proxy = await bench.proxy(url, SETTINGS)

    found = await verdicts(
        proxy.url, bench.home, "core-2026-07-28", "tasks-mrtr-input", "tasks-mrtr-composition"
    )

    assert (found["FAIL"], found["SKIP"]) == ([], [])
    assert len(found["PASS"]) == 40 + 2


async def test_legacy_clients_lack_nothing_before_a_modern_server(bench: Bench) -> None:
    """Contract section 7: the legacy side that its SDK has, too, is not asked."""
    url = await bench.http_server(str(venv_python("sdk2")), str(REFERENCE))
    proxy = await bench.proxy(url, {"upstream": {"era": "modern"}})

    found = await verdicts(proxy.url, bench.home, "core-2025-11-25")

    assert (found["FAIL"], found["SKIP"]) == ([], [])
    assert len(found["PASS"]) == 33
