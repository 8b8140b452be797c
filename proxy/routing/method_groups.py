"""Which method of a client counts in which group; tools and other names are nobody's label.

Above: whoever answers requests, in either era. Below: `metrics`, which declares the groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from proxy.metrics import Methods
from proxy.protocol import names

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


def group_of(method: str) -> Methods:
    return _GROUPS.get(method, Methods.OTHER)
