"""The `Mcp-Param-*` headers of a call to a modern server over HTTP.

Above: `runner`. Below: the session's catalogue of tools. A client over HTTP has sent its own, which the
server judges; for all others we build them from the tool's schema, and build them anew, once, where the
server says that they do not match: then nothing has run. Streamable HTTP 2026-07-28, "Custom Headers from
Tool Parameters".
"""

from __future__ import annotations

from proxy.eras.to_modern import error_code
from proxy.errors import ErrorCode
from proxy.protocol import names
from proxy.protocol.param_headers import headers_for, read_arguments
from proxy.routing.live import LiveCall
from proxy.upstream.base import NO_HEADERS, Failure, Headers, Outcome
from proxy.upstream.session import LegacySession


async def headers_of(call: LiveCall, session: LegacySession) -> Headers:
    """What goes beside the call (HTTP-025, HTTP-042)."""
    request = call.request
    if not session.mirrors_params or request.method != names.TOOLS_CALL:
        return NO_HEADERS
    if request.param_headers is not None:
        return {f"{names.H_PARAM_PREFIX}{name}": value for name, value in request.param_headers.items()}
    mirrored = await session.catalogue.mirrored(call.name)
    arguments = request.params.get("arguments")
    return headers_for(mirrored, read_arguments(arguments)) if mirrored and arguments else NO_HEADERS


def should_be_built_anew(call: LiveCall, session: LegacySession, outcome: Outcome) -> bool:
    """Whether the server refused headers of ours: its tools have changed (HTTP-044)."""
    if not session.mirrors_params or call.request.method != names.TOOLS_CALL:
        return False
    is_ours = call.request.param_headers is None
    return is_ours and isinstance(outcome, Failure) and error_code(outcome.error) == ErrorCode.HEADER_MISMATCH
