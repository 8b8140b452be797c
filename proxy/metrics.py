"""What one proxy counts and measures, for Prometheus: every metric is declared in one table.

Above: all but the pure parts, which tell a `Metrics` by its plain methods what happens; `operations` serves
it on `admin.listen`. Below: prometheus_client, with a registry for each `Metrics`, so that several proxies
live in one process. A label has few values, all of them in the table: nothing that comes from a client
or a server (tools, tasks, owners, arguments) is ever a label. House style, "Logs and metrics".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from typing import Final, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from proxy import __version__
from proxy.errors import (
    AccessDenied,
    ClientProtocolError,
    LimitReached,
    PolledTooFast,
    ProxyError,
    ShuttingDown,
    TaskNotFound,
    Unauthorized,
    UpstreamError,
    UpstreamRefused,
)

PREFIX: Final = "mcp_taskproxy_"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Methods(StrEnum):
    """The methods of clients, in groups; `routing.method_groups` says which one is in which."""

    TOOLS_CALL = "tools_call"
    PROMPTS_GET = "prompts_get"
    RESOURCES_READ = "resources_read"
    LISTS = "lists"
    TASKS = "tasks"
    LISTEN = "listen"
    SESSION = "session"
    OTHER = "other"


_LISTEN: Final = Methods.LISTEN  # to name a member of an enum takes a microsecond each time


class Outcome(StrEnum):
    """How a request ended, for its client."""

    RESULT = "result"
    ERROR = "error"
    REFUSED = "refused"
    UPSTREAM_FAILED = "upstream_failed"
    PROXY_FAILED = "proxy_failed"
    HUNG_UP = "hung_up"


class Refusal(StrEnum):
    """Why a client was refused."""

    INVALID = "invalid"
    HOST_OR_ORIGIN = "host_or_origin"
    AUTH = "auth"
    LIMIT = "limit"
    RATE = "rate"
    SHUTTING_DOWN = "shutting_down"


class Denied(StrEnum):
    """Why a task was not found for who asked for it (T25-SEC-010)."""

    UNKNOWN = "unknown"
    FOREIGN = "foreign"


class SessionEnd(StrEnum):
    """How a session with the server ended."""

    CLOSED = "closed"
    LOST = "lost"
    NOT_STARTED = "not_started"


EraLabel = Literal["modern", "legacy"]

STATUSES: Final = ("working", "input_required", "completed", "failed", "cancelled")
TERMINAL: Final = STATUSES[2:]
_ERAS: Final = ("modern", "legacy")


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table. `labels` has all values that each label can have."""

    name: str
    kind: Kind
    meaning: str
    unit: str = ""
    labels: Mapping[str, Iterable[str]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """As Prometheus shows it; a histogram has `_bucket`, `_sum` and `_count` behind that."""
        return PREFIX + self.name

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Every combination of label values."""
        return product(*self.labels.values())


def _counter(name: str, meaning: str, unit: str = "", **labels: Iterable[str]) -> Metric:
    return Metric(name, Kind.COUNTER, meaning, unit, labels)


def _gauge(name: str, meaning: str, unit: str = "", **labels: Iterable[str]) -> Metric:
    return Metric(name, Kind.GAUGE, meaning, unit, labels)


def _seconds(name: str, meaning: str, *buckets: float, **labels: Iterable[str]) -> Metric:
    return Metric(name, Kind.HISTOGRAM, meaning, "seconds", labels, buckets)


TABLE: Final = (
    _gauge("build_info", "1; the label says which version runs", version=(__version__,)),
    _counter(
        "requests_total",
        "requests that have ended: with a result, with an error of the server's, refused, failed for the"
        " server or for the proxy, or left by a client that hung up",
        "requests",
        method=Methods,
        era=_ERAS,
        outcome=Outcome,
    ),
    _seconds(
        "request_duration_seconds",
        "from the arrival of a request to its answer; listen streams are left out",
        *(0.01, 0.1, 0.5, 2.5, 10, 60, 600),
        method=[group for group in Methods if group is not Methods.LISTEN],
    ),
    _counter(
        "refusals_total",
        "requests that were refused, before or after they were read",
        "requests",
        reason=Refusal,
    ),
    _counter(
        "task_lookups_denied_total",
        "task ids for which nothing was answered: unknown or expired, or another owner's",
        "requests",
        reason=Denied,
    ),
    _gauge("calls_in_flight", "calls that count towards limits.calls", "calls"),
    _gauge("calls_parked", "calls that wait for their client to come back with its answers", "calls"),
    _gauge("listen_streams", "open subscriptions/listen streams", "streams"),
    _gauge("http_requests", "requests over HTTP that count towards limits.requests", "requests"),
    _gauge("http_streams", "streams over HTTP that stay open, of both eras", "streams"),
    _gauge("legacy_sessions", "sessions of legacy clients over HTTP that are held here", "sessions"),
    _counter("tasks_created_total", "calls that became tasks", "tasks"),
    _counter(
        "tasks_taken_up_total",
        "tasks of an earlier process that go on: resumed, repeated, or waiting for their user",
        "tasks",
    ),
    _gauge("tasks", "tasks in the store; NaN while it cannot be read", "tasks", status=STATUSES),
    _counter("tasks_ended_total", "tasks that have ended", "tasks", status=TERMINAL),
    _seconds(
        "task_duration_seconds",
        "from the creation of a task to its end, as far as this process saw both",
        *(2.5, 10, 60, 600, 3_600, 14_400, 86_400),
    ),
    _counter("store_commits_total", "transactions of the store that were committed", "commits"),
    _counter("store_failures_total", "transactions of the store that failed", "commits"),
    _seconds("store_commit_duration_seconds", "how long a commit took", *(0.001, 0.01, 0.1, 1, 10)),
    _gauge("store_queue", "changes that wait for their commit", "changes"),
    _gauge("upstream_sessions", "sessions with the server that modern clients share", "sessions"),
    _gauge("upstream_waiting", "calls and streams that wait for a session to become free", "calls"),
    _counter("upstream_sessions_started_total", "of those: started", "sessions"),
    _counter(
        "upstream_sessions_ended_total",
        "of those: closed by the proxy, lost, or not started at all",
        "sessions",
        how=SessionEnd,
    ),
    _gauge("upstream_processes", "subprocesses of the server, each with what it started", "processes"),
    _counter("upstream_processes_started_total", "subprocesses started", "processes"),
    _counter("upstream_processes_ended_total", "subprocesses ended", "processes"),
    _seconds(
        "event_loop_lag_seconds",
        "how late the event loop was, looked at twice a second",
        *(0.005, 0.05, 0.5, 5),
    ),
)
"""All of them; docs/metrics.md shows the same, held to it by a test."""


Read = Callable[[], float]

_M = TypeVar("_M", bound=MetricWrapperBase)


class Metrics:
    """The counts of one proxy. All methods may be called from any thread, and none can fail."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters: dict[tuple[str, ...], Counter] = {}
        self._gauges: dict[tuple[str, ...], Gauge] = {}
        self._histograms: dict[tuple[str, ...], Histogram] = {}
        for metric in TABLE:
            self._add(metric)
        ProcessCollector(registry=self._registry)
        self._gauges["build_info", __version__].set(1)

    def _add(self, metric: Metric) -> None:
        """All its rows, so that each is there from the start, and no other can come."""
        name, labels, registry = metric.full_name, tuple(metric.labels), self._registry
        match metric.kind:
            case Kind.COUNTER:
                self._counters |= _rows(metric, Counter(name, metric.meaning, labels, registry=registry))
            case Kind.GAUGE:
                self._gauges |= _rows(metric, Gauge(name, metric.meaning, labels, registry=registry))
            case Kind.HISTOGRAM:
                made = Histogram(name, metric.meaning, labels, registry=registry, buckets=metric.buckets)
                self._histograms |= _rows(metric, made)

    def text(self) -> bytes:
        """Everything in Prometheus' text format, of CONTENT_TYPE."""
        return generate_latest(_WithoutCreated(self._registry))

    def show(self, name: str, read: Read) -> None:
        """Have a gauge show what `read` returns whenever somebody looks."""
        self._gauges[name,].set_function(read)

    # -- requests -----------------------------------------------------------------------------------

    def answered(self, method: Methods, era: EraLabel, outcome: Outcome, seconds: float) -> None:
        self._counters["requests_total", method, era, outcome].inc()
        if method is not _LISTEN:
            self._histograms["request_duration_seconds", method].observe(seconds)

    def refused(self, fault: ProxyError) -> None:
        """Counts the fault if it is a refusal; each is to be told once."""
        if (reason := refusal_of(fault)) is not None:
            self.refused_for(reason)

    def refused_for(self, reason: Refusal) -> None:
        self._counters["refusals_total", reason].inc()

    def lookup_denied(self, why: Denied) -> None:
        self._counters["task_lookups_denied_total", why].inc()

    # -- tasks --------------------------------------------------------------------------------------

    def task_created(self) -> None:
        self._counters["tasks_created_total",].inc()

    def task_taken_up(self) -> None:
        self._counters["tasks_taken_up_total",].inc()

    def task_ended(self, status: str, seconds: float | None = None) -> None:
        """`seconds` since its creation; None where that was in an earlier process."""
        self._counters["tasks_ended_total", status].inc()
        if seconds is not None:
            self._histograms["task_duration_seconds",].observe(seconds)

    def stored(self, tasks: Mapping[str, int] | None) -> None:
        """How many tasks of each status are in the store; None if nobody knows."""
        for status in STATUSES:
            self._gauges["tasks", status].set(float("nan") if tasks is None else tasks.get(status, 0))

    # -- the store ----------------------------------------------------------------------------------

    def committed(self, seconds: float) -> None:
        self._counters["store_commits_total",].inc()
        self._histograms["store_commit_duration_seconds",].observe(seconds)

    def commit_failed(self) -> None:
        self._counters["store_failures_total",].inc()

    # -- the server ---------------------------------------------------------------------------------

    def session_started(self) -> None:
        self._counters["upstream_sessions_started_total",].inc()

    def session_ended(self, how: SessionEnd) -> None:
        self._counters["upstream_sessions_ended_total", how].inc()

    def process_started(self) -> None:
        self._counters["upstream_processes_started_total",].inc()
        self._gauges["upstream_processes",].inc()

    def process_ended(self) -> None:
        self._counters["upstream_processes_ended_total",].inc()
        self._gauges["upstream_processes",].dec()

    # -- the event loop -----------------------------------------------------------------------------

    def lagged(self, seconds: float) -> None:
        self._histograms["event_loop_lag_seconds",].observe(seconds)


def _rows(metric: Metric, made: _M) -> dict[tuple[str, ...], _M]:
    """What is counted, by name and label values."""
    if not metric.labels:
        return {(metric.name,): made}
    return {(metric.name, *values): made.labels(*values) for values in metric.rows()}


class _WithoutCreated(Collector):
    """A registry without the times of creation that the library adds to each counter and histogram."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Family]:
        for family in self._registry.collect():
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family


def outcome_of(fault: ProxyError) -> Outcome:
    """What a request has come to that is answered with this fault."""
    if refusal_of(fault) is not None or isinstance(fault, TaskNotFound):
        return Outcome.REFUSED
    return Outcome.UPSTREAM_FAILED if isinstance(fault, UpstreamError) else Outcome.PROXY_FAILED


def refusal_of(fault: ProxyError) -> Refusal | None:
    """Why the client was refused; None if it was not, but could not be served."""
    match fault:
        case ShuttingDown():
            return Refusal.SHUTTING_DOWN
        case PolledTooFast():
            return Refusal.RATE
        case LimitReached():
            return Refusal.LIMIT
        case UpstreamRefused(status=None):
            return None
        case UpstreamRefused() | Unauthorized():
            return Refusal.AUTH
        case AccessDenied():
            return Refusal.HOST_OR_ORIGIN
        case ClientProtocolError():
            return Refusal.INVALID
        case _:
            return None


UNSERVED: Final = Metrics()
"""For parts that are used alone: what it counts nobody reads."""
