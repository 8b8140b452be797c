"""A short run of mutated requests at both entrances; longer ones by hand, see `__main__`. Issue 6.

No 5xx but those that are ours by design, no traceback or internal error in any answer or log, no crash, no
growth, and what is valid is answered all the while.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.protocol import names
from tests.fuzz.entrances import HttpEntrance
from tests.fuzz.mutants import CAPABILITIES, LEGACY, META, MODERN, HttpRequest, Mutants
from tests.fuzz.readers import judge
from tests.fuzz.scene import http_proxy, measured, stdio_proxy
from tests.real.proxy_process import ProxyProcess

pytestmark = pytest.mark.real

REQUESTS: Final = 400
LINES: Final = 600
TEXTS_READ: Final = 600
EXAMPLES: Final = int(os.environ.get("FUZZ_EXAMPLES", "100"))
SEED: Final = 20_260_728

METHODS: Final = sorted({method for method, _ in [*MODERN, *LEGACY]} | {names.INITIALIZE, "x", ""})
TEXTS: Final = st.text(max_size=20) | st.sampled_from([*METHODS, "tpx-" + "A" * 32, names.LATEST_MODERN])
LEAVES: Final = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
TREES: Final = st.recursive(
    LEAVES,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(TEXTS, below, max_size=3),
    max_leaves=8,
)
MEMBERS: Final = st.sampled_from(
    [
        "name",
        "arguments",
        "uri",
        "taskId",
        "inputResponses",
        "requestState",
        "notifications",
        "cursor",
        "task",
    ]
)
META_OF: Final = st.fixed_dictionaries(
    {},
    optional={
        names.META_PROTOCOL_VERSION: st.just(names.LATEST_MODERN) | TREES,
        names.META_CLIENT_CAPABILITIES: st.just(CAPABILITIES) | TREES,
        names.META_LOG_LEVEL: TREES,
        names.META_PROGRESS_TOKEN: TREES,
    },
)
PARAMS: Final = TREES | st.builds(
    lambda members, meta: {**members, names.META: meta},
    st.dictionaries(MEMBERS | TEXTS, TREES, max_size=4),
    st.just(META) | META_OF | TREES,
)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """Its log is looked through when it has ended."""
    with http_proxy(tmp_path_factory.mktemp("fuzzed")) as proxy:
        yield proxy


def test_mutated_http_requests_do_no_harm(proxy: ProxyProcess) -> None:
    """SEC-003, I6: bytes and JSON, heads and bodies, both eras, in an open session and out of it."""
    found = measured(proxy, REQUESTS, SEED)
    print(found)
    assert found.tally.sent == REQUESTS
    assert {200, 400, 404} <= set(found.tally.statuses)  # some came through, and some did not
    assert {-32700, -32600, -32602} <= set(found.tally.errors)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=EXAMPLES == 100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    method=st.sampled_from(METHODS) | TREES, params=PARAMS, rid=st.integers() | TREES, is_modern=st.booleans()
)
def test_any_json_in_place_of_any_member_does_no_harm(
    proxy: ProxyProcess, method: Any, params: Any, rid: Any, is_modern: bool
) -> None:
    """SEC-003, BASE-003: what is answered to a good id has that id."""
    body = json.dumps({"jsonrpc": "2.0", "id": rid, "method": method, "params": params}).encode()
    headers = [b"Accept: application/json, text/event-stream"]
    if is_modern:
        named = method if isinstance(method, str) and method.isascii() and method.isprintable() else "x"
        headers += [f"{names.H_PROTOCOL_VERSION}: {names.LATEST_MODERN}".encode()]
        headers += [f"{names.H_METHOD}: {named}".encode()]
    answer = HttpEntrance(proxy.port).send(HttpRequest(b"POST", b"/mcp", tuple(headers), body).raw())
    head, _, said = answer.partition(b"\r\n\r\n")
    if b"application/json" in head and said:
        message = json.loads(said)
        assert message["jsonrpc"] == "2.0"
        assert message.get("id") in (rid, None)


def test_mutated_lines_at_stdin_do_no_harm(tmp_path: Path) -> None:
    """SEC-003, STDIO-002, I6: each line of the answers is a message, and its client's end is its end."""
    found = stdio_proxy(tmp_path, LINES, SEED)
    print(found)
    assert found.tally.sent >= LINES
    assert {-32700, -32600, -32602} <= set(found.tally.errors)


def test_mutants_are_read_or_refused_as_the_standard_library_has_it() -> None:
    """SEC-003, BASE-003: by each reader alone; see `readers`, and `guided` for a long run."""
    mutants = Mutants(random.Random(SEED), "session")
    for _ in range(TEXTS_READ):
        judge(mutants.line().removesuffix(b"\n"))


def test_a_seed_makes_the_same_requests_again() -> None:
    """Else what a run has found could not be looked at."""
    runs = []
    for _ in range(2):
        mutants = Mutants(random.Random(SEED), "session")
        runs.append([mutants.http() for _ in range(50)] + [mutants.line() for _ in range(50)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 90
