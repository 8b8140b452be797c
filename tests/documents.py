"""What a reader finds in README.md and docs/: its code, its links, the commands to be typed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
README: Final = ROOT / "README.md"
CLIENTS: Final = ROOT / "docs" / "clients.md"
DEPLOYMENT: Final = ROOT / "docs" / "deployment.md"
METRICS: Final = ROOT / "docs" / "metrics.md"
SECURITY: Final = ROOT / "SECURITY.md"
PAGES: Final = (README, SECURITY, *sorted((ROOT / "docs").glob("*.md")))

COMMAND: Final = "mcp-taskproxy"

_FENCED: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED: Final = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+")
_HEADING: Final = re.compile(r"^(#+) (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block of code; `language` is empty for an indented one."""

    page: Path
    heading: str
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """What a client starts, as its configuration says it."""

    client: str
    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]

    def __str__(self) -> str:
        return shlex.join([self.client, *(arg for arg in self.args if arg.startswith("--")), *self.env])


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return _INDENTED.sub("", _FENCED.sub("", page.read_text("utf-8")))


def headings(page: Path) -> list[str]:
    return [match[2] for match in _HEADING.finditer(prose(page))]


def snippets(page: Path, *languages: str) -> Iterator[Snippet]:
    """The blocks in those languages, in their order."""
    text = page.read_text("utf-8")
    found = [(m.start(), m[1], m[2]) for m in _FENCED.finditer(text)]
    found += [(m.start(), "", m[0]) for m in _INDENTED.finditer(_FENCED.sub(_blank, text))]
    for place, language, code in sorted(found):
        if language in languages:
            before = [m[2] for m in _HEADING.finditer(_FENCED.sub(_blank, text)) if m.start() < place]
            yield Snippet(page, before[-1] if before else "", language, code)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "x", match[0])


def command_lines(page: Path) -> Iterator[list[str]]:
    """The words of each line that a reader types into a shell, without comments."""
    for snippet in snippets(page, "sh", ""):
        for line in snippet.text.replace("\\\n", " ").splitlines():
            for command in re.split(r" && ", line):
                if words := shlex.split(command, comments=True):
                    yield words


def entries(page: Path) -> Iterator[Entry]:
    """The entries for stdio servers in the configuration files that the page shows."""
    for snippet in snippets(page, "json"):
        for entry in _servers(json.loads(snippet.text)):
            if "command" in entry:
                args = tuple(entry.get("args", ()))
                yield Entry(snippet.heading, entry["command"], args, entry.get("env", {}))


def _servers(file: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    (servers,) = file.values()
    return list(servers.values())
