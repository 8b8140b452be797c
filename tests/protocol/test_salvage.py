"""Whose answer an unreadable text is."""

from __future__ import annotations

import pytest

from proxy.protocol.salvage import EDGE_BYTES, answered_by

LONG = b"x" * (3 * EDGE_BYTES)


@pytest.mark.parametrize(
    "text, answered",
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":"\xff"}}', 7),
        (b' { "id" : "7" , "result" : nonsense', 7),
        (b'{"id":7,"error":{"message":"' + LONG, 7),
        (b'{"id":7,"jsonrpc":"2.0","result":{"a":"\xff"}}', 7),  # by programs that sort the members
        (b'{"error":{"a":"' + LONG + b'"},"id":7,"jsonrpc":"2.0"}', 7),
        (b'{"id":7,"jsonrpc":"2.0","method":"x","params":{"a":"\xff"}}', None),
        (b'{"result":{"a":"' + LONG + b'"},"jsonrpc":"2.0","id":12}', 12),
        (b'{"error":{"a":"\xff"},"id":12,"jsonrpc":"2.0"}\r', 12),
        (b'{"jsonrpc":"2.0","result":' + b"[" * 3_000 + b"]" * 3_000 + b',"id":3}', 3),
        (b'{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{"a":"\xff"}}', None),
        (b'{"method":"x","params":{"result":1},"jsonrpc":"2.0","id":7}', None),
        (b'{"result":{"id":7,"a":"\xff"}', None),
        (b'{"jsonrpc":"2.0","id":"a","result":{', None),
        (b'{"jsonrpc":"2.0","id":-7,"result":{', None),
        (b'{"jsonrpc":"2.0","id":1.5,"result":{', None),
        (b"progress: 7", None),
        (b"", None),
    ],
)
def test_the_id_is_found_at_either_edge_of_a_response_and_nowhere_else(
    text: bytes, answered: int | None
) -> None:
    """F33, F34: the id of a request is the server's own, and one inside a result says nothing."""
    assert answered_by(text) == answered
