"""Who may import whom: the house style's table, held against the source.

Beside the house style's own rows: `downstream` may import `eras`, since the HTTP edge is one of the places
where eras are compared; and the modules that it does not name have rows.

A part is a folder or a module directly in `proxy/`. All imports count, those inside functions and under
`TYPE_CHECKING` too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
SOURCES: Final = sorted((ROOT / "proxy").rglob("*.py"))

TABLE: Final = """
    app, assembly, assembly_auth, assembly_upstream, assembly_legacy, cli, __main__  -> everything
    downstream          -> sessions, routing, owners, limits, room, eras, protocol, auth
    routing             -> sessions, upstream, stores, tasks, eras, owners, limits, protocol, auth, audit
    auth                -> owners, protocol, files
    sessions            -> eras, owners, protocol
    upstream            -> eras, owners, config, protocol, secrecy
    stores              -> tasks
    tasks               -> protocol
    eras                -> protocol
    protocol            ->
    audit               -> owners, tasks
    limits              -> owners, config
    owners              -> config
    sources             -> complaints, config, units, secrecy, files
    complaints          -> config, secrecy
    config              -> addresses, units, sections, secrecy, config_limits, config_auth, config_encryption
    secrecy             ->
    config_auth         -> addresses, sections, units
    config_encryption   -> sections, addresses, files
    config_limits       -> sections, units
    sections            -> units
    addresses           ->
    files               ->
    units               ->
    pid1                ->
    ending              ->
    aside               ->
    room                ->
    logs                ->
    metrics             ->
    clock               ->
    errors              ->
"""

PURE: Final = frozenset({"protocol", "eras", "tasks"})
FOR_ALL: Final = frozenset({"errors", "logs", "metrics", "clock", "aside"})
FOR_PURE: Final = frozenset({"errors"})
SEAMS: Final[Mapping[str, frozenset[str]]] = {
    "downstream": frozenset({"base"}),
    "stores": frozenset({"base"}),
    # The pool hands out sessions: `routing` names both, and tests it on a transport that is not real.
    "upstream": frozenset({"base", "pool", "session"}),
}
"""What other parts may import of a part with a seam; `app` and `assembly` alone name the rest."""

WIRING: Final = frozenset(
    {"app", "assembly", "assembly_auth", "assembly_upstream", "assembly_legacy", "cli", "__main__"}
)

IMPURE: Final = frozenset(
    {
        *("time", "random", "secrets", "uuid"),
        *("os", "sys", "signal", "subprocess", "tempfile"),
        *("socket", "select", "selectors", "ssl"),
        *("anyio", "asyncio", "concurrent", "multiprocessing", "threading"),
        *("aiohttp", "diskcache", "structlog"),
    }
)
"""Clocks, randomness, the machine, sockets, concurrency: not for pure modules."""

CLOCK_READERS: Final = frozenset({"now", "utcnow", "today"})


def parsed_table() -> Mapping[str, frozenset[str]]:
    allowed: dict[str, frozenset[str]] = {}
    for row in TABLE.strip().splitlines():
        parts, targets = row.split("->")
        for part in parts.split(","):
            allowed[part.strip()] = frozenset(
                target.strip() for target in targets.split(",") if target.strip()
            )
    return allowed


ALLOWED: Final = parsed_table()


def part_of(module: str) -> str:
    """`proxy.tasks.task` is in the part `tasks`; `proxy` itself, a docstring and a version, in none."""
    return [*module.split("."), ""][1]


def module_of(file: Path) -> str:
    names = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and module of every import; `from a import b` is `a.b`, since `b` may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def may_import(part: str, target: str) -> bool:
    for_all = FOR_PURE if part in PURE else FOR_ALL
    allowed = ALLOWED[part]
    return target in ("", part) or target in for_all or target in allowed or "everything" in allowed


def forbidden_imports(module: str, tree: ast.AST) -> list[str]:
    part = part_of(module)
    return [
        f"line {line}: {part} must not import {name}"
        for line, name in imported(tree)
        if name.split(".")[0] == "proxy"
        and part != ""
        and part_of(name) != "__version__"
        and not may_import(part, part_of(name))
    ]


def bypassed_seams(module: str, tree: ast.AST) -> list[str]:
    part = part_of(module)
    return [
        f"line {line}: {name} is behind the seam of {part_of(name)}"
        for line, name in imported(tree)
        if name.startswith("proxy.")
        and part not in WIRING
        and part_of(name) != part
        and part_of(name) in SEAMS
        and [*name.split("."), ""][2] not in SEAMS[part_of(name)]
    ]


def impurities(tree: ast.AST) -> list[str]:
    found = [f"line {line}: imports {name}" for line, name in imported(tree) if name.split(".")[0] in IMPURE]
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            found.append(f"line {node.lineno}: is asynchronous")
        if isinstance(node, ast.comprehension) and node.is_async:
            found.append("has an asynchronous comprehension")
        if isinstance(node, ast.Attribute) and node.attr in CLOCK_READERS:
            found.append(f"line {node.lineno}: reads the clock")
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "print")
        ):
            found.append(f"line {node.lineno}: {node.func.id}")
    return found


all_sources = pytest.mark.parametrize("file", SOURCES, ids=module_of)


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"), file.name)


# The source against the table.


@all_sources
def test_a_module_imports_what_the_table_allows_and_nothing_else(file: Path) -> None:
    assert part_of(module_of(file)) in ("", *ALLOWED), "a part that the table does not know"
    assert forbidden_imports(module_of(file), tree_of(file)) == []


@all_sources
def test_parts_meet_at_their_seams(file: Path) -> None:
    assert bypassed_seams(module_of(file), tree_of(file)) == []


@pytest.mark.parametrize("file", [f for f in SOURCES if part_of(module_of(f)) in PURE], ids=module_of)
def test_a_pure_module_neither_waits_nor_looks_outside(file: Path) -> None:
    assert impurities(tree_of(file)) == []


@pytest.mark.parametrize("file", [f for f in SOURCES if f.name == "__init__.py"], ids=module_of)
def test_a_package_says_what_lives_in_it_and_nothing_more(file: Path) -> None:
    tree = tree_of(file)
    assert ast.get_docstring(tree)
    assert len(tree.body) == (2 if module_of(file) == "proxy" else 1)  # proxy has its version too


# The table itself, and that a breach of it is seen.


def test_the_two_sides_never_meet() -> None:
    assert "upstream" not in ALLOWED["downstream"]
    assert "downstream" not in ALLOWED["upstream"]


def test_every_part_of_the_table_is_named_once_and_leads_somewhere() -> None:
    targets = frozenset().union(*ALLOWED.values()) - {"everything"}
    assert targets <= ALLOWED.keys()


def test_no_part_can_import_itself_by_way_of_others() -> None:
    settled: set[str] = set()
    rest = {part: set(targets) - {"everything"} for part, targets in ALLOWED.items()}
    while free := {part for part, targets in rest.items() if targets <= settled}:
        settled |= free
        rest = {part: targets for part, targets in rest.items() if part not in free}
    assert rest == {}


@pytest.mark.parametrize(
    "module, source",
    [
        ("proxy.upstream.http", "from proxy.downstream.http import Server"),
        ("proxy.downstream.http", "import proxy.upstream.base"),
        ("proxy.tasks.task", "from proxy import logs"),
        ("proxy.protocol.names", "from proxy.eras import era"),
        ("proxy.stores.disk", "def late():\n    from proxy.config import Config"),
        ("proxy.config", "from proxy.sources import load"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    assert forbidden_imports(module, ast.parse(source))


@pytest.mark.parametrize(
    "module, source",
    [
        ("proxy.routing.runner", "from proxy.errors import StoreError"),
        ("proxy.routing.runner", "from proxy.stores.base import TaskStore"),
        ("proxy.eras.era", "from proxy import __version__"),
        ("proxy.app", "from proxy.upstream.stdio import StdioTransport"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str) -> None:
    assert forbidden_imports(module, ast.parse(source)) == []
    assert bypassed_seams(module, ast.parse(source)) == []


def test_a_bypassed_seam_is_seen() -> None:
    assert bypassed_seams("proxy.routing.runner", ast.parse("from proxy.stores.disk import DiskStore"))
    assert bypassed_seams("proxy.routing.runner", ast.parse("from proxy.upstream import endpoint"))


@pytest.mark.parametrize(
    "source",
    ["import time", "from os import environ", "async def f(): ...", "datetime.now()", "open('x')"],
)
def test_an_impurity_is_seen(source: str) -> None:
    assert impurities(ast.parse(source))
