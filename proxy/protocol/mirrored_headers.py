"""The headers that a modern HTTP request carries beside its body, made from the body.

Above: the HTTP transport towards a modern server. Below: `param_headers` for the value encoding.
Streamable HTTP 2026-07-28, "Request Metadata".
"""

from __future__ import annotations

from typing import Final

from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject
from proxy.protocol.param_headers import encode_value

_VERSION_KEY: Final = names.META_PROTOCOL_VERSION.encode()


def mirrored_headers(message: bytes) -> dict[str, str]:
    """`MCP-Protocol-Version`, `Mcp-Method` and `Mcp-Name` of a modern message; none for any other.

    A message is modern if its `_meta` names a protocol version.
    """
    if _VERSION_KEY not in message and b"\\" not in message:
        return {}  # however it is written, it is not in there
    try:
        obj = RawObject.parse(message)
        method, params = obj.text("method"), obj.object("params")
        meta = params.object(names.META) if params is not None else None
        version = meta.text(names.META_PROTOCOL_VERSION) if meta is not None else None
        if method is None or params is None or version is None:
            return {}
        headers = {names.H_PROTOCOL_VERSION: version, names.H_METHOD: encode_value(method)}
        member = names.NAME_MEMBER.get(method)
        name = params.text(member) if member is not None else None
    except (JsonError, DuplicateMember):
        return {}
    if name is not None:
        headers[names.H_NAME] = encode_value(name)
    return headers
