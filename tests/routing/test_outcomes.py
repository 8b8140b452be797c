"""What a result tells of a tool that failed: whether it did, and in which words."""

from __future__ import annotations

import pytest

from proxy.routing.outcomes import TOOL_ERROR, tool_error_of
from proxy.routing.progress import MAX_CHARS

TEXT = b'{"type":"text","text":"no such table"}'
IMAGE = b'{"type":"image","data":"aGk=","text":"not this"}'


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
        b"[true]",
    ],
)
def test_a_result_without_one_true_mark_is_no_error_of_the_tool(result: bytes) -> None:
    assert tool_error_of(result) is None


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
    assert tool_error_of(b'{"content":[%s] , "isError" : true }' % content) == text


@pytest.mark.parametrize("content", [b"", b',"content":7', b',"content":{}', b',"content":[],"content":[]'])
def test_a_tool_error_without_content_is_told_all_the_same(content: bytes) -> None:
    assert tool_error_of(b'{"is\\u0045rror":true' + content + b"}") == TOOL_ERROR


def test_a_long_text_is_shortened() -> None:
    text = b"x" * 100_000
    told = tool_error_of(b'{"isError":true,"content":[{"type":"text","text":"' + text + b'"}]}')
    assert told == "x" * (MAX_CHARS - 1) + "…"
