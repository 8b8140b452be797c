"""The table of metrics, and that each thing told is counted where the table says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from http import HTTPStatus
from threading import Thread
from typing import Final

import pytest

from proxy import errors
from proxy.eras.era import Era
from proxy.errors import ErrorCode, ProxyError
from proxy.metrics import (
    PREFIX,
    STATUSES,
    TABLE,
    TERMINAL,
    Denied,
    Kind,
    Methods,
    Metric,
    Metrics,
    Outcome,
    Refusal,
    SessionEnd,
    outcome_of,
    refusal_of,
)
from proxy.tasks.task import TaskStatus
from tests.scrape import Scraped, samples

MOST_ROWS: Final = 300  # of all metrics together: what one scrape of one proxy may cost

every_metric = pytest.mark.parametrize("metric", TABLE, ids=lambda metric: metric.name)


# -- the table ---------------------------------------------------------------------------------------


@every_metric
def test_a_name_says_what_kind_it_is_and_its_unit(metric: Metric) -> None:
    """Prometheus' own rules of naming."""
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_seconds") == (metric.unit == "seconds")
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(metric.buckets)
    assert metric.meaning
    assert "|" not in metric.meaning + metric.unit, "it stands in a table of Markdown"


@every_metric
def test_every_row_is_there_before_anything_happens_and_is_zero(metric: Metric) -> None:
    """Else a rate is blind to the first event."""
    scraped = Scraped.of(Metrics())
    name = metric.name + ("_count" if metric.kind is Kind.HISTOGRAM else "")
    for values in metric.rows():
        labels = dict(zip(metric.labels, values, strict=True))
        assert scraped.value(name, **labels) == (1 if metric.name == "build_info" else 0)


def test_nothing_is_shown_that_the_table_does_not_declare() -> None:
    """But for the library's figures of the process."""
    shown = {s.name for s in samples(Metrics().text()) if not s.name.startswith("process_")}
    declared = set()
    for metric in TABLE:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        declared |= {metric.full_name + suffix for suffix in suffixes}
    assert shown == declared


def test_labels_are_few_and_bounded() -> None:
    rows = [s for s in samples(Metrics().text()) if s.name.startswith(PREFIX)]
    assert len(rows) <= MOST_ROWS


def test_the_words_of_the_labels_are_those_of_the_code() -> None:
    """`metrics` may import neither part."""
    assert set(STATUSES) == {status.value for status in TaskStatus}
    assert set(TERMINAL) == {status.value for status in TaskStatus if status.is_terminal}
    [requests] = [metric for metric in TABLE if metric.name == "requests_total"]
    assert set(requests.labels["era"]) == {era.value for era in Era}


# -- what is told ------------------------------------------------------------------------------------

TOLD: Final[dict[str, tuple[Callable[[Metrics], None], set[str]]]] = {
    "a request": (
        lambda m: m.answered(Methods.TOOLS_CALL, "modern", Outcome.RESULT, 0.5),
        {
            'requests_total{era="modern",method="tools_call",outcome="result"}',
            'request_duration_seconds_count{method="tools_call"}',
            'request_duration_seconds_sum{method="tools_call"}',
        },
    ),
    "a listen stream": (  # hours long by nature
        lambda m: m.answered(Methods.LISTEN, "legacy", Outcome.HUNG_UP, 3_600),
        {'requests_total{era="legacy",method="listen",outcome="hung_up"}'},
    ),
    "a refusal": (
        lambda m: m.refused(errors.AccessDenied("no")),
        {'refusals_total{reason="host_or_origin"}'},
    ),
    "a fault that is no refusal": (lambda m: m.refused(errors.StoreError("full")), set()),
    "a denied lookup": (
        lambda m: m.lookup_denied(Denied.FOREIGN),
        {'task_lookups_denied_total{reason="foreign"}'},
    ),
    "a new task": (lambda m: m.task_created(), {"tasks_created_total"}),
    "a task of an earlier process": (lambda m: m.task_taken_up(), {"tasks_taken_up_total"}),
    "an ended task": (
        lambda m: m.task_ended("failed", 12.0),
        {'tasks_ended_total{status="failed"}', "task_duration_seconds_count", "task_duration_seconds_sum"},
    ),
    "an ended task of an earlier process": (
        lambda m: m.task_ended("failed"),
        {'tasks_ended_total{status="failed"}'},
    ),
    "the store's tasks": (
        lambda m: m.stored({"working": 2, "failed": 1}),
        {'tasks{status="working"}', 'tasks{status="failed"}'},
    ),
    "a commit": (
        lambda m: m.committed(0.001),
        {"store_commits_total", "store_commit_duration_seconds_count", "store_commit_duration_seconds_sum"},
    ),
    "a failed commit": (lambda m: m.commit_failed(), {"store_failures_total"}),
    "a new session": (lambda m: m.session_started(), {"upstream_sessions_started_total"}),
    "a lost session": (
        lambda m: m.session_ended(SessionEnd.LOST),
        {'upstream_sessions_ended_total{how="lost"}'},
    ),
    "a new process": (
        lambda m: m.process_started(),
        {"upstream_processes_started_total", "upstream_processes"},
    ),
    "a late event loop": (
        lambda m: m.lagged(0.1),
        {"event_loop_lag_seconds_count", "event_loop_lag_seconds_sum"},
    ),
}


@pytest.mark.parametrize("what", TOLD)
def test_what_is_told_is_counted_there_and_nowhere_else(what: str) -> None:
    tell, moved = TOLD[what]
    metrics = Metrics()
    before = Scraped.of(metrics)
    tell(metrics)
    assert Scraped.of(metrics).changed_since(before) == moved


def test_what_began_and_ended_does_not_live() -> None:
    metrics = Metrics()
    metrics.process_started()
    metrics.process_started()
    metrics.process_ended()
    scraped = Scraped.of(metrics)
    assert scraped.value("upstream_processes") == 1
    assert scraped.value("upstream_processes_ended_total") == 1


def test_a_gauge_shows_what_is_there_when_somebody_looks() -> None:
    metrics, calls = Metrics(), [1]
    metrics.show("calls_in_flight", lambda: len(calls))
    assert Scraped.of(metrics).value("calls_in_flight") == 1
    calls.append(2)
    assert Scraped.of(metrics).value("calls_in_flight") == 2


def test_a_store_that_cannot_be_read_is_not_shown_as_empty() -> None:
    metrics = Metrics()
    metrics.stored({"working": 2})
    metrics.stored(None)
    assert all(math.isnan(Scraped.of(metrics).value("tasks", status=status)) for status in STATUSES)
    metrics.stored({"working": 2})
    assert Scraped.of(metrics).value("tasks", status="working") == 2


def test_two_proxies_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    before = Scraped.of(other)
    one.task_created()
    assert Scraped.of(one).value("tasks_created_total") == 1
    assert Scraped.of(other).changed_since(before) == set()


def test_a_value_that_the_table_does_not_have_makes_no_row() -> None:
    metrics = Metrics()
    before = Scraped.of(metrics)
    with pytest.raises(KeyError):
        metrics.task_ended("tpx-secret")
    assert Scraped.of(metrics).changed_since(before) == set()
    assert b"tpx-secret" not in metrics.text()


def test_threads_may_count_at_the_same_time() -> None:
    """The store's writer is one."""
    metrics = Metrics()

    def count() -> None:
        for _ in range(1_000):
            metrics.committed(0.1)

    threads = [Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Scraped.of(metrics).value("store_commits_total") == 4_000


# -- faults ------------------------------------------------------------------------------------------

FAULTS: Final[dict[ProxyError, tuple[Refusal | None, Outcome]]] = {
    errors.ClientProtocolError(ErrorCode.PARSE_ERROR, "no JSON"): (Refusal.INVALID, Outcome.REFUSED),
    errors.AccessDenied("evil.example"): (Refusal.HOST_OR_ORIGIN, Outcome.REFUSED),
    errors.UpstreamRefused("401", status=HTTPStatus.UNAUTHORIZED, challenges=()): (
        Refusal.AUTH,
        Outcome.REFUSED,
    ),
    errors.UpstreamRefused("our own", status=None, challenges=()): (None, Outcome.UPSTREAM_FAILED),
    errors.Unauthorized("who?", reason="missing"): (Refusal.AUTH, Outcome.REFUSED),
    errors.LimitReached("full", retry_after_s=1): (Refusal.LIMIT, Outcome.REFUSED),
    errors.PolledTooFast("slower", retry_after_s=1): (Refusal.RATE, Outcome.REFUSED),
    errors.ShuttingDown(retry_after_s=1): (Refusal.SHUTTING_DOWN, Outcome.REFUSED),
    errors.TaskNotFound(): (None, Outcome.REFUSED),  # counted as a lookup
    errors.UpstreamError("x"): (None, Outcome.UPSTREAM_FAILED),
    errors.UpstreamUnavailable("x"): (None, Outcome.UPSTREAM_FAILED),
    errors.NoCredential("x"): (None, Outcome.UPSTREAM_FAILED),
    errors.ServerGone("x"): (None, Outcome.UPSTREAM_FAILED),
    errors.UpstreamTimeout("x"): (None, Outcome.UPSTREAM_FAILED),
    errors.UpstreamClosed("x"): (None, Outcome.UPSTREAM_FAILED),
    errors.SessionLost("x"): (None, Outcome.UPSTREAM_FAILED),
    errors.SessionUnknown("x"): (None, Outcome.UPSTREAM_FAILED),
    errors.UpstreamProtocolError("x"): (None, Outcome.UPSTREAM_FAILED),
    errors.StoreError("x"): (None, Outcome.PROXY_FAILED),
    errors.TaskConflict("x"): (None, Outcome.PROXY_FAILED),
    errors.IllegalTransition("x"): (None, Outcome.PROXY_FAILED),
    errors.InternalError(): (None, Outcome.PROXY_FAILED),
    errors.ConfigError("x"): (None, Outcome.PROXY_FAILED),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_each_fault_counts_for_what_it_is(fault: ProxyError) -> None:
    assert (refusal_of(fault), outcome_of(fault)) == FAULTS[fault]


def test_every_fault_of_the_proxy_is_among_them() -> None:
    def below(kind: type[ProxyError]) -> Iterator[type[ProxyError]]:
        for one in kind.__subclasses__():
            if one.__module__ == errors.__name__:
                yield one
            yield from below(one)

    assert set(below(ProxyError)) == {type(fault) for fault in FAULTS}
