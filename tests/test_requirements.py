"""Requirements and tests, held together both ways.

`requirements.yaml` has what the specifications demand; a test names in its docstring the ids that it holds.
An id that a test names must exist, and every row must be named by a test, or stand in `DEFERRED` with the
reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

TESTS: Final = Path(__file__).parent
ROWS: Final[list[dict[str, Any]]] = yaml.safe_load((TESTS / "requirements.yaml").read_text("utf-8"))[
    "requirements"
]
BY_ID: Final[Mapping[str, dict[str, Any]]] = {row["id"]: row for row in ROWS}

ID: Final = re.compile(r"\b[A-Z][A-Z0-9]*(?:-[A-Z][A-Z0-9]*)*-[0-9]{3}\b")
LEVELS: Final = {"MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"}
ROLES: Final = {
    "server-modern",
    "receiver-2025",
    "server-legacy",
    "client-legacy",
    "client-modern",
    "client",
    "intermediary",
    "all",
}

DEFERRED: Final[Mapping[str, str]] = {
    "TX-NEW-002": "both stores answer reads from what was committed; comes with a replicated store",
}
"""What no test holds yet: by whom it comes, and why not now."""


def docstrings(tree: ast.Module, *, of_tests: bool) -> Iterator[str]:
    """All docstrings of a file, or those of the module and its test functions alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_test = isinstance(node, ast.Module) or node.name.startswith("test_")
            if is_test or not of_tests:
                yield ast.get_docstring(node) or ""


def ids_in(tree: ast.Module, *, of_tests: bool) -> set[str]:
    return {found for text in docstrings(tree, of_tests=of_tests) for found in ID.findall(text)}


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"), file.name)


def named_by_tests() -> set[str]:
    return set[str]().union(*(ids_in(tree_of(file), of_tests=True) for file in TESTS.rglob("test_*.py")))


# Both ways.


def test_every_id_that_a_test_names_exists() -> None:
    unknown = {
        str(file.relative_to(TESTS)): ids
        for file in sorted(TESTS.rglob("*.py"))
        if (ids := sorted(ids_in(tree_of(file), of_tests=False) - BY_ID.keys()))
    }
    assert unknown == {}


def test_every_row_is_held_by_a_test() -> None:
    held = named_by_tests() | DEFERRED.keys()
    unheld = [f"{key}: {row['text']}" for key, row in BY_ID.items() if key not in held]
    assert not unheld, "\n".join(unheld)


def test_what_is_deferred_is_a_row_and_held_by_no_test_yet() -> None:
    assert DEFERRED.keys() <= BY_ID.keys()
    assert DEFERRED.keys() & named_by_tests() == set()


# The file itself, and that its ids are seen.


def test_every_row_is_whole() -> None:
    assert len(BY_ID) == len(ROWS)
    for row in ROWS:
        assert row.keys() == {"id", "level", "role", "source", "text"}
        assert ID.fullmatch(row["id"]), row["id"]
        assert row["level"] in LEVELS, row["id"]
        assert row["role"] in ROLES, row["id"]
        assert all(row[key].strip() for key in ("source", "text")), row["id"]


SOURCE: Final = '''
"""Holds TX-NEW-001 and (HTTP-002)."""

def helper() -> None:
    """For BASE-001; not RFC 3339, SEP-2663, UTF-8, F29 or HTTP-0021."""

class Fake:
    """See T25-GET-004."""

    async def test_in_a_class(self) -> None:
        """MRTR-006, MRTR-007."""
        "DISC-001 stands in no docstring"
'''


@pytest.mark.parametrize(
    "of_tests, found",
    [
        (True, {"TX-NEW-001", "HTTP-002", "MRTR-006", "MRTR-007"}),
        (False, {"TX-NEW-001", "HTTP-002", "MRTR-006", "MRTR-007", "BASE-001", "T25-GET-004"}),
    ],
)
def test_ids_are_found_in_docstrings(of_tests: bool, found: set[str]) -> None:
    assert ids_in(ast.parse(SOURCE), of_tests=of_tests) == found
