"""Counts what becomes of a request, in the group of its method; tools and other names are nobody's label.

Above: whoever answers requests, in either era. Below: `metrics`, which declares the groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Final

from proxy.clock import Clock
from proxy.errors import ProxyError
from proxy.metrics import EraLabel, Methods, Metrics, Outcome, outcome_of
from proxy.protocol import names
from proxy.protocol.jsonrpc import Request, RequestId

_GROUPS: Final[Mapping[str, Methods]] = {
    names.TOOLS_CALL: Methods.TOOLS_CALL,
    names.PROMPTS_GET: Methods.PROMPTS_GET,
    names.RESOURCES_READ: Methods.RESOURCES_READ,
    names.SUBSCRIPTIONS_LISTEN: Methods.LISTEN,
    **dict.fromkeys(
        (names.TOOLS_LIST, names.PROMPTS_LIST, names.RESOURCES_LIST, names.RESOURCES_TEMPLATES_LIST),
        Methods.LISTS,
    ),
    **dict.fromkeys(
        (names.TASKS_GET, names.TASKS_UPDATE, names.TASKS_CANCEL, names.TASKS_RESULT, names.TASKS_LIST),
        Methods.TASKS,
    ),
    **dict.fromkeys(
        (
            names.DISCOVER,
            names.INITIALIZE,
            names.PING,
            names.LOGGING_SET_LEVEL,
            names.RESOURCES_SUBSCRIBE,
            names.RESOURCES_UNSUBSCRIBE,
        ),
        Methods.SESSION,
    ),
}

_OTHER, _HUNG_UP = Methods.OTHER, Outcome.HUNG_UP  # to name a member of an enum takes a microsecond each time


class counted:  # noqa: N801 - reads as what is done in `with`
    """Count a request, and how long it took, when the context is left.

    Faults say what they are; `outcome` says of any other end what it is. Else the client has hung up.
    """

    __slots__ = ("_began", "_clock", "_era", "_method", "_metrics", "outcome")

    def __init__(self, method: str, era: EraLabel, metrics: Metrics, clock: Clock) -> None:
        self._method = method
        self._era = era
        self._metrics = metrics
        self._clock = clock
        self._began = clock.monotonic()
        self.outcome = _HUNG_UP

    def __enter__(self) -> counted:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        match exc:
            case ProxyError():
                self.outcome = outcome_of(exc)
            case Exception():
                self.outcome = Outcome.PROXY_FAILED
        took_s = self._clock.monotonic() - self._began
        self._metrics.answered(group_of(self._method), self._era, self.outcome, took_s)


class Outstanding:
    """The requests of one client where question and answer come and go apart; each is counted as it ends."""

    def __init__(self, era: EraLabel, metrics: Metrics, clock: Clock) -> None:
        self._era = era
        self._metrics = metrics
        self._clock = clock
        self._began: dict[int | str, tuple[str, float]] = {}

    def begin(self, request: Request) -> None:
        self._began[request.id.value] = request.method, self._clock.monotonic()

    def end(self, rid: RequestId | None, outcome: Outcome) -> None:
        """One that is not outstanding, or was not to be identified, is left out."""
        method, began = self._began.pop(rid.value, (None, 0.0)) if rid is not None else (None, 0.0)
        if method is not None:
            self._metrics.answered(group_of(method), self._era, outcome, self._clock.monotonic() - began)

    def __len__(self) -> int:
        return len(self._began)


def group_of(method: str) -> Methods:
    return _GROUPS.get(method, _OTHER)
