"""The digest knows the proxy's additions from all else, and the file survives a torn line."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.eras.to_modern import lift_result
from proxy.protocol import names
from tests.faults.journal import Event, Journal, digest
from tests.faults.plan import Ending
from tests.faults.server.tools import answer_text


@pytest.mark.parametrize("label", ["0.0", "0.1", "0.2", "0.3", "0.4"])
@pytest.mark.parametrize("server_info", [None, b'{"name":"x"}'])
def test_what_the_proxy_adds_changes_no_digest(label: str, server_info: bytes | None) -> None:
    said = answer_text(label, 100, Ending.RESULT)
    assert digest(lift_result(names.TOOLS_CALL, said, server_info)) == digest(said)


def test_any_other_change_does() -> None:
    said = answer_text("0.0", 100, Ending.RESULT)
    for before, after in ((b"1.10", b"1.1"), (b"1E400", b"1e400"), (b'\\ud83d"', b'x"'), (b'"a":2,', b"")):
        assert before in said
        assert digest(said.replace(before, after)) != digest(said)


def test_rows_are_read_once_and_a_torn_one_later(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    server, bench = Journal(file), Journal(file)
    assert list(bench.new()) == []
    server.add(Event.START, "0.0")
    [row] = bench.new()
    assert (row.event, row.label) == (Event.START, "0.0")
    server.add(Event.RESULT, "0.0", "d1")
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    assert list(bench.new()) == []
    file.write_bytes(whole)
    assert [row.digest for row in bench.new()] == ["d1"]
