"""A user's machine: `mcp-taskproxy` and `npx` are on the path, and the home is empty.

The first is this interpreter's `python -m proxy`, the second starts the copy of server-everything that the
tools have. So what stands in README.md and docs/ is started word for word, and nothing is downloaded.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

from tests.documents import COMMAND, ROOT
from tests.setup_tools import EVERYTHING, node, npm_module

PACKAGE: Final = "@modelcontextprotocol/server-everything"

OURS: Final = """#!/bin/sh
PYTHONPATH={root} exec {python} -m proxy "$@"
"""
NPX: Final = """#!/bin/sh
if [ "$1 $2" != "-y {package}" ]; then echo "unexpected: npx $*" >&2; exit 1; fi
shift 2
exec {node} {module} "$@"
"""


def user_environment(home: Path) -> dict[str, str]:
    """The environment of a program that the user starts; `home` is theirs."""
    programs = home / "bin"
    programs.mkdir()
    root, python = shlex.quote(str(ROOT)), shlex.quote(sys.executable)
    _make(programs / COMMAND, OURS.format(root=root, python=python))
    module = shlex.quote(str(npm_module(EVERYTHING)))
    _make(programs / "npx", NPX.format(package=PACKAGE, node=shlex.quote(str(node())), module=module))
    return {"HOME": str(home), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def _make(program: Path, text: str) -> None:
    program.write_text(text)
    program.chmod(0o755)
