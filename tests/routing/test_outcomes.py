"""What a result tells of a tool that failed: whether it did, and in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.eras.era import Era
from proxy.eras.to_modern import ServerInfo
from proxy.errors import UpstreamProtocolError
from proxy.protocol.envelope import RawObject
from proxy.protocol.outline import Outline
from proxy.routing.outcomes import TOOL_ERROR, answer_of, read_result
from proxy.routing.progress import MAX_CHARS
from proxy.upstream.base import Result

TEXT = b'{"type":"text","text":"no such table"}'
INFO = ServerInfo("2025-06-18", b"{}", b'{"name":"x"}', None)
IMAGE = b'{"type":"image","data":"aGk=","text":"not this"}'


def tool_error(result: bytes) -> str | None:
    return read_result("tools/call", result, INFO).tool_error


@pytest.mark.parametrize(
    "result",
    [
        b"{}",
        b'{"content":[%s]}' % TEXT,
        b'{"content":[%s],"isError":false}' % TEXT,
        b'{"isError":"true"}',
        b'{"isError":null}',
        b'{"isError":1}',
        b'{"_meta":{"isError":true},"structuredContent":{"isError":true}}',
        b'{"isError":true,"isError":true}',
    ],
)
def test_a_result_without_one_true_mark_is_no_error_of_the_tool(result: bytes) -> None:
    assert tool_error(result) is None


@pytest.mark.parametrize(
    "content, text",
    [
        (TEXT, "no such table"),
        (b"%s, %s, %s" % (IMAGE, TEXT, IMAGE), "no such table"),
        (b'{"type":"text","text":" \\n"}, 7, %s' % TEXT, "no such table"),
        (b'{"type":"text","text":"\\u2603 \\ud83d\\n"}', "\u2603 \ud83d"),
        (b"", TOOL_ERROR),
        (IMAGE, TOOL_ERROR),
        (b'{"type":"text","text":""}', TOOL_ERROR),
        (b'{"type":"text","text":7}', TOOL_ERROR),
        (b'{"type":"text","text":"a","text":"b"}', TOOL_ERROR),
    ],
)
def test_a_tool_error_is_told_in_the_first_text_of_its_content(content: bytes, text: str) -> None:
    """T25-STA-003: what the 2025 dialect says of the task that failed."""
    assert tool_error(b'{"content":[%s] , "isError" : true }' % content) == text


@pytest.mark.parametrize("content", [b"", b',"content":7', b',"content":{}', b',"content":[],"content":[]'])
def test_a_tool_error_without_content_is_told_all_the_same(content: bytes) -> None:
    assert tool_error(b'{"is\\u0045rror":true' + content + b"}") == TOOL_ERROR


def test_a_long_text_is_shortened() -> None:
    text = b"x" * 100_000
    told = tool_error(b'{"isError":true,"content":[{"type":"text","text":"' + text + b'"}]}')
    assert told == "x" * (MAX_CHARS - 1) + "…"


@pytest.mark.parametrize(
    "result", [b"[true]", b"7", b'{"_meta":{},"_meta":{}}', b'{"_meta":{"a":1},"_meta":7}']
)
def test_what_could_not_be_answered_is_not_kept_either(result: bytes) -> None:
    with pytest.raises(UpstreamProtocolError, match="the result of tools/call cannot be used"):
        answer_of("tools/call", Result(result), INFO)
    with pytest.raises(UpstreamProtocolError, match="the result of tools/call cannot be used"):
        read_result("tools/call", result, INFO)


def test_a_modern_servers_meta_is_its_own_affair() -> None:
    result = b'{"_meta":{},"_meta":{}}'
    modern = replace(INFO, discovered=b"{}")
    assert modern.era is Era.MODERN
    assert read_result("tools/call", result, modern).outline == Outline.of(RawObject.parse(result))
    with pytest.raises(UpstreamProtocolError, match="object"):
        read_result("tools/call", b"[]", modern)
