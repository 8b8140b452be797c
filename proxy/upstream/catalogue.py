"""The tools of one session, as far as the proxy itself must know them: mirrored parameters, task marks.

Above: the bridge, which checks `Mcp-Param-*` headers, and the 2025 tasks, which leave upstream's own task
tools to it. Below: `tools/list` of the session, every page of it. Kept until the upstream says that its list
changed, or for a while where it never says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import anyio

from proxy.clock import Clock
from proxy.eras.tasks_2025 import TaskSupport
from proxy.errors import UpstreamError
from proxy.logs import get_logger
from proxy.protocol import names
from proxy.protocol.envelope import dumps, loads
from proxy.protocol.param_headers import MirroredParam, mirrored_params
from proxy.upstream.base import Failure, Outcome

KEEP_S: Final = 60.0  # many servers never announce a change of their tools
KEEP_FAILURE_S: Final = 10.0  # a server whose list fails must not be asked before every call
LOAD_TIMEOUT_S: Final = 15.0  # for all pages together: a call waits for it
MAX_PAGES: Final = 1_000

log = get_logger()

Ask = Callable[[str, bytes | None], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """`support` is the upstream's own mark: whether it runs the tool as a task of its own."""

    mirrored: tuple[MirroredParam, ...] = ()
    support: TaskSupport = TaskSupport.FORBIDDEN


_UNKNOWN: Final = ToolFacts()
_SUPPORTS: Final = frozenset(TaskSupport)


class Catalogue:
    """What is known of the tools, by name."""

    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._turn = anyio.Lock()
        self._tools: dict[str, ToolFacts] = {}
        self._fresh_until = float("-inf")
        self._changes = 0
        self._obtained = False

    def forget(self) -> None:
        """What is known is stale from now on; so is what is being loaded."""
        self._changes += 1
        self._fresh_until = float("-inf")

    async def mirrored(self, tool: str) -> tuple[MirroredParam, ...]:
        """The parameters of `tool` that are mirrored to headers. If the list cannot be had in time, what was
        known of it before still counts."""
        return (await self._facts(tool)).mirrored

    async def task_support(self, tool: str) -> TaskSupport | None:
        """Whether the upstream runs `tool` as a 2025 task of its own; None if the list was never obtained."""
        facts = await self._facts(tool)
        return facts.support if self._obtained else None

    async def _facts(self, tool: str) -> ToolFacts:
        async with self._turn:
            if self._clock.monotonic() >= self._fresh_until:
                await self._load()
        return self._tools.get(tool, _UNKNOWN)

    async def _load(self) -> None:
        changes, keep_s = self._changes, KEEP_S
        try:
            with anyio.fail_after(LOAD_TIMEOUT_S):
                self._tools = await self._walk()
            self._obtained = True
        except (UpstreamError, TimeoutError) as exc:
            log.warning("tools_list_failed", reason=str(exc) or f"took more than {LOAD_TIMEOUT_S:g} s")
            keep_s = KEEP_FAILURE_S
        if changes == self._changes:
            self._fresh_until = self._clock.monotonic() + keep_s

    async def _walk(self) -> dict[str, ToolFacts]:
        found: dict[str, ToolFacts] = {}
        params: bytes | None = None
        seen: set[str] = set()
        for _ in range(MAX_PAGES):
            page = _page_of(await self._ask(names.TOOLS_LIST, params))
            tools = page.get("tools")
            for tool in tools if isinstance(tools, list) else []:
                if isinstance(tool, dict) and isinstance(tool.get("name"), str):
                    found[tool["name"]] = _facts_of(tool)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                return found
            if cursor in seen:
                log.warning("tools_list_cursor_repeated")
                return found
            seen.add(cursor)
            params = dumps({"cursor": cursor})
        return found


def _facts_of(tool: dict[str, Any]) -> ToolFacts:
    execution = tool.get("execution")
    said = execution.get("taskSupport") if isinstance(execution, dict) else None
    support = TaskSupport(said) if said in _SUPPORTS else TaskSupport.FORBIDDEN
    return ToolFacts(mirrored_params(tool.get("inputSchema")), support)


def _page_of(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Failure):
        raise UpstreamError("tools/list was answered with an error")
    try:
        page = loads(outcome.raw)
    except ValueError as exc:  # JSON, but with a number that Python will not take
        raise UpstreamError(f"the answer to tools/list cannot be read: {exc}") from exc
    return page if isinstance(page, dict) else {}
