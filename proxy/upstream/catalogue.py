"""The tools of one session, as far as the proxy itself must know them: their mirrored parameters.

Above: the bridge, which checks `Mcp-Param-*` headers. Below: `tools/list` of the session, every page of
it. Kept until the upstream says that its list changed, or for a while where it never says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from proxy.clock import Clock
from proxy.errors import UpstreamError
from proxy.logs import get_logger
from proxy.protocol import names
from proxy.protocol.envelope import dumps, loads
from proxy.protocol.param_headers import MirroredParam, mirrored_params
from proxy.upstream.base import Failure, Outcome

KEEP_S: Final = 60.0  # many servers never announce a change of their tools
KEEP_FAILURE_S: Final = 10.0  # a server whose list fails must not be asked before every call
MAX_PAGES: Final = 1_000

log = get_logger()

Ask = Callable[[str, bytes | None], Awaitable[Outcome]]


class Catalogue:
    """Mirrored parameters by tool name."""

    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = anyio.Lock()
        self._tools: dict[str, tuple[MirroredParam, ...]] | None = None
        self._fresh_until = float("-inf")

    def forget(self) -> None:
        """What is known is stale from now on."""
        self._fresh_until = float("-inf")

    async def mirrored(self, tool: str) -> tuple[MirroredParam, ...]:
        """The parameters of `tool` that are mirrored to headers; none if the list cannot be had."""
        async with self._lock:
            if self._clock.monotonic() >= self._fresh_until:
                await self._load()
        return (self._tools or {}).get(tool, ())

    async def _load(self) -> None:
        self._fresh_until = self._clock.monotonic() + KEEP_S  # a change while we load makes it stale again
        try:
            self._tools = await self._walk()
        except UpstreamError as exc:
            log.warning("tools_list_failed", reason=exc.message)
            self._fresh_until = self._clock.monotonic() + KEEP_FAILURE_S

    async def _walk(self) -> dict[str, tuple[MirroredParam, ...]]:
        found: dict[str, tuple[MirroredParam, ...]] = {}
        cursor: Any = None
        seen: set[str] = set()
        for _ in range(MAX_PAGES):
            params = None if cursor is None else dumps({"cursor": cursor})
            outcome = await self._ask(names.TOOLS_LIST, params)
            if isinstance(outcome, Failure):
                raise UpstreamError("tools/list was answered with an error")
            page = loads(outcome.raw)
            tools = page.get("tools") if isinstance(page, dict) else None
            for tool in tools if isinstance(tools, list) else []:
                if isinstance(tool, dict) and isinstance(tool.get("name"), str):
                    found[tool["name"]] = mirrored_params(tool.get("inputSchema"))
            cursor = page.get("nextCursor") if isinstance(page, dict) else None
            if not isinstance(cursor, str):
                return found
            if cursor in seen:
                log.warning("tools_list_cursor_repeated")
                return found
            seen.add(cursor)
        return found
