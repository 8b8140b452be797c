"""Modern clients before a legacy upstream: everything but task methods and listening.

Above: the router. Below: `conversion` for the methods that may ask or become tasks; the others are one
call upstream and its translated answer. Contract section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from proxy.eras.era import Era
from proxy.eras.to_modern import ServerInfo, discover_result, error_code
from proxy.errors import ClientProtocolError, ErrorCode, TaskNotFound
from proxy.protocol import names
from proxy.protocol.envelope import RawObject
from proxy.protocol.param_headers import MirroredParam, mismatch, read_arguments
from proxy.routing.base import Answer, ClientRequest, ErrorAnswer, ResultAnswer, Sink
from proxy.routing.conversion import Conversion
from proxy.upstream.pool import Pool
from proxy.upstream.session import LegacySession

CAPABILITY_OF: Final[Mapping[str, str]] = {
    names.TOOLS_LIST: "tools",
    names.TOOLS_CALL: "tools",
    names.PROMPTS_LIST: "prompts",
    names.PROMPTS_GET: "prompts",
    names.RESOURCES_LIST: "resources",
    names.RESOURCES_TEMPLATES_LIST: "resources",
    names.RESOURCES_READ: "resources",
    names.COMPLETION_COMPLETE: "completions",
}
"""The server capability without which a method is unknown (DISC-005)."""

_BEFORE_COMPLETIONS: Final = "2024-11-05"  # servers of that version complete without declaring it
_UNKNOWN_METHOD_CODES: Final = frozenset(
    {ErrorCode.METHOD_NOT_FOUND, ErrorCode.INVALID_PARAMS, ErrorCode.INVALID_REQUEST}
)


class Bridge:
    """Handlers; see `routing.base.Handler`."""

    def __init__(
        self,
        pool: Pool,
        conversion: Conversion,
        upstream_era: Callable[[], Era | None] = lambda: Era.LEGACY,
        supported: Callable[[], tuple[str, ...]] = lambda: names.MODERN_VERSIONS,
    ) -> None:
        """`upstream_era`: what is known of it now. `supported`: the versions that discovery announces."""
        self._pool = pool
        self._supported = supported
        self._upstream_era = upstream_era
        self._conversion = conversion

    async def discover(self, request: ClientRequest, sink: Sink) -> Answer:
        """`server/discover`, made from the upstream's `initialize` result."""
        async with self._pool.lease(request.owner, request.capabilities, for_call=False) as session:
            return ResultAnswer(discover_result(session.info, self._supported()))

    async def forward(self, request: ClientRequest, sink: Sink) -> Answer:
        """Any method that the upstream may know."""
        answer = await self._conversion.serve(request, sink, check_session)
        if request.method in CAPABILITY_OF or not isinstance(answer, ErrorAnswer):
            return answer
        if self._upstream_era() is not Era.MODERN and error_code(answer.error) in _UNKNOWN_METHOD_CODES:
            raise unknown_method(request.method)
        return answer

    async def forward_task(self, request: ClientRequest, sink: Sink) -> Answer:
        """A task method about a task that is not ours: a modern server with the extension may know it."""
        if self._upstream_era() is Era.LEGACY:
            raise TaskNotFound
        async with self._pool.lease(request.owner, request.capabilities, for_call=False) as session:
            if not session.info.has_tasks:
                raise TaskNotFound
            return await self._conversion.serve(request, sink, check_session)


async def check_session(request: ClientRequest, session: LegacySession) -> None:
    """Raise ClientProtocolError where the server does not serve the method, or headers do not match."""
    if session.mirrors_params:
        return  # a modern server over HTTP judges all of that itself
    if session.info.era is not Era.MODERN and not _serves(session.info, request.method):
        raise unknown_method(request.method)
    if request.method != names.TOOLS_CALL or request.param_headers is None:
        return
    tool = request.params.text("name")
    mirrored = await session.catalogue.mirrored(tool) if tool is not None else ()
    if mirrored:
        _check_param_headers(request.params, mirrored, request.param_headers)


def _check_param_headers(
    params: RawObject, mirrored: tuple[MirroredParam, ...], headers: Mapping[str, str]
) -> None:
    arguments = params.get("arguments")
    fault = mismatch(mirrored, headers, None if arguments is None else read_arguments(arguments))
    if fault is not None:
        raise ClientProtocolError(ErrorCode.HEADER_MISMATCH, f"Header mismatch: {fault}")


def _serves(info: ServerInfo, method: str) -> bool:
    group = CAPABILITY_OF.get(method)
    if group is None:
        return True
    if group == "completions" and info.version == _BEFORE_COMPLETIONS:
        return True
    return info.declares(group)


def unknown_method(method: str) -> ClientProtocolError:
    return ClientProtocolError(ErrorCode.METHOD_NOT_FOUND, f"Method not found: {method}")
