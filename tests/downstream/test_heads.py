"""The bounds of a head, however it comes, and who may read what is said of one that is refused.

On a real socket. Contract section 8, "Bounds"; field report F30.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import anyio
import pytest
from anyio.lowlevel import checkpoint

from proxy.downstream.connection import MAX_HEADERS, WHOLE_HEAD
from proxy.downstream.heads import origins_in
from tests.downstream.http_rig import BOUNDS, OK, ORIGIN, Rig, http_rig, message, raw_post, read_all

pytestmark = pytest.mark.anyio

ONE: Final = 1_024  # limits.header
SMALL: Final = replace(BOUNDS, header_bytes=ONE)
MOST: Final = WHOLE_HEAD * ONE
PAGE: Final = f"Origin: {ORIGIN}\r\n"

FIRST: Final = raw_post(message(id="first"))
LAST: Final = raw_post(message(id="last"), more="Connection: close\r\n")


def request_with_head_of(size: int, more: str = "") -> bytes:
    """Of many headers, each of which is within its limit."""
    fields = "".join(f"X-{n}: {'y' * 500}\r\n" for n in range(size // 600))
    body = message()
    empty = len(raw_post(body, more=more + fields + "X-Rest: \r\n")) - len(body)
    return raw_post(body, more=f"{more}{fields}X-Rest: {'y' * (size - empty)}\r\n")


def whole(request: bytes) -> Sequence[bytes]:
    return [request]


def in_parts(request: bytes) -> Sequence[bytes]:
    return [request[at : at + 700] for at in range(0, len(request), 700)]


def all_but_the_end(request: bytes) -> Sequence[bytes]:
    at = request.index(b"\r\n\r\n") + 3
    return [request[:at], request[at:]]


def behind_another(request: bytes) -> Sequence[bytes]:
    return [FIRST + request]


def between_others(request: bytes) -> Sequence[bytes]:
    return [FIRST + request + FIRST]


def in_parts_behind_another(request: bytes) -> Sequence[bytes]:
    return [FIRST, *in_parts(request)]


def begun_with_another(request: bytes) -> Sequence[bytes]:
    return [FIRST + request[: MOST // 2], request[MOST // 2 :]]


def begun_with_the_body_of_another(request: bytes) -> Sequence[bytes]:
    return [FIRST[:-10], FIRST[-10:] + request[: MOST // 2], request[MOST // 2 :]]


def at_the_end_of_many(request: bytes) -> Sequence[bytes]:
    """Of more than are parsed at once."""
    return [FIRST * 99 + request]


async def send(rig: Rig, parts: Sequence[bytes]) -> bytes:
    """What comes back until the connection is closed."""
    async with await rig.connect() as stream:
        for part in parts:
            await stream.send(part)
            for _ in range(3):  # else the parts come in one
                await checkpoint()
        with anyio.fail_after(5):
            return await read_all(stream)


def faults_in(answers: bytes) -> list[str]:
    return [found.decode() for found in re.findall(rb'"message":"([^"]*)"', answers)]


@pytest.mark.parametrize(
    "cut, before",
    [
        (whole, 0),
        (in_parts, 0),
        (all_but_the_end, 0),
        (behind_another, 1),
        (between_others, 1),
        (in_parts_behind_another, 1),
        (begun_with_another, 1),
        (begun_with_the_body_of_another, 1),
        (at_the_end_of_many, 99),
    ],
)
async def test_the_bound_of_all_headers_is_exact_however_they_come(
    cut: Callable[[bytes], Sequence[bytes]], before: int
) -> None:
    """SEC-003: up to it a request is served, one byte more is 431, and nothing behind that is served."""
    async with http_rig(bounds=SMALL) as rig:
        rig.router.always = OK
        right = request_with_head_of(MOST)
        assert right.index(b"\r\n\r\n") + 4 == MOST
        answers = await send(rig, [*cut(right), LAST])
        served = len(rig.router.seen)
        assert faults_in(answers) == []
        assert served >= before + 2

        answers = await send(rig, cut(request_with_head_of(MOST + 1)))
        [fault] = faults_in(answers)
        assert str(MOST) in fault
        assert answers.count(b" 431 ") == 1
        assert len(rig.router.seen) == served + before


async def test_a_head_that_never_ends_is_bounded_behind_a_request_that_is_being_served() -> None:
    """SEC-003: an answer that takes long gives no room to what waits behind it. Nothing can be said then."""
    async with http_rig(bounds=SMALL) as rig, await rig.connect() as stream:
        await stream.send(FIRST)
        served = await rig.router.next()
        with anyio.fail_after(5), pytest.raises((anyio.BrokenResourceError, anyio.ClosedResourceError)):
            await stream.send(b"POST /mcp HTTP/1.1\r\n")
            for n in range(MAX_HEADERS):
                await stream.send(b"X-%d: " % n + b"y" * (ONE // 2) + b"\r\n")
                await checkpoint()
            await anyio.sleep_forever()  # a reset may come after all was sent: then reading says so
        served.end()


async def test_bodies_in_many_parts_are_no_heads() -> None:
    """However large, and with another request behind them."""
    large = raw_post(message(pad="x" * 50_000))
    async with http_rig(bounds=SMALL) as rig:
        rig.router.always = OK
        requests = large * 3 + LAST
        answers = await send(rig, [requests[at : at + 5_000] for at in range(0, len(requests), 5_000)])
        assert (answers.count(b" 200 "), len(rig.router.seen)) == (4, 4)


# -- which page may read it ---------------------------------------------------------------------------

FLOOD: Final = "".join(f"X-{n}: y\r\n" for n in range(MAX_HEADERS + 1))
LONG: Final = f"X-Long: {'y' * (ONE + 1)}\r\n"
MALFORMED: Final = "no header\r\n"
REFUSED: Final = {
    "a header too large": (431, [raw_post(b"", more=PAGE + LONG)]),
    "a header too large before": (431, [raw_post(b"", more=LONG + PAGE)]),
    "too many": (431, [raw_post(b"", more=PAGE + FLOOD)]),
    "all too large": (431, [request_with_head_of(MOST + 1, PAGE)]),
    "all too large in parts": (431, in_parts(request_with_head_of(MOST + 1, PAGE))),
    "too large for ever": (431, in_parts(request_with_head_of(MOST + 700, PAGE))[:-2]),
    "no HTTP": (400, [raw_post(b"", more=PAGE + MALFORMED)]),
    "no HTTP in parts": (400, in_parts(raw_post(b"", more=PAGE + "X: y\r\n" * 99 + MALFORMED))),
    "two lengths": (400, [raw_post(b"", more=PAGE + "Content-Length: 0\r\n")]),
    "late": (408, [raw_post(b"", more=PAGE)[:-2]]),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_the_page_that_sent_what_is_refused_before_it_is_a_request_can_read_why(case: str) -> None:
    """F30: to a browser it is a network error otherwise. Others are told nothing of who may."""
    status, parts = REFUSED[case]
    async with http_rig(bounds=replace(SMALL, head_s=0.2)) as rig:
        answer = await send(rig, parts)
        head = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        assert int(head[0].split()[1]) == status
        assert head.count(f"Access-Control-Allow-Origin: {ORIGIN}") == 1
        assert "Vary: Origin" in head
        for other in (b"https://evil.example", ORIGIN.encode() + b"\r\nOrigin: null"):
            replaced = [part.replace(ORIGIN.encode(), other) for part in parts]
            answer = await send(rig, replaced)
            assert int(answer.split()[1]) == status
            assert b"Access-Control" not in answer


@pytest.mark.parametrize(
    "head, origins",
    [
        (b"POST / HTTP/1.1\r\nOrigin: https://a.example\r\nX: y", ["https://a.example"]),
        (b"POST / HTTP/1.1\r\norigin:https://a.example \t\r\n\r\n", ["https://a.example"]),
        (b"POST / HTTP/1.1\r\nOrigin: https://a.exam", ["https://a.exam"]),
        (b"POST / HTTP/1.1\r\nX-Origin: https://a.example\r\n\r\n", []),
        (b"POST / HTTP/1.1\r\nOrigin: a\r\nORIGIN: b\r\nOrigin: a\r\n", ["a", "b"]),
        (b"\x16\x03\x01\x02", []),
    ],
)
def test_origins_are_read_as_far_as_they_can_be(head: bytes, origins: list[str]) -> None:
    assert origins_in(head) == origins
