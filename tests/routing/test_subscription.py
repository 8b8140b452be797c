"""What a listen request asks for, and the notes taken for one that is slow to read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.errors import ClientProtocolError
from proxy.protocol.envelope import RawObject, dumps
from proxy.routing import subscription as subscription_module
from proxy.routing.base import ClientRequest
from proxy.routing.subscription import MAX_RESOURCES, MAX_TASK_IDS, Filter, Subscription


def parsed(notifications: Any) -> Filter:
    return Filter.parse(RawObject.parse(dumps({"notifications": notifications})))


def test_only_true_asks_for_a_list() -> None:
    asked = parsed({"toolsListChanged": True, "promptsListChanged": False, "resourcesListChanged": "true"})
    assert asked == Filter(("toolsListChanged",), (), None)


def test_no_task_ids_and_none_of_them_are_two_things() -> None:
    """TX-NOT-002: an empty list needs the extension, too."""
    assert parsed({}).task_ids is None
    assert parsed({"taskIds": None}).task_ids is None
    assert parsed({"taskIds": []}).task_ids == ()
    assert json.loads(parsed({"taskIds": []}).raw()) == {"taskIds": []}


def test_names_that_are_given_twice_count_once() -> None:
    assert parsed({"taskIds": ["a", "b", "a"], "resourceSubscriptions": ["x", "x"]}) == Filter(
        (), ("x",), ("a", "b")
    )


@pytest.mark.parametrize(
    "params",
    [
        b"{}",
        b'{"notifications":[]}',
        b'{"notifications":null}',
        b'{"notifications":{"taskIds":"a"}}',
        b'{"notifications":{"taskIds":[1]}}',
        b'{"notifications":{"resourceSubscriptions":{}}}',
        b'{"notifications":{"taskIds":[],"taskIds":[]}}',
        dumps({"notifications": {"taskIds": ["a"] * (MAX_TASK_IDS + 1)}}),
        dumps({"notifications": {"resourceSubscriptions": ["a"] * (MAX_RESOURCES + 1)}}),
    ],
)
def test_a_malformed_filter_is_refused(params: bytes) -> None:
    """SEC-003: or one without bounds."""
    with pytest.raises(ClientProtocolError) as refused:
        Filter.parse(RawObject.parse(params))
    assert refused.value.code == -32602


class Told(list[tuple[str, bytes | None]]):
    """A sink whose reader never reads."""

    def notify(self, method: str, params: bytes | None) -> None:
        self.append((method, params))

    def lookup_failed(self) -> None:
        raise AssertionError("no task is looked up here")

    def make_room(self, size: int) -> None:
        """There is."""

    async def ready(self) -> None:
        raise AssertionError("nobody waits here")


TOOLS, PROMPTS = "notifications/tools/list_changed", "notifications/prompts/list_changed"


def test_what_comes_before_the_acknowledgement_waits_for_it_and_is_told_if_it_is_granted(
    request_of_anybody: ClientRequest,
) -> None:
    """SUB-002, SUB-003."""
    told = Told()
    asked = Filter(("toolsListChanged", "promptsListChanged"), (), None)
    subscription = Subscription(request_of_anybody, told, asked)
    subscription.on_change(TOOLS, None)
    subscription.on_change(PROMPTS, None)
    assert (subscription.has_news, told) == (False, [])
    subscription.grant(Filter(("toolsListChanged",), (), None))
    changed = subscription.changed.event
    subscription.acknowledge()
    assert changed.is_set()
    assert subscription.has_news
    subscription._flush_now()
    assert [method for method, _ in told] == ["notifications/subscriptions/acknowledged", TOOLS]


def test_changes_for_a_reader_that_never_reads_are_handed_to_the_bound_of_its_sink(
    request_of_anybody: ClientRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F40, SEC-003."""
    monkeypatch.setattr(subscription_module, "MAX_PENDING", 10)
    told = Told()
    subscription = Subscription(request_of_anybody, told, Filter((), ("file:///a",), None))
    subscription.acknowledge()
    for n in range(100):
        subscription.on_change("notifications/resources/updated", dumps({"uri": f"file:///a/{n}"}))
    assert len(told) > 80
