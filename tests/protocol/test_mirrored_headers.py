"""The headers beside a modern request, made from its body."""

from __future__ import annotations

from typing import Any, Final

import pytest

from proxy.protocol import names
from proxy.protocol.envelope import dumps
from proxy.protocol.mirrored_headers import mirrored_headers

META: Final = {names.META_PROTOCOL_VERSION: "2026-07-28"}


def request(method: str, **params: Any) -> bytes:
    return dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}})


@pytest.mark.parametrize(
    "method, params, name",
    [
        (names.TOOLS_CALL, {"name": "t"}, "t"),
        (names.TOOLS_CALL, {"name": "z\u00fc"}, "=?base64?esO8?="),
        (names.PROMPTS_GET, {"name": "p"}, "p"),
        (names.RESOURCES_READ, {"uri": "u://x"}, "u://x"),
        (names.TASKS_GET, {"taskId": "theirs"}, "theirs"),
        (names.TASKS_UPDATE, {"taskId": "theirs"}, "theirs"),
        (names.TASKS_CANCEL, {"taskId": "theirs"}, "theirs"),
        (names.TOOLS_LIST, {"name": "no"}, None),
    ],
)
def test_method_and_name_are_those_of_the_body(method: str, params: dict[str, Any], name: str | None) -> None:
    """HTTP-041, TX-HDR-002."""
    expected = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    if name is not None:
        expected["mcp-name"] = name
    found = {key.lower(): value for key, value in mirrored_headers(request(method, **params)).items()}
    assert found == expected


def test_a_legacy_message_has_none() -> None:
    assert mirrored_headers(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}') == {}


def test_however_its_version_key_is_spelt_a_modern_message_has_them() -> None:
    """PHP escapes slashes."""
    raw = request(names.TOOLS_CALL, name="t").replace(b"/protocolVersion", rb"\/protocolVersion")
    assert mirrored_headers(raw)[names.H_METHOD] == names.TOOLS_CALL
