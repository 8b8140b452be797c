"""Which requests are about tasks of ours."""

from __future__ import annotations

import pytest

from proxy.protocol import names
from proxy.routing.own_tasks import MAY_BE_OURS, OF_TASKS, concerns_our_tasks
from proxy.tasks.task import ID_PREFIX

OURS = b'{"taskId":"%s"}' % (ID_PREFIX.encode() + b"A" * 32)


@pytest.mark.parametrize("method", sorted(OF_TASKS))
def test_a_task_is_ours_by_the_form_of_its_id(method: str) -> None:
    assert concerns_our_tasks(method, OURS)
    for params in (None, b"{}", b'{"taskId":7}', b'{"taskId":"theirs"}', b"[]"):
        assert not concerns_our_tasks(method, params)


@pytest.mark.parametrize("method", [names.TASKS_LIST, names.SUBSCRIPTIONS_LISTEN])
def test_what_is_about_several_may_be_about_ours(method: str) -> None:
    assert concerns_our_tasks(method, None)


def test_nothing_else_may() -> None:
    assert {"tasks/get", "tasks/update", "tasks/cancel", "tasks/result", "tasks/list"} < MAY_BE_OURS
    assert names.TOOLS_CALL not in MAY_BE_OURS
