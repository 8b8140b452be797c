"""The questions of one task as requests to 2025 clients: each on one stream at a time, one answer counts.

Contract section 5, "input". Holds T25-INP-002, T25-INP-004.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import pytest

from proxy.protocol import names
from proxy.routing.offers import ID_PREFIX, Offers
from proxy.tasks.task import InputRequest
from tests.routing.bench_2025 import RELATED, FakeChannel

TASK: Final = "tpx-1"
FIRST: Final = InputRequest("input-1", names.ELICITATION_CREATE, b'{"message": "Sure?"}', b'"q"')
SECOND: Final = InputRequest("input-2", names.ROOTS_LIST, None, b'"q"')


@pytest.fixture
def offers() -> Offers:
    return Offers(TASK)


def on(channels: list[FakeChannel]) -> Callable[[InputRequest], list[FakeChannel]]:
    """Every question may go on each of these."""
    return lambda question: channels


def related(channel: FakeChannel) -> set[str]:
    return {message["params"]["_meta"][RELATED]["taskId"] for message in channel.said}


def test_a_question_is_put_in_the_servers_own_words_and_says_whose_it_is(offers: Offers) -> None:
    """T25-INP-002: also one that came without params. Ids are ours: those of two servers may be equal."""
    channel = FakeChannel()
    first = InputRequest(
        "input-1", names.ELICITATION_CREATE, b'{"message":"Sure?"}', b'"q"', b'{"elicitationId":"e","n":1.0}'
    )
    offers.set_open([first, SECOND])
    offers.send_on(on([channel]))
    elicitation, roots = channel.questions
    assert elicitation["method"] == names.ELICITATION_CREATE
    assert elicitation["params"] == {
        "elicitationId": "e",
        "n": 1.0,
        "_meta": {RELATED: {"taskId": TASK}},
    }
    assert roots["params"] == {"_meta": {RELATED: {"taskId": TASK}}}
    assert elicitation["id"].startswith(ID_PREFIX)
    assert elicitation["id"] != roots["id"]
    assert offers.ids == {elicitation["id"], roots["id"]}


def test_it_goes_on_the_best_stream_that_is_open_and_on_no_other(offers: Offers) -> None:
    """T25-INP-004."""
    closed, best, other = FakeChannel(is_open=False), FakeChannel(), FakeChannel()
    offers.set_open([FIRST])
    for _ in range(3):
        offers.send_on(on([closed, best, other]))
    offers.send_on(on([other, best]))
    assert [len(channel.said) for channel in (closed, best, other)] == [0, 1, 0]


def test_where_no_stream_is_open_it_waits_for_one(offers: Offers) -> None:
    offers.set_open([FIRST])
    offers.send_on(on([]))
    offers.send_on(on([FakeChannel(is_open=False)]))
    assert offers.ids == set()
    channel = FakeChannel()
    offers.send_on(on([channel]))
    assert len(channel.questions) == 1


def test_where_a_stream_takes_no_more_it_goes_on_another_or_waits(offers: Offers) -> None:
    """I6: what was not taken was not asked."""
    full, other = FakeChannel(is_full=True), FakeChannel()
    offers.set_open([FIRST])
    offers.send_on(on([full]))
    assert offers.ids == set()
    offers.send_on(on([full, other]))
    assert [len(channel.questions) for channel in (full, other)] == [0, 1]
    offers.set_open([FIRST, SECOND])
    offers.send_on(on([full]))
    full.is_full = False
    offers.send_on(on([full]))
    assert [question["method"] for question in full.questions] == [SECOND.method]


def test_it_is_put_again_once_its_stream_has_broken_and_either_answer_counts_once(offers: Offers) -> None:
    """T25-INP-004: under another id, since the first may still be answered."""
    broken, new = FakeChannel(), FakeChannel()
    offers.set_open([FIRST])
    offers.send_on(on([broken]))
    broken.is_open = False
    offers.send_on(on([broken, new]))
    [first], [again] = broken.questions, new.questions
    assert first["id"] != again["id"]
    assert {**first, "id": again["id"]} == again
    assert offers.take(first["id"]) == "input-1"
    assert offers.take(again["id"]) is None


def test_an_answer_closes_one_question_and_no_other(offers: Offers) -> None:
    channel = FakeChannel()
    offers.set_open([FIRST, SECOND])
    offers.send_on(on([channel]))
    first, second = channel.questions
    assert offers.take("tpx-ask-unknown") is None
    assert offers.take(second["id"]) == "input-2"
    assert offers.take(second["id"]) is None
    assert offers.take(first["id"]) == "input-1"
    assert len(offers) == 0


def test_what_is_answered_is_not_put_again_while_the_record_still_shows_it(offers: Offers) -> None:
    """The answer is on its way into the store; afterwards the same key never comes back."""
    channel = FakeChannel()
    offers.set_open([FIRST])
    offers.send_on(on([channel]))
    offers.take(channel.questions[0]["id"])
    offers.set_open([FIRST, SECOND])
    offers.send_on(on([channel]))
    assert [question["method"] for question in channel.questions] == [
        names.ELICITATION_CREATE,
        names.ROOTS_LIST,
    ]
    assert channel.told(names.CANCELLED) == []


def test_what_is_open_no_more_is_taken_back(offers: Offers) -> None:
    """As by an answer of a modern client. It says whose it is, too (T25-REL-001)."""
    channel = FakeChannel()
    offers.set_open([FIRST, SECOND])
    offers.send_on(on([channel]))
    first = channel.questions[0]
    offers.set_open([SECOND])
    [taken_back] = channel.told(names.CANCELLED)
    assert taken_back["requestId"] == first["id"]
    assert related(channel) == {TASK}
    assert offers.take(first["id"]) is None


def test_nothing_is_taken_back_from_who_was_not_asked_or_is_gone(offers: Offers) -> None:
    gone = FakeChannel()
    offers.set_open([FIRST])
    offers.send_on(on([gone]))
    gone.is_open = False
    offers.set_open([SECOND])
    offers.set_open([])
    assert [message["method"] for message in gone.said] == [names.ELICITATION_CREATE]


def test_a_question_that_was_put_twice_is_taken_back_where_it_was_put_last(offers: Offers) -> None:
    broken, new = FakeChannel(), FakeChannel()
    offers.set_open([FIRST])
    offers.send_on(on([broken]))
    broken.is_open = False
    offers.send_on(on([new]))
    offers.take_back_all()
    assert broken.told(names.CANCELLED) == []
    assert [params["requestId"] for params in new.told(names.CANCELLED)] == [new.questions[0]["id"]]
    assert len(offers) == 0


def test_ids_are_nobodys_guess(offers: Offers) -> None:
    channel = FakeChannel()
    offers.set_open([InputRequest(f"input-{n}", names.ROOTS_LIST, None, b"1") for n in range(1_000)])
    offers.send_on(on([channel]))
    ids = [question["id"] for question in channel.questions]
    assert len(set(ids)) == 1_000
    assert all(len(one.removeprefix(ID_PREFIX)) >= 16 for one in ids)
    assert json.dumps(ids).isascii()


def test_each_question_goes_where_it_may_go(offers: Offers) -> None:
    """F15: and waits where there is no such place."""
    roots_only, none = FakeChannel(), list[FakeChannel]()
    offers.set_open([FIRST, SECOND])
    offers.send_on(lambda question: [roots_only] if question.method == names.ROOTS_LIST else none)
    assert [question["method"] for question in roots_only.questions] == [names.ROOTS_LIST]
    offers.send_on(on([roots_only]))
    assert len(roots_only.questions) == 2


def test_what_was_asked_on_a_channel_that_is_lost_is_asked_again(offers: Offers) -> None:
    """T25-INP-004: though it says of itself that it is open."""
    lost, new = FakeChannel(), FakeChannel()
    offers.set_open([FIRST])
    offers.send_on(on([lost]))
    offers.lost(new)
    offers.send_on(on([new]))
    assert new.questions == []
    offers.lost(lost)
    offers.send_on(on([new]))
    assert len(new.questions) == 1
