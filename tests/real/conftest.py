"""Everything in this folder is marked `real`, needs the tools, and gets its servers from here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from tests import setup_tools
from tests.real.bench import Bench
from tests.real.legacy import Transport

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    """Without the tools the tests fail; they are never skipped."""
    try:
        for name in ("sdk1", "sdk2", "fastmcp4"):
            setup_tools.venv_python(name)
        setup_tools.npm_module(setup_tools.CONFORMANCE)
        setup_tools.node()
    except setup_tools.ToolsMissing as exc:
        pytest.fail(str(exc), pytrace=False)


@pytest.fixture(params=["stdio", "http"])
def transport(request: pytest.FixtureRequest) -> Transport:
    """Between proxy and upstream: every test that asks for it runs over both."""
    return cast(Transport, request.param)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    try:
        yield bench
    finally:
        await bench.aclose()
