"""Which calls become tasks, and the two numbers that every poll shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.envelope import loads
from proxy.protocol.outline import whole
from proxy.tasks import lifecycle, views
from proxy.tasks.policy import CONVERTIBLE, InputMode, Policy, Polling, ToolMode, ToolPolicy, running_ttl_ms
from tests.tasks.examples import CREATED_MS, LATER_MS, POLLING, RETENTION_MS

FAST = ToolPolicy(threshold_s=0.1)
NEVER = ToolPolicy(mode=ToolMode.NEVER)
REQUIRED = ToolPolicy(mode=ToolMode.REQUIRED)


# Globs.


@pytest.mark.parametrize(
    "name, rule",
    [
        ("train_model", FAST),
        ("train_", FAST),
        ("retrain_model", None),
        ("Train_model", None),
        ("delete_everything", REQUIRED),
        ("delete_everything_now", None),
        ("a1", NEVER),
        ("ab", None),
        ("a/b.c", None),
        ("", None),
        ("train_\nx", FAST),
    ],
)
def test_a_glob_matches_the_whole_name_with_case(name: str, rule: ToolPolicy | None) -> None:
    policy = Policy(rules=(("train_*", FAST), ("delete_everything", REQUIRED), ("a[0-9]", NEVER)))
    assert policy.for_tool(name) == (rule or policy.default)


def test_the_first_rule_that_matches_wins() -> None:
    policy = Policy(rules=(("train_small", NEVER), ("train_*", FAST), ("*", REQUIRED)))
    assert policy.for_tool("train_small") is NEVER
    assert policy.for_tool("train_big") is FAST
    assert policy.for_tool("") is REQUIRED


def test_a_hostile_name_does_not_stall_a_glob() -> None:
    policy = Policy(rules=(("*a*a*a*a*a*a*b", FAST),))
    assert policy.for_tool("a" * 5_000) == policy.default


@pytest.mark.parametrize(
    "policy, at_once",
    [
        (ToolPolicy(), False),
        (ToolPolicy(threshold_s=0.0), True),
        (ToolPolicy(threshold_s=2.0, mode=ToolMode.REQUIRED), True),
        (ToolPolicy(threshold_s=0.0, mode=ToolMode.NEVER), False),
        (ToolPolicy(input=InputMode.TASK), False),
    ],
)
def test_a_task_is_made_before_the_call_is_sent_only_where_that_is_certain(
    policy: ToolPolicy, at_once: bool
) -> None:
    """Contract section 4: threshold 0, or `required`."""
    assert policy.at_once is at_once


def test_a_further_method_needs_a_row_and_nothing_of_the_task_machine() -> None:
    """TX-CAP-014."""
    assert CONVERTIBLE == {"tools/call": "name"}
    task = lifecycle.created(
        id="x", owner="alice", method="prompts/get", name="p", now_ms=CREATED_MS, retention_ms=RETENTION_MS
    )
    task = lifecycle.completed(task, b'{"messages":[]}', None, POLLING, LATER_MS, tool_error=None)
    read = whole(
        views.get_task_result(task, POLLING, LATER_MS, lift_result=lambda raw: (raw,), lift_error=bytes)
    )
    assert loads(read)["result"] == {"messages": []}


# ttl: the time elapsed plus the retention, in steps.

AGES = st.integers(min_value=0, max_value=10**10)
RETENTIONS = st.integers(min_value=1, max_value=10**9)


@given(AGES, RETENTIONS)
def test_a_running_task_always_has_more_than_half_of_its_retention_left(age: int, retention: int) -> None:
    """TX-NEW-006, TX-NEW-011: raised in time, so never below the time elapsed."""
    ttl = running_ttl_ms(age, retention)
    assert ttl > age
    assert ttl - age > retention // 2
    assert ttl <= age + retention


@given(AGES, AGES, RETENTIONS)
def test_the_ttl_of_a_running_task_never_shrinks(age: int, other: int, retention: int) -> None:
    """TX-NEW-006: nor at its end, when it becomes the time elapsed plus the retention."""
    first, second = sorted((age, other))
    assert running_ttl_ms(first, retention) <= running_ttl_ms(second, retention) <= second + retention


def test_between_two_steps_the_ttl_stands_still() -> None:
    """TX-GET-009: two polls in a row read the same."""
    hour = 3_600_000
    assert {running_ttl_ms(age, hour) for age in (0, 1, hour // 2 - 1)} == {hour}
    assert {running_ttl_ms(age, hour) for age in (hour // 2, hour - 1)} == {hour + hour // 2}
    assert running_ttl_ms(hour, hour) == 2 * hour


def test_a_clock_before_the_creation_counts_as_no_age() -> None:
    assert running_ttl_ms(-5_000, 60_000) == 60_000


# The poll interval.


@pytest.mark.parametrize(
    "age_ms, interval_ms",
    [(0, 300), (6_000, 300), (6_020, 301), (20_000, 1_000), (100_000, 5_000), (10**9, 5_000)],
)
def test_the_poll_interval_grows_with_the_age(age_ms: int, interval_ms: int) -> None:
    """TX-NEW-007: 300 at first, 5,000 at last."""
    assert Polling().interval_ms(age_ms) == interval_ms


@given(AGES, AGES)
def test_the_poll_interval_never_shrinks_and_keeps_its_bounds(age: int, other: int) -> None:
    """TX-NEW-007."""
    polling = Polling(first_ms=20, last_ms=700)
    first, second = sorted((age, other))
    assert 20 <= polling.interval_ms(first) <= polling.interval_ms(second) <= 700
